#pragma once

#include <cstdint>
#include <vector>

#include "antiphon/types.h"

namespace antiphon {

// The blocks of one memory tier: who uses them, which are empty, and which may be taken away.
//
// A block is scratch (block 0), clean (empty, on a LIFO stack), cached (unreferenced, but named by
// a node of the prefix index, on the age list) or referenced. All operations are O(1).
//
// Invariants:
//  1. A block is in exactly one of those four states, so that their counts add up to all blocks.
//  2. A referenced block is on neither list.
//  3. A clean block has no node; a cached one has.
//  4. Blocks on the age list are in the order in which they were last let go.
//
// Not thread-safe.
class BlockPool {
 public:
  // REQUIRES: num_blocks >= 2
  explicit BlockPool(std::int32_t num_blocks);

  // Takes an empty block, with one reference.
  // REQUIRES: num_clean() > 0
  BlockId TakeClean();

  // Takes the block off the age list that was let go longest ago, and makes it clean. The caller
  // removes its node from the index, which is returned.
  // REQUIRES: num_cached() > 0
  NodeId DropOldest();

  void AddReference(BlockId block);

  // Lets go of one reference. The last one makes the block cached if it has a node, else clean.
  void DropReference(BlockId block);

  // Ties a block to the node whose content it holds, or (kNoNode) unties it.
  // REQUIRES: the block is referenced
  void SetNode(BlockId block, NodeId node);

  std::int32_t reference_count(BlockId block) const { return references_[Index(block)]; }
  NodeId node(BlockId block) const { return nodes_[Index(block)]; }
  BlockId oldest() const { return first_; }

  std::int32_t num_blocks() const { return static_cast<std::int32_t>(references_.size()); }
  std::int32_t num_clean() const { return static_cast<std::int32_t>(clean_.size()); }
  std::int32_t num_cached() const { return num_cached_; }
  std::int32_t num_referenced() const { return num_referenced_; }

  // Blocks that an allocation can get.
  std::int32_t num_available() const { return num_clean() + num_cached_; }

  // For checks and dumps: O(blocks).
  const std::vector<BlockId>& clean_blocks() const { return clean_; }
  std::vector<BlockId> CachedBlocks() const;

  // Checks the invariants above, O(blocks).
  void CheckInvariants() const;

 private:
  static std::size_t Index(BlockId block) { return static_cast<std::size_t>(block); }
  void AppendToAgeList(BlockId block);
  void RemoveFromAgeList(BlockId block);

  std::vector<std::int32_t> references_;
  std::vector<NodeId> nodes_;
  std::vector<BlockId> older_;
  std::vector<BlockId> newer_;
  std::vector<std::uint64_t> last_use_;  // logical tick of the last release
  std::vector<BlockId> clean_;
  BlockId first_ = kNoBlock;
  BlockId last_ = kNoBlock;
  std::int32_t num_cached_ = 0;
  std::int32_t num_referenced_ = 0;
  std::uint64_t tick_ = 0;
};

}  // namespace antiphon
