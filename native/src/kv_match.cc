// Finding prefixes. Whole blocks are found by the index's table; how the last one goes on inside a
// block is found by looking through the children there, a bounded number of them.
#include <algorithm>

#include "antiphon/kv_cache.h"

namespace antiphon {

void KvCache::Match(ScopeId scope, std::span<const TokenId> tokens,
                    std::span<const std::uint64_t> hashes, std::int32_t max_tokens,
                    PrefixMatch& match) const {
  match.nodes.clear();
  match.num_device = 0;
  match.num_live = 0;
  const std::size_t width = Index(config_.block_tokens);
  const std::span<const TokenId> text =
      tokens.first(std::min(tokens.size(), Index(std::max(max_tokens, 0))));
  const std::size_t num_blocks = std::min(hashes.size(), text.size() / width);
  ParentKey parent = ParentKey::Root(scope);
  for (std::size_t i = 0; i < num_blocks; ++i) {
    const NodeId node = index_.Find(parent, hashes[i], text.subspan(i * width, width));
    if (node == kNoNode) {
      break;
    }
    if (const BlockId block = index_.block(node, Tier::kDevice); block != kNoBlock) {
      ++match.num_device;
      match.num_live += device_.reference_count(block) > 0 ? 1 : 0;
    } else if (is_host_written_[Index(index_.block(node, Tier::kHost))]) {
      break;
    }
    match.nodes.push_back(node);
    parent = ParentKey::Node(node);
  }
  const std::int64_t num_host = match.num_host();
  if (num_host * config_.block_tokens <=
      config_.onload_cost_tokens + num_host * config_.onload_block_cost_tokens) {
    match.nodes.resize(Index(match.num_device));
  }
  MatchPartial(scope, text.subspan(match.nodes.size() * width), match);
}

void KvCache::MatchPartial(ScopeId scope, std::span<const TokenId> rest, PrefixMatch& match) const {
  match.partial = kNoNode;
  match.partial_tokens = 0;
  match.pins_partial = false;
  const std::size_t num_tokens = std::min(rest.size(), Index(config_.block_tokens - 1));
  if (!config_.partial_reuse || match.num_host() > 0 || num_tokens == 0) {
    return;
  }
  const ParentKey parent =
      match.nodes.empty() ? ParentKey::Root(scope) : ParentKey::Node(match.nodes.back());
  const Beginning found =
      LongestBeginning(parent, rest.first(num_tokens), kNoNode, /*is_for_copy=*/true);
  if (found.node == kNoNode) {
    return;
  }
  const Place source = ReadablePlace(found.node);
  match.partial = found.node;
  match.partial_tokens = found.num_tokens;
  match.pins_partial = source.tier == Tier::kDevice && device_.reference_count(source.block) == 0;
}

// Of children that begin alike for as long, one on the device is preferred.
KvCache::Beginning KvCache::LongestBeginning(ParentKey parent, std::span<const TokenId> tokens,
                                             NodeId except, bool is_for_copy) const {
  Beginning best;
  std::int32_t num_left = kMaxScannedChildren;
  for (NodeId node = index_.first_child(parent); node != kNoNode && num_left > 0;
       node = index_.next_sibling(node), --num_left) {
    const std::int32_t num_tokens = index_.CommonTokens(node, tokens);
    const bool is_better =
        num_tokens > best.num_tokens ||
        (num_tokens == best.num_tokens && num_tokens > 0 && index_.is_on(node, Tier::kDevice) &&
         !index_.is_on(best.node, Tier::kDevice));
    if (is_better && node != except && (!is_for_copy || IsWorthCopying(node, num_tokens))) {
      best = {.node = node, .num_tokens = num_tokens};
    }
  }
  return best;
}

// Whether a copy of this step can read the node's block.
bool KvCache::IsReadable(NodeId node) const {
  return index_.is_on(node, Tier::kDevice) ||
         !is_host_written_[Index(index_.block(node, Tier::kHost))];
}

// Whether a copy of so many of the node's tokens beats computing them.
bool KvCache::IsWorthCopying(NodeId node, std::int32_t num_tokens) const {
  return IsReadable(node) &&
         (ReadablePlace(node).tier == Tier::kDevice ||
          num_tokens > config_.onload_cost_tokens + config_.onload_block_cost_tokens);
}

// The device block that this step's copies write is no source for another of them: their order is
// not given. What is onloaded has its host copy still.
KvCache::Place KvCache::ReadablePlace(NodeId node) const {
  const BlockId block = index_.block(node, Tier::kDevice);
  if (block != kNoBlock && !IsCopiedIntoNow(block)) {
    return {.tier = Tier::kDevice, .block = block};
  }
  return {.tier = Tier::kHost, .block = index_.block(node, Tier::kHost)};
}

}  // namespace antiphon
