// The cache again, as slow and plain as can be: a map from prefixes to where they lie.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "kv_naive_tiers.h"

namespace antiphon {

class NaiveCache : public NaiveTiers {
 public:
  using NaiveTiers::NaiveTiers;

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

 private:
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
};

}  // namespace antiphon
