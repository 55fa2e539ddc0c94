// Blocks and nodes of the naive model of the cache: who holds what, and what makes room for what.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "antiphon/kv_cache.h"

namespace antiphon {

using Tokens = std::vector<TokenId>;

// A prefix of a scope that ends with a block, whole or begun.
struct Path {
  ScopeId scope = 0;
  Tokens tokens;
  auto operator<=>(const Path&) const = default;
};

struct NaiveNode {
  BlockId device = kNoBlock;
  BlockId host = kNoBlock;
  std::int32_t level = 0;
  std::int64_t expires_us = 0;  // 0: never
  std::uint64_t last_use = 0;
  std::uint64_t created = 0;
  std::int32_t num_hits = 0;
  std::int32_t num_marks = 0;
};

// Every choice is made by looking at all of it. Blocks are named as the real cache names them,
// which this model is told; it says which names are free.
class NaiveTiers {
 public:
  explicit NaiveTiers(const KvCacheConfig& config) : config_(config) {}

  const std::map<Path, NaiveNode>& nodes() const { return nodes_; }
  NaiveNode& at(const Path& path) { return nodes_.at(path); }
  bool Has(const Path& path) const { return nodes_.contains(path); }
  const std::vector<CopyOp>& copies() const { return copies_; }
  std::int32_t num_available() const { return NumClean() + NumCached(); }
  std::int32_t num_references(BlockId block) const {
    return Get(references_, block) + Get(holds_, block);
  }

  std::int32_t num_host_references(BlockId block) const { return Get(host_holds_, block); }
  bool is_referenced(BlockId block) const { return num_references(block) > 0; }
  void BeginStep(std::int64_t now_us, std::int32_t max_copies) {
    now_us_ = now_us;
    copies_.clear();
    max_copies_ = max_copies;
    copied_now_.clear();
  }

  void TakeHolds() { copied_now_.clear(); }
  void EndStep(const StepHolds& holds) {
    for (const BlockId block : holds.device_blocks) {
      --holds_[block];
      NoteUse(block);
    }
    for (const BlockId block : holds.offloaded) {
      written_.erase(block);
    }
    for (const BlockId block : holds.host_blocks) {
      --host_holds_[block];
    }
  }

  void Reference(const Path& path) {
    ++nodes_.at(path).num_hits;
    ++references_[nodes_.at(path).device];
  }

  void HoldHost(const Path& path) { ++host_holds_[nodes_.at(path).host]; }
  // The source is chosen as the real cache must: not what this step writes.
  void CopyOnWrite(const Path& path, std::int32_t num_tokens, BlockId destination,
                   const std::vector<CopyOp>& real) {
    NaiveNode& node = nodes_.at(path);
    ++node.num_hits;
    const bool from_host = node.device == kNoBlock || copied_now_.contains(node.device);
    const BlockId source = from_host ? node.host : node.device;
    ++(from_host ? host_holds_ : holds_)[source];
    TakeBlock(destination, 1, real);
    ++holds_[destination];
    copied_now_.insert(destination);
    copies_.push_back({CopyKind::kOnWrite, from_host ? Tier::kHost : Tier::kDevice, source,
                       destination, num_tokens});
  }

  void Onload(const Path& path, BlockId destination, const std::vector<CopyOp>& real) {
    ++nodes_.at(path).num_hits;
    HoldHost(path);
    TakeBlock(destination, 1, real);
    ++holds_[destination];
    copied_now_.insert(destination);
    copies_.push_back(
        {CopyKind::kOnload, Tier::kHost, nodes_.at(path).host, destination, config_.block_tokens});
    nodes_.at(path).device = destination;
  }

  void TakeBlock(BlockId block, std::int32_t num_reserved, const std::vector<CopyOp>& real) {
    if (NumClean() == 0) {
      Evict(num_reserved, real);
    }
    Check(!Used().contains(block), "a block is given out that is in use");
    ++references_[block];
  }

  void DropReference(BlockId block) {
    --references_[block];
    NoteUse(block);
  }

  std::int32_t Flush() {
    std::int32_t count = 0;
    for (; NumCached() > 0; ++count) {
      EraseSubtree(FirstToEvict());
    }
    const std::map<Path, NaiveNode> before = nodes_;
    for (const auto& [path, node] : before) {
      if (!Has(path) || node.host == kNoBlock || Get(host_holds_, node.host) > 0) {
        continue;
      }
      if (nodes_.at(path).device != kNoBlock) {
        nodes_.at(path).host = kNoBlock;
      } else {
        EraseSubtree(path);
      }
    }
    return count;
  }

  Path ParentOf(const Path& path) const {
    return {path.scope, Head(path.tokens, (path.tokens.size() - 1) / width() * width())};
  }

  bool IsWhole(const Path& path) const { return path.tokens.size() % width() == 0; }

 protected:
  using Counts = std::map<BlockId, std::int32_t>;
  static std::int32_t Get(const Counts& counts, BlockId block) {
    const auto found = counts.find(block);
    return found == counts.end() ? 0 : found->second;
  }

  static Tokens Head(const Tokens& tokens, std::size_t count) {
    return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
  }

  static bool Begins(const Tokens& text, const Tokens& head) {
    return head.size() <= text.size() && std::equal(head.begin(), head.end(), text.begin());
  }

  std::size_t width() const { return static_cast<std::size_t>(config_.block_tokens); }
  bool IsChild(const Path& child, const Path& path) const { return ParentOf(child) == path; }
  bool IsNeeded(const NaiveNode& node) const {
    return node.num_marks > 0 || (node.device != kNoBlock && is_referenced(node.device));
  }

  bool IsReadable(const Path& path) const {
    const NaiveNode& node = nodes_.at(path);
    return node.device != kNoBlock || !written_.contains(node.host);
  }

  std::int32_t NumChildren(const Path& path) const {
    return static_cast<std::int32_t>(
        std::ranges::count_if(nodes_, [&](const auto& each) { return IsChild(each.first, path); }));
  }

  bool HasDeviceChild(const Path& path) const {
    return std::ranges::any_of(nodes_, [&](const auto& each) {
      return IsChild(each.first, path) && each.second.device != kNoBlock;
    });
  }

  std::optional<Path> TiedTo(BlockId block) const {
    for (const auto& [path, node] : nodes_) {
      if (node.device == block) {
        return path;
      }
    }
    return std::nullopt;
  }

  std::set<BlockId> Used() const {
    std::set<BlockId> used;
    for (const Counts* counts : {&references_, &holds_}) {
      for (const auto& [block, count] : *counts) {
        if (count > 0) {
          used.insert(block);
        }
      }
    }
    for (const auto& [path, node] : nodes_) {
      used.insert(node.device);
    }
    used.erase(kNoBlock);
    return used;
  }

  std::int32_t NumClean() const {
    return config_.num_blocks - 1 - static_cast<std::int32_t>(Used().size());
  }

  std::int32_t NumCached() const {
    return static_cast<std::int32_t>(std::ranges::count_if(nodes_, [&](const auto& each) {
      return each.second.device != kNoBlock && !is_referenced(each.second.device);
    }));
  }

  std::int32_t LevelOf(const Path& path) const {
    const NaiveNode& node = nodes_.at(path);
    return node.expires_us != 0 && node.expires_us <= now_us_ ? 0 : node.level;
  }

  static void SetLevel(NaiveNode& node, std::int32_t level, std::int64_t expires_us) {
    node.level = level;
    node.expires_us = expires_us;
  }

  void Raise(const Path& path, std::int32_t level, std::int64_t expires_us) {
    NaiveNode& node = nodes_.at(path);
    const std::int32_t current = LevelOf(path);
    const bool is_longer =
        node.expires_us != 0 && (expires_us == 0 || expires_us > node.expires_us);
    if (level > current || (level == current && is_longer)) {
      SetLevel(node, level, expires_us);
    }
  }

  void Retain(const Path& path, const Retention& retention) {
    Raise(path, retention.priority,
          retention.duration_us == 0 ? 0 : now_us_ + retention.duration_us);
  }

  void NoteUse(BlockId block) {
    if (const std::optional<Path> path = TiedTo(block); path && !is_referenced(block)) {
      nodes_.at(*path).last_use = ++num_uses_;
    }
  }

  std::optional<Path> Least(bool on_device) const {
    std::optional<Path> least;
    std::pair<std::int32_t, std::uint64_t> least_key;
    for (const auto& [path, node] : nodes_) {
      const bool can_go = on_device ? node.device != kNoBlock && !is_referenced(node.device) &&
                                          !HasDeviceChild(path)
                                    : node.host != kNoBlock && Get(host_holds_, node.host) == 0 &&
                                          (node.device != kNoBlock || NumChildren(path) == 0);
      const std::pair<std::int32_t, std::uint64_t> key = {LevelOf(path), node.last_use};
      if (can_go && (!least || key < least_key)) {
        least = path;
        least_key = key;
      }
    }
    return least;
  }

  Path FirstToEvict() {
    for (BlockId block = 1; !Least(true); ++block) {
      for (std::optional<Path> path = TiedTo(block);
           path && !path->tokens.empty() && Get(references_, nodes_.at(*path).device) == 0 &&
           Get(holds_, nodes_.at(*path).device) > 0 && !HasDeviceChild(*path);) {
        const Path above = ParentOf(*path);
        if (nodes_.at(*path).host != kNoBlock) {
          nodes_.at(*path).device = kNoBlock;
        } else {
          EraseSubtree(*path);
        }
        path = above.tokens.empty() ? std::nullopt : std::optional(above);
      }
    }
    return *Least(true);
  }

  void EraseSubtree(const Path& path) {
    std::erase_if(nodes_, [&](const auto& each) {
      return each.first.scope == path.scope &&
             (each.first == path || (IsWhole(path) && Begins(each.first.tokens, path.tokens)));
    });
  }

  void Evict(std::int32_t num_reserved, const std::vector<CopyOp>& real) {
    const Path path = FirstToEvict();
    if (nodes_.at(path).host != kNoBlock || Offload(path, num_reserved, real)) {
      nodes_.at(path).device = kNoBlock;
    } else {
      EraseSubtree(path);
    }
  }

  bool Offload(const Path& path, std::int32_t num_reserved, const std::vector<CopyOp>& real) {
    const std::int32_t num_left = max_copies_ - static_cast<std::int32_t>(copies_.size());
    if (config_.num_host_blocks == 0 || num_left <= num_reserved ||
        LevelOf(path) < config_.offload_min_priority ||
        nodes_.at(path).num_hits < config_.offload_min_hits) {
      return false;
    }
    if (config_.fail_host_allocation_every > 0 &&
        ++num_host_allocations_ % config_.fail_host_allocation_every == 0) {
      return false;
    }
    if (NumHostClean() == 0) {
      const std::optional<Path> least = Least(false);
      if (!least || LevelOf(*least) > LevelOf(path)) {
        return false;
      }
      nodes_.at(*least).host = kNoBlock;
      if (nodes_.at(*least).device == kNoBlock) {
        nodes_.erase(*least);
      }
    }
    Check(copies_.size() < real.size(), "an offload is missing");
    const BlockId block = real[copies_.size()].destination;
    Check(!HostUsed().contains(block), "a host block is given out that is in use");
    nodes_.at(path).host = block;
    written_.insert(block);
    ++host_holds_[block];
    const std::size_t num_tokens = path.tokens.size() - ParentOf(path).tokens.size();
    copies_.push_back({CopyKind::kOffload, Tier::kDevice, nodes_.at(path).device, block,
                       static_cast<std::int32_t>(num_tokens)});
    return true;
  }

  std::set<BlockId> HostUsed() const {
    std::set<BlockId> used;
    for (const auto& [block, count] : host_holds_) {
      if (count > 0) {
        used.insert(block);
      }
    }
    for (const auto& [path, node] : nodes_) {
      used.insert(node.host);
    }
    used.erase(kNoBlock);
    return used;
  }

  std::int32_t NumHostClean() const {
    return config_.num_host_blocks - static_cast<std::int32_t>(HostUsed().size());
  }

  KvCacheConfig config_;
  std::map<Path, NaiveNode> nodes_;
  Counts references_;  // by chains
  Counts holds_;       // by steps
  Counts host_holds_;

  std::set<BlockId> written_;     // host blocks whose offload is not committed
  std::set<BlockId> copied_now_;  // device blocks that the step being planned copies into
  std::vector<CopyOp> copies_;

  std::int32_t max_copies_ = 0;
  std::int64_t now_us_ = 0;
  std::uint64_t num_uses_ = 0;
  std::uint64_t num_created_ = 0;
  std::int64_t num_host_allocations_ = 0;
};

}  // namespace antiphon
