#include "antiphon/session_table.h"

#include <utility>

namespace antiphon {

void SessionTable::SetTip(std::uint64_t session, NodeId node) {
  if (node == kNoNode) {
    return;  // nothing of it is cached: an older tip still says where most of it lies
  }
  // Marked before the old tip goes, so that their common path is not demoted.
  cache_->AddMark(node);
  const auto found = tips_.find(session);
  if (found != tips_.end()) {
    const Tip old = std::exchange(
        found->second, {.node = node, .uid = cache_->index().uid(node), .age = found->second.age});
    ages_.splice(ages_.end(), ages_, old.age);
    Drop(old);
    return;
  }
  if (tips_.size() >= max_sessions_) {
    ForgetOldest();
  }
  const auto age = ages_.insert(ages_.end(), session);
  tips_.emplace(session, Tip{.node = node, .uid = cache_->index().uid(node), .age = age});
}

bool SessionTable::Rewind(std::uint64_t session, std::int64_t num_tokens) {
  NodeId node = tip(session);
  if (node == kNoNode) {
    return false;
  }
  const PrefixIndex& index = cache_->index();
  std::int64_t num_tokens_here = 0;
  for (NodeId ancestor = node; ancestor != kNoNode;) {
    num_tokens_here += static_cast<std::int64_t>(index.tokens(ancestor).size());
    const ParentKey parent = index.parent(ancestor);
    ancestor = parent.is_root() ? kNoNode : parent.node();
  }
  while (node != kNoNode && num_tokens_here > num_tokens) {
    num_tokens_here -= static_cast<std::int64_t>(index.tokens(node).size());
    const ParentKey parent = index.parent(node);
    node = parent.is_root() ? kNoNode : parent.node();
  }
  if (node == kNoNode) {
    return Close(session);
  }
  SetTip(session, node);
  return true;
}

bool SessionTable::Fork(std::uint64_t session, std::uint64_t new_session) {
  const NodeId node = tip(session);
  if (node == kNoNode) {
    return false;
  }
  SetTip(new_session, node);
  return true;
}

bool SessionTable::Close(std::uint64_t session) {
  const auto found = tips_.find(session);
  if (found == tips_.end()) {
    return false;
  }
  const Tip old = found->second;
  ages_.erase(old.age);
  tips_.erase(found);
  const bool was_alive = IsAlive(old);
  Drop(old);
  return was_alive;
}

NodeId SessionTable::tip(std::uint64_t session) const {
  const auto found = tips_.find(session);
  return found != tips_.end() && IsAlive(found->second) ? found->second.node : kNoNode;
}

bool SessionTable::IsAlive(const Tip& tip) const {
  return cache_->index().alive(tip.node, tip.uid);
}

void SessionTable::Drop(const Tip& tip) {
  if (IsAlive(tip)) {
    cache_->DropMark(tip.node);
    cache_->Demote(tip.node);
  }
}

void SessionTable::ForgetOldest() {
  const auto found = tips_.find(ages_.front());
  // Only forgotten: its blocks keep their retention and age like others.
  if (IsAlive(found->second)) {
    cache_->DropMark(found->second.node);
  }
  tips_.erase(found);
  ages_.pop_front();
}

}  // namespace antiphon
