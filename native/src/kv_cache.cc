// Why eviction is O(1) and leaf-first without a search: a chain references the whole path from the
// root and lets go of it last block first. So a block is appended to the age list after all blocks
// below it, and the list's oldest block never has children.
#include "antiphon/kv_cache.h"

#include <algorithm>

namespace antiphon {

KvCache::KvCache(std::int32_t num_blocks, std::int32_t block_tokens, bool prefix_reuse,
                 ScopeTable* scopes)
    : block_tokens_(block_tokens),
      prefix_reuse_(prefix_reuse),
      scopes_(scopes),
      pool_(num_blocks),
      index_(num_blocks, block_tokens) {}

void KvCache::Match(ScopeId scope, std::span<const TokenId> tokens,
                    std::span<const std::uint64_t> hashes, std::int32_t max_blocks,
                    PrefixMatch& match) const {
  match.nodes.clear();
  match.num_live = 0;
  const auto width = static_cast<std::size_t>(block_tokens_);
  const std::size_t num_blocks = std::min(hashes.size(), static_cast<std::size_t>(max_blocks));
  ParentKey parent = ParentKey::Root(scope);
  for (std::size_t i = 0; i < num_blocks; ++i) {
    const NodeId node = index_.Find(parent, hashes[i], tokens.subspan(i * width, width));
    if (node == kNoNode) {
      return;
    }
    match.nodes.push_back(node);
    match.num_live += pool_.reference_count(index_.block(node)) > 0 ? 1 : 0;
    parent = ParentKey::Node(node);
  }
}

void KvCache::Claim(const PrefixMatch& match, BlockChain& chain) {
  ANTIPHON_CHECK(chain.blocks.empty());
  for (const NodeId node : match.nodes) {
    pool_.AddReference(index_.block(node));
    chain.blocks.push_back(index_.block(node));
    chain.tip = node;
  }
  chain.num_published = static_cast<std::int32_t>(match.nodes.size());
}

void KvCache::Extend(BlockChain& chain, std::int32_t count) {
  ANTIPHON_CHECK(num_available() >= count);
  for (std::int32_t i = 0; i < count; ++i) {
    if (pool_.num_clean() == 0) {
      DropOldestNode();
      ++num_evictions_;
    }
    chain.blocks.push_back(pool_.TakeClean());
  }
}

void KvCache::PublishNext(BlockChain& chain, std::uint64_t hash, std::span<const TokenId> tokens) {
  const auto next = static_cast<std::size_t>(chain.num_published);
  const ParentKey parent =
      chain.num_published == 0 ? ParentKey::Root(chain.scope) : ParentKey::Node(chain.tip);
  const BlockId own = chain.blocks[next];
  NodeId node = index_.Find(parent, hash, tokens);
  if (node == kNoNode) {
    node = index_.Insert(parent, hash, tokens, own);
    pool_.SetNode(own, node);
    scopes_->AddUse(chain.scope);
  } else {
    pool_.AddReference(index_.block(node));
    pool_.DropReference(own);
    chain.blocks[next] = index_.block(node);
    if (chain.num_published < chain.num_sent) {
      chain.moved.push_back(chain.num_published);
    }
  }
  chain.tip = node;
  ++chain.num_published;
  ++num_publications_;
}

void KvCache::Release(BlockChain& chain, std::int32_t num_wanted) {
  for (auto i = static_cast<std::int32_t>(chain.blocks.size()) - 1; i >= 0; --i) {
    const BlockId block = chain.blocks[static_cast<std::size_t>(i)];
    const NodeId node = pool_.node(block);
    if (i >= num_wanted && node != kNoNode && pool_.reference_count(block) == 1 &&
        index_.num_children(node) == 0) {
      RemoveNode(node);
      pool_.SetNode(block, kNoNode);
    }
    pool_.DropReference(block);
  }
  chain = BlockChain{};
}

std::int32_t KvCache::Flush() {
  std::int32_t count = 0;
  for (; pool_.num_cached() > 0; ++count) {
    DropOldestNode();
  }
  return count;
}

void KvCache::CheckInvariants() const {
  pool_.CheckInvariants();
  index_.CheckInvariants();
  std::int32_t num_nodes = 0;
  for (BlockId block = 1; block < pool_.num_blocks(); ++block) {
    const NodeId node = pool_.node(block);
    if (node == kNoNode) {
      continue;
    }
    ++num_nodes;
    Check(index_.alive(node) && index_.block(node) == block,
          "I6: block and node do not name each other");
    const ParentKey parent = index_.parent(node);
    Check(pool_.reference_count(block) == 0 || parent.is_root() ||
              pool_.reference_count(index_.block(parent.node())) > 0,
          "I6: a referenced node's parent is not referenced");
  }
  Check(num_nodes == index_.num_nodes(), "I6: a node has no block");
  std::vector<bool> seen(static_cast<std::size_t>(index_.max_nodes()), false);
  for (const BlockId block : pool_.CachedBlocks()) {
    const NodeId node = pool_.node(block);
    const ParentKey parent = index_.parent(node);
    Check(parent.is_root() || !seen[static_cast<std::size_t>(parent.node())],
          "I9: a node is older than one below it");
    seen[static_cast<std::size_t>(node)] = true;
  }
}

void KvCache::DropOldestNode() { RemoveNode(pool_.DropOldest()); }

void KvCache::RemoveNode(NodeId node) {
  const ScopeId scope = index_.scope(node);
  index_.Remove(node);
  scopes_->DropUse(scope);
}

}  // namespace antiphon
