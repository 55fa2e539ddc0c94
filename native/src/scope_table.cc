#include "antiphon/scope_table.h"

#include <string_view>
#include <utility>

#include "antiphon/random.h"

namespace antiphon {

namespace {

// Each field with its length before it: no two sets of fields give the same key.
std::string KeyOf(const ScopeFields& fields) {
  std::string key;
  for (const std::string* field :
       {&fields.tenant, &fields.cache_scope, &fields.adapter, &fields.weights}) {
    key += std::to_string(field->size());
    key += ':';
    key += *field;
  }
  return key;
}

std::uint64_t HashKey(std::string_view key) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char byte : key) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3ULL;
  }
  return Mix64(hash);
}

}  // namespace

std::uint64_t HashScope(const ScopeFields& fields) { return HashKey(KeyOf(fields)); }

ScopeId ScopeTable::Intern(const ScopeFields& fields) {
  std::string key = KeyOf(fields);
  if (const auto found = ids_.find(key); found != ids_.end()) {
    Entry& entry = entries_.at(found->second);
    if (entry.num_uses == 0) {
      idle_.splice(idle_.end(), idle_, entry.idle);
    }
    return found->second;
  }
  const ScopeId scope = next_id_++;
  ids_.emplace(key, scope);
  Entry& entry = entries_[scope];
  entry.hash = HashKey(key);
  entry.key = std::move(key);
  MakeIdle(scope, entry);
  return scope;
}

void ScopeTable::AddUse(ScopeId scope) {
  Entry& entry = entries_.at(scope);
  if (entry.num_uses++ == 0) {
    idle_.erase(entry.idle);
  }
}

void ScopeTable::DropUse(ScopeId scope) {
  Entry& entry = entries_.at(scope);
  ANTIPHON_CHECK(entry.num_uses > 0);
  if (--entry.num_uses == 0) {
    MakeIdle(scope, entry);
  }
}

std::int64_t ScopeTable::num_uses(ScopeId scope) const {
  const auto found = entries_.find(scope);
  return found == entries_.end() ? 0 : found->second.num_uses;
}

void ScopeTable::MakeIdle(ScopeId scope, Entry& entry) {
  entry.idle = idle_.insert(idle_.end(), scope);
  if (idle_.size() > kMaxIdleScopes) {
    const ScopeId oldest = idle_.front();
    idle_.pop_front();
    ids_.erase(entries_.at(oldest).key);
    entries_.erase(oldest);
  }
}

}  // namespace antiphon
