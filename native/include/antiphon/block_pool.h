#pragma once

#include <cstdint>
#include <vector>

#include "antiphon/types.h"

namespace antiphon {

// The blocks of one memory tier: who uses them, and which are empty.
//
// A block is scratch (block 0, which on the host is nothing), clean (empty, on a LIFO stack),
// cached (unreferenced, but a node of the prefix index lies in it) or referenced. All operations
// are O(1).
//
// Invariants:
//  1. A block is in exactly one of those four states, so that their counts add up to all blocks.
//  2. A referenced block is not on the clean stack.
//  3. A clean block has no node; a cached one has.
//
// Not thread-safe.
class BlockPool {
 public:
  // Block 0 counts among `num_blocks`.
  // REQUIRES: num_blocks >= 1
  explicit BlockPool(std::int32_t num_blocks);

  // Takes an empty block, with one reference.
  // REQUIRES: num_clean() > 0
  BlockId TakeClean();

  // Returns whether it is the first reference, so that the block was cached.
  bool AddReference(BlockId block);

  // Lets go of one reference. The last one makes the block cached if it has a node, else clean.
  // Returns whether it is cached now.
  bool DropReference(BlockId block);

  // Ties a block to the node that lies in it.
  // REQUIRES: the block is referenced and has no node
  void Tie(BlockId block, NodeId node);

  // Takes a block's node away. A cached block is clean then.
  // REQUIRES: the block has a node
  void Untie(BlockId block);

  std::int32_t reference_count(BlockId block) const { return references_[Index(block)]; }
  NodeId node(BlockId block) const { return nodes_[Index(block)]; }

  std::int32_t num_blocks() const { return static_cast<std::int32_t>(references_.size()); }
  std::int32_t num_clean() const { return static_cast<std::int32_t>(clean_.size()); }
  std::int32_t num_cached() const { return num_cached_; }
  std::int32_t num_referenced() const { return num_referenced_; }

  // Grows whenever a block's first reference comes or its last goes.
  std::uint64_t num_transitions() const { return num_transitions_; }

  // Blocks that an allocation can get.
  std::int32_t num_available() const { return num_clean() + num_cached_; }

  // For checks and dumps; CachedBlocks is O(blocks) and in order of id.
  const std::vector<BlockId>& clean_blocks() const { return clean_; }
  std::vector<BlockId> CachedBlocks() const;

  // Checks the invariants above, O(blocks).
  void CheckInvariants() const;

 private:
  static std::size_t Index(BlockId block) { return static_cast<std::size_t>(block); }

  std::vector<std::int32_t> references_;
  std::vector<NodeId> nodes_;
  std::vector<BlockId> clean_;
  std::int32_t num_cached_ = 0;
  std::int32_t num_referenced_ = 0;
  std::uint64_t num_transitions_ = 0;
};

}  // namespace antiphon
