// Publishing what chains have computed, and what becomes of it when they let go. Nothing here
// allocates a block, so that nothing can be evicted while the index changes.
#include <algorithm>

#include "antiphon/kv_cache.h"

namespace antiphon {

BlockId KvCache::PublishNext(BlockChain& chain, std::uint64_t hash,
                             std::span<const TokenId> tokens) {
  ANTIPHON_CHECK(config_.prefix_reuse);
  const std::size_t next = Index(chain.num_published);
  const ParentKey parent = NextParent(chain);
  const BlockId own = chain.blocks[next];
  const NodeId partial = device_.node(own);
  NodeId node = index_.Find(parent, hash, tokens);
  BlockId replaced = kNoBlock;
  if (node == kNoNode) {
    node = partial;
    if (partial == kNoNode) {
      node = InsertNode(parent, chain.scope, hash, tokens, own);
      order_.Retain(node, chain.retention);
    } else {
      GrowNode(partial, hash, tokens);
    }
    Record(KvEventKind::kStored, node);
  } else {
    if (partial != kNoNode) {
      order_.Inherit(node, partial);
      RemoveNode(partial);
    }
    const BlockId published = index_.block(node, Tier::kDevice);
    if (published == kNoBlock) {
      AttachDeviceBlock(node, own);
    } else if (device_.reference_count(published) == 0) {
      // Nobody uses the other copy: it goes at once, and nothing has to be held any longer.
      device_.Untie(published);
      index_.SetBlock(node, Tier::kDevice, own);
      device_.Tie(own, node);
      RefreshCandidate(node);
    } else {
      device_.AddReference(published);
      chain.blocks[next] = published;
      replaced = own;
      if (chain.num_published < chain.num_sent) {
        chain.moved.push_back(chain.num_published);
      }
    }
  }
  chain.tip = node;
  ++chain.num_published;
  ForgetSuperseded(node);
  return replaced;
}

void KvCache::PublishPartial(const BlockChain& chain, std::span<const TokenId> tokens) {
  ANTIPHON_CHECK(!tokens.empty() && tokens.size() < Index(config_.block_tokens));
  if (config_.prefix_reuse && config_.partial_reuse) {
    PublishTail(chain, chain.blocks[Index(chain.num_published)], tokens);
  }
}

NodeId KvCache::Release(BlockChain& chain, std::span<const TokenId> tokens,
                        std::int32_t num_wanted) {
  NodeId last = kNoNode;
  if (config_.prefix_reuse && !chain.blocks.empty()) {
    const std::span<const TokenId> wanted =
        tokens.first(std::min(tokens.size(), Index(std::max(num_wanted, 0))));
    PublishWanted(chain, wanted);
    ForgetUnwanted(chain, wanted.size());
    last = KeepTail(chain, wanted);
  }
  for (std::size_t i = chain.blocks.size(); i > 0; --i) {
    DropReference(chain.blocks[i - 1]);
  }
  chain.blocks.clear();
  chain.moved.clear();
  chain.num_published = 0;
  chain.num_sent = 0;
  chain.tip = kNoNode;
  return last;
}

void KvCache::PublishWanted(BlockChain& chain, std::span<const TokenId> wanted) {
  const std::size_t width = Index(config_.block_tokens);
  const std::size_t num_whole = std::min(wanted.size() / width, chain.blocks.size());
  while (Index(chain.num_published) < num_whole) {
    const std::span<const TokenId> tokens =
        wanted.subspan(Index(chain.num_published) * width, width);
    const BlockId replaced = PublishNext(chain, HashTokens(tokens), tokens);
    if (replaced != kNoBlock) {
      DropReference(replaced);
    }
  }
}

// Removes the nodes that hold more than the wanted tokens, deepest first, up to one that somebody
// else needs.
void KvCache::ForgetUnwanted(BlockChain& chain, std::size_t num_wanted) {
  const std::size_t width = Index(config_.block_tokens);
  if (const std::size_t next = Index(chain.num_published); next < chain.blocks.size()) {
    const NodeId partial = device_.node(chain.blocks[next]);
    if (partial != kNoNode && next * width + index_.tokens(partial).size() > num_wanted &&
        !IsNeededByOthers(partial)) {
      RemoveNode(partial);
    }
  }
  while (Index(chain.num_published) * width > num_wanted && !IsNeededByOthers(chain.tip)) {
    const ParentKey parent = index_.parent(chain.tip);
    RemoveNode(chain.tip);
    chain.tip = parent.is_root() ? kNoNode : parent.node();
    --chain.num_published;
  }
}

// Publishes the wanted tokens behind the last whole block and retains the wanted nodes. Returns the
// last of those.
NodeId KvCache::KeepTail(BlockChain& chain, std::span<const TokenId> wanted) {
  const std::size_t width = Index(config_.block_tokens);
  const std::size_t num_whole = std::min(wanted.size() / width, Index(chain.num_published));
  NodeId last = kNoNode;
  for (std::size_t i = 0; i < num_whole; ++i) {
    last = device_.node(chain.blocks[i]);
    order_.Retain(last, chain.retention);
  }
  const std::span<const TokenId> tail = wanted.subspan(num_whole * width);
  if (tail.empty() || num_whole == chain.blocks.size()) {
    return last;
  }
  const BlockId block = chain.blocks[num_whole];
  if (num_whole < Index(chain.num_published)) {
    return device_.node(block);  // a whole node, which somebody else needs
  }
  // What this step is yet to copy into the block is not there for another copy to read.
  if (config_.partial_reuse && tail.size() < width && !IsCopiedIntoNow(block)) {
    PublishTail(chain, block, tail);
  }
  const NodeId partial = device_.node(block);
  if (partial == kNoNode) {
    return last;
  }
  const Beginning other = LongestBeginning(NextParent(chain), index_.tokens(partial), partial,
                                           /*is_for_copy=*/false);
  if (Index(other.num_tokens) == index_.tokens(partial).size() && !IsNeededByOthers(partial)) {
    order_.Inherit(other.node, partial);
    RemoveNode(partial);
    return other.node;
  }
  order_.Retain(partial, chain.retention);
  return partial;
}

// Publishes the beginning of the block that follows the chain's published part.
void KvCache::PublishTail(const BlockChain& chain, BlockId block, std::span<const TokenId> tokens) {
  const ParentKey parent = NextParent(chain);
  NodeId node = device_.node(block);
  const Beginning other = LongestBeginning(parent, tokens, node, /*is_for_copy=*/false);
  if (Index(other.num_tokens) == tokens.size()) {
    const bool is_equal = index_.tokens(other.node).size() == tokens.size();
    if (node == kNoNode && is_equal && !index_.is_on(other.node, Tier::kDevice)) {
      AttachDeviceBlock(other.node, block);
    }
    return;
  }
  if (node == kNoNode) {
    node = InsertNode(parent, chain.scope, /*hash=*/0, tokens, block);
    order_.Retain(node, chain.retention);
  } else if (index_.tokens(node).size() < tokens.size()) {
    GrowNode(node, /*hash=*/0, tokens);
  }
  ForgetSuperseded(node);
}

// Removes partial siblings that the node begins with, unless they are in use.
void KvCache::ForgetSuperseded(NodeId node) {
  const ParentKey parent = index_.parent(node);
  if (index_.num_partial_children(parent) == 0) {
    return;
  }
  const std::span<const TokenId> tokens = index_.tokens(node);
  NodeId next = kNoNode;
  std::int32_t num_left = kMaxScannedChildren;
  for (NodeId other = index_.first_child(parent); other != kNoNode && num_left > 0;
       other = next, --num_left) {
    next = index_.next_sibling(other);
    const BlockId block = index_.block(other, Tier::kDevice);
    if (other == node || index_.is_whole(other) || index_.num_marks(other) > 0 ||
        (block != kNoBlock && device_.reference_count(block) > 0)) {
      continue;
    }
    if (Index(index_.CommonTokens(other, tokens)) == index_.tokens(other).size()) {
      order_.Inherit(node, other);
      RemoveNode(other);
    }
  }
}

NodeId KvCache::InsertNode(ParentKey parent, ScopeId scope, std::uint64_t hash,
                           std::span<const TokenId> tokens, BlockId block) {
  const NodeId node = index_.Insert(parent, scopes_->hash(scope), hash, tokens);
  index_.SetBlock(node, Tier::kDevice, block);
  device_.Tie(block, node);
  scopes_->AddUse(scope);
  return node;
}

// A host copy holds only the tokens that were there when it was made.
void KvCache::GrowNode(NodeId node, std::uint64_t hash, std::span<const TokenId> tokens) {
  if (const BlockId copy = index_.block(node, Tier::kHost); copy != kNoBlock) {
    index_.SetBlock(node, Tier::kHost, kNoBlock);
    host_.Untie(copy);
    RefreshCandidate(node);
  }
  index_.Grow(node, hash, tokens);
}

void KvCache::AttachDeviceBlock(NodeId node, BlockId block) {
  index_.SetBlock(node, Tier::kDevice, block);
  device_.Tie(block, node);
  RefreshCandidate(node);
  RefreshParent(index_.parent(node));
  Record(KvEventKind::kMoved, node);
}

bool KvCache::IsNeededByOthers(NodeId node) const {
  const BlockId block = index_.block(node, Tier::kDevice);
  return index_.num_children(node) > 0 || index_.num_marks(node) > 0 ||
         device_.reference_count(block) - num_device_holds_[Index(block)] > 1;
}

}  // namespace antiphon
