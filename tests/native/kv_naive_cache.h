// The cache again, as slow and plain as can be: a map from prefixes to where they lie. Every choice
// is made by looking at all of it. Blocks are named as the real cache names them, which this model
// is told; it says which names are free.
#pragma once

#include <algorithm>
#include <compare>
#include <map>
#include <optional>
#include <set>
#include <tuple>
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

class NaiveCache {
 public:
  explicit NaiveCache(const KvCacheConfig& config) : config_(config) {}

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

  // The longest prefix by brute force: nodes, how many of them on the device, live ones.
  std::tuple<std::vector<Path>, std::int32_t, std::int32_t> Match(ScopeId scope,
                                                                  const Tokens& text) const {
    std::vector<Path> found;
    std::int32_t num_device = 0;
    std::int32_t num_live = 0;
    for (std::size_t end = width(); end <= text.size(); end += width()) {
      const Path path = {scope, Head(text, end)};
      if (!Has(path) || !IsReadable(path)) {
        break;
      }
      const BlockId block = nodes_.at(path).device;
      num_device += block != kNoBlock ? 1 : 0;
      num_live += block != kNoBlock && is_referenced(block) ? 1 : 0;
      found.push_back(path);
    }
    const auto num_host = static_cast<std::int32_t>(found.size()) - num_device;
    if (num_host * config_.block_tokens <=
        config_.onload_cost_tokens + num_host * config_.onload_block_cost_tokens) {
      found.resize(static_cast<std::size_t>(num_device));
    }
    return {found, num_device, num_live};
  }

  // How many tokens of a block behind `head` tokens of the text can be copied, and whether from the
  // device.
  std::pair<std::int32_t, bool> LongestPartial(ScopeId scope, const Tokens& text,
                                               std::size_t head) const {
    std::pair<std::int32_t, bool> best = {0, false};
    for (const auto& [path, node] : nodes_) {
      if (path.scope != scope || ParentOf(path).tokens != Head(text, head) || !IsReadable(path)) {
        continue;
      }
      std::int32_t common = 0;
      const std::size_t end = std::min({text.size(), path.tokens.size(), head + width() - 1});
      while (head + static_cast<std::size_t>(common) < end &&
             path.tokens[head + static_cast<std::size_t>(common)] ==
                 text[head + static_cast<std::size_t>(common)]) {
        ++common;
      }
      const bool is_from_host = node.device == kNoBlock || copied_now_.contains(node.device);
      const std::int32_t cost = config_.onload_cost_tokens + config_.onload_block_cost_tokens;
      if (!is_from_host || common > cost) {
        best = std::max(best, {common, node.device != kNoBlock});
      }
    }
    return best;
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

  // Returns whether the block that the chain had is replaced.
  bool PublishNext(const Path& path, BlockId own, Retention retention) {
    const std::optional<Path> partial = TiedTo(own);
    bool is_replaced = false;
    if (!Has(path)) {
      if (partial) {
        Grow(*partial, path);
      } else {
        Insert(path, own, retention);
      }
    } else {
      if (partial) {
        Raise(path, LevelOf(*partial), nodes_.at(*partial).expires_us);
        nodes_.erase(*partial);
      }
      NaiveNode& node = nodes_.at(path);
      if (node.device == kNoBlock || num_references(node.device) == 0) {
        node.device = own;
      } else {
        ++references_[node.device];
        is_replaced = true;
      }
    }
    ForgetSuperseded(path);
    return is_replaced;
  }

  void PublishTail(const Path& path, BlockId own, Retention retention) {
    const std::optional<Path> partial = TiedTo(own);
    if (const std::optional<Path> other = Covering(path, partial)) {
      if (!partial && *other == path && nodes_.at(path).device == kNoBlock) {
        nodes_.at(path).device = own;
      }
      return;
    }
    if (!partial) {
      Insert(path, own, retention);
      ForgetSuperseded(path);
    } else if (partial->tokens.size() < path.tokens.size()) {
      Grow(*partial, path);
      ForgetSuperseded(path);
    } else {
      ForgetSuperseded(*partial);
    }
  }

  void DropReference(BlockId block) {
    --references_[block];
    NoteUse(block);
  }

  // `chain` is as before the real release.
  void Release(const BlockChain& chain, const Tokens& wanted, const Retention& retention) {
    std::vector<BlockId> blocks = chain.blocks;
    std::size_t num_published = static_cast<std::size_t>(chain.num_published);
    for (; (num_published + 1) * width() <= wanted.size() && num_published < blocks.size();
         ++num_published) {
      const Path path = {chain.scope, Head(wanted, (num_published + 1) * width())};
      const BlockId own = blocks[num_published];
      if (PublishNext(path, own, retention)) {
        blocks[num_published] = nodes_.at(path).device;
        DropReference(own);
      }
    }
    ForgetUnwanted(blocks, num_published, wanted.size());
    KeepTail(blocks, num_published, chain.scope, wanted, retention);
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
      DropReference(*block);
    }
  }

  void Demote(const Path& path) {
    for (const auto& [child, node] : nodes_) {
      if (IsChild(child, path) && (IsWhole(child) || IsNeeded(node))) {
        return;
      }
    }
    if (IsNeeded(nodes_.at(path))) {
      return;
    }
    for (auto& [child, node] : nodes_) {
      if (IsChild(child, path)) {
        SetLevel(node, -1, 0);
      }
    }
    SetLevel(nodes_.at(path), -1, 0);
    for (Path above = ParentOf(path); !above.tokens.empty(); above = ParentOf(above)) {
      if (IsNeeded(nodes_.at(above)) || NumChildren(above) > 1) {
        return;
      }
      SetLevel(nodes_.at(above), -1, 0);
    }
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

 private:
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

  void Insert(const Path& path, BlockId own, const Retention& retention) {
    nodes_[path] = {.device = own, .created = ++num_created_};
    Retain(path, retention);
  }
  void Grow(const Path& from, const Path& to) {
    NaiveNode node = nodes_.at(from);
    node.host = kNoBlock;
    nodes_.erase(from);
    nodes_[to] = node;
  }
  void NoteUse(BlockId block) {
    if (const std::optional<Path> path = TiedTo(block); path && !is_referenced(block)) {
      nodes_.at(*path).last_use = ++num_uses_;
    }
  }
  bool IsNeededByOthers(const Path& path) const {
    const NaiveNode& node = nodes_.at(path);
    return NumChildren(path) > 0 || node.num_marks > 0 || Get(references_, node.device) > 1;
  }

  // Another node below the same parent that begins like `path`, the best of them.
  std::optional<Path> Covering(const Path& path, const std::optional<Path>& except) const {
    std::optional<Path> best;
    std::pair<bool, std::uint64_t> best_rank;
    for (const auto& [other, node] : nodes_) {
      const std::pair<bool, std::uint64_t> rank = {node.device != kNoBlock, node.created};
      if (other.scope == path.scope && ParentOf(other) == ParentOf(path) && other != except &&
          Begins(other.tokens, path.tokens) && (!best || rank > best_rank)) {
        best = other;
        best_rank = rank;
      }
    }
    return best;
  }

  void ForgetSuperseded(const Path& path) {
    const std::map<Path, NaiveNode> before = nodes_;
    for (const auto& [other, node] : before) {
      if (other.scope == path.scope && ParentOf(other) == ParentOf(path) && other != path &&
          !IsWhole(other) && !IsNeeded(node) && Begins(path.tokens, other.tokens)) {
        Raise(path, LevelOf(other), node.expires_us);
        nodes_.erase(other);
      }
    }
  }

  void ForgetUnwanted(const std::vector<BlockId>& blocks, std::size_t& num_published,
                      std::size_t num_wanted) {
    if (num_published < blocks.size()) {
      const std::optional<Path> partial = TiedTo(blocks[num_published]);
      if (partial && partial->tokens.size() > num_wanted && !IsNeededByOthers(*partial)) {
        nodes_.erase(*partial);
      }
    }
    for (; num_published * width() > num_wanted; --num_published) {
      const Path tip = *TiedTo(blocks[num_published - 1]);
      if (IsNeededByOthers(tip)) {
        return;
      }
      nodes_.erase(tip);
    }
  }

  void KeepTail(const std::vector<BlockId>& blocks, std::size_t num_published, ScopeId scope,
                const Tokens& wanted, const Retention& retention) {
    const std::size_t num_whole = std::min(wanted.size() / width(), num_published);
    for (std::size_t i = 0; i < num_whole; ++i) {
      Retain(*TiedTo(blocks[i]), retention);
    }
    const std::size_t num_tail = wanted.size() - num_whole * width();
    if (num_tail == 0 || num_whole < num_published || num_whole == blocks.size()) {
      return;
    }
    const BlockId block = blocks[num_whole];
    if (config_.partial_reuse && num_tail < width() && !copied_now_.contains(block)) {
      PublishTail({scope, wanted}, block, retention);
    }
    const std::optional<Path> partial = TiedTo(block);
    if (!partial) {
      return;
    }
    const std::optional<Path> other = Covering(*partial, partial);
    if (other && !IsNeededByOthers(*partial)) {
      Raise(*other, LevelOf(*partial), nodes_.at(*partial).expires_us);
      nodes_.erase(*partial);
    } else {
      Retain(*partial, retention);
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
