#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "antiphon/block_pool.h"
#include "antiphon/prefix_index.h"
#include "antiphon/scope_table.h"
#include "antiphon/types.h"

namespace antiphon {

// The blocks of one request, in order of position.
struct BlockChain {
  ScopeId scope = 0;
  std::vector<BlockId> blocks;
  std::int32_t num_published = 0;   // leading blocks that are nodes of the index
  NodeId tip = kNoNode;             // node of the last of those
  std::int32_t num_sent = 0;        // leading blocks that the device's block table has
  std::vector<std::int32_t> moved;  // indices below num_sent whose block has changed since
};

// A prefix found in the index: its blocks, and how many of them a live request references.
struct PrefixMatch {
  std::vector<NodeId> nodes;
  std::int32_t num_live = 0;
};

// Pool and index as one: the cache of KV blocks that requests share.
//
// Invariants (beside those of its parts):
//  1. A block's reference count is the number of chains that name it.
//  2. The published part of a chain is a path of the index from its scope's root. So an ancestor of
//  a
//     referenced node is referenced, and has been let go no earlier than its descendants; the
//     oldest cached block is always a leaf, and every cached block can be evicted.
//  3. A block is published only when its KV is computed.
//
// Not thread-safe.
class KvCache {
 public:
  // `scopes` outlives the cache. Without `prefix_reuse` nothing is ever published.
  KvCache(std::int32_t num_blocks, std::int32_t block_tokens, bool prefix_reuse,
          ScopeTable* scopes);

  // Finds the longest published prefix of `tokens`, of at most `max_blocks` blocks. `hashes` has
  // one entry a block. Changes nothing. O(blocks found).
  void Match(ScopeId scope, std::span<const TokenId> tokens, std::span<const std::uint64_t> hashes,
             std::int32_t max_blocks, PrefixMatch& match) const;

  // Makes a found prefix the start of an empty chain.
  // REQUIRES: the index has not changed since Match()
  void Claim(const PrefixMatch& match, BlockChain& chain);

  // Adds `count` blocks to a chain; evicts the oldest cached ones where no clean one is left.
  // REQUIRES: num_available() >= count
  void Extend(BlockChain& chain, std::int32_t count);

  // Publishes the chain's next block, which holds `tokens`. Where that content is published
  // already, the chain moves to the published block and gives its own back, so that memory in use
  // never grows. REQUIRES: the block is full and computed
  void PublishNext(BlockChain& chain, std::uint64_t hash, std::span<const TokenId> tokens);

  // Lets go of all blocks, last first. Those from `num_wanted` on that nobody else needs are
  // emptied; the published others stay cached. Leaves an empty chain: a second call changes
  // nothing.
  void Release(BlockChain& chain, std::int32_t num_wanted);

  // Empties every cached block and returns how many they were.
  std::int32_t Flush();

  // Grows with every publication: while it and what is available stand still, no request fits that
  // did not fit before.
  std::uint64_t num_publications() const { return num_publications_; }

  bool reuses_prefixes() const { return prefix_reuse_; }
  std::int32_t block_tokens() const { return block_tokens_; }
  std::int32_t num_available() const { return pool_.num_available(); }
  std::int64_t num_evictions() const { return num_evictions_; }
  const BlockPool& pool() const { return pool_; }
  const PrefixIndex& index() const { return index_; }

  // Checks what pool and index must have in common, O(blocks).
  void CheckInvariants() const;

 private:
  void DropOldestNode();
  void RemoveNode(NodeId node);

  std::int32_t block_tokens_;
  bool prefix_reuse_;
  ScopeTable* scopes_;
  BlockPool pool_;
  PrefixIndex index_;
  std::uint64_t num_publications_ = 0;
  std::int64_t num_evictions_ = 0;
};

}  // namespace antiphon
