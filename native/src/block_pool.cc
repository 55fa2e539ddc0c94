// The clean stack is LIFO: the block used last is warm in the caches. Which cached block goes first
// is not decided here but in EvictionOrder, which knows the tree.
#include "antiphon/block_pool.h"

namespace antiphon {

BlockPool::BlockPool(std::int32_t num_blocks) {
  ANTIPHON_CHECK(num_blocks >= 1);
  const auto size = static_cast<std::size_t>(num_blocks);
  references_.resize(size, 0);
  nodes_.resize(size, kNoNode);
  clean_.reserve(size);
  for (BlockId block = num_blocks - 1; block > kScratchBlock; --block) {
    clean_.push_back(block);
  }
}

BlockId BlockPool::TakeClean() {
  ANTIPHON_CHECK(!clean_.empty());
  const BlockId block = clean_.back();
  clean_.pop_back();
  references_[Index(block)] = 1;
  ++num_referenced_;
  return block;
}

bool BlockPool::AddReference(BlockId block) {
  ANTIPHON_CHECK(block != kScratchBlock);
  if (references_[Index(block)] > 0) {
    ++references_[Index(block)];
    return false;
  }
  ANTIPHON_CHECK(nodes_[Index(block)] != kNoNode);
  references_[Index(block)] = 1;
  --num_cached_;
  ++num_referenced_;
  ++num_transitions_;
  return true;
}

bool BlockPool::DropReference(BlockId block) {
  ANTIPHON_CHECK(block != kScratchBlock && references_[Index(block)] > 0);
  if (--references_[Index(block)] > 0) {
    return false;
  }
  --num_referenced_;
  ++num_transitions_;
  if (nodes_[Index(block)] == kNoNode) {
    clean_.push_back(block);
    return false;
  }
  ++num_cached_;
  return true;
}

void BlockPool::Tie(BlockId block, NodeId node) {
  ANTIPHON_CHECK(references_[Index(block)] > 0);
  ANTIPHON_CHECK(nodes_[Index(block)] == kNoNode && node != kNoNode);
  nodes_[Index(block)] = node;
}

void BlockPool::Untie(BlockId block) {
  ANTIPHON_CHECK(nodes_[Index(block)] != kNoNode);
  nodes_[Index(block)] = kNoNode;
  if (references_[Index(block)] == 0) {
    --num_cached_;
    clean_.push_back(block);
  }
}

std::vector<BlockId> BlockPool::CachedBlocks() const {
  std::vector<BlockId> blocks;
  blocks.reserve(static_cast<std::size_t>(num_cached_));
  for (BlockId block = 1; block < num_blocks(); ++block) {
    if (references_[Index(block)] == 0 && nodes_[Index(block)] != kNoNode) {
      blocks.push_back(block);
    }
  }
  return blocks;
}

void BlockPool::CheckInvariants() const {
  std::vector<bool> clean(references_.size(), false);
  for (const BlockId block : clean_) {
    Check(block > kScratchBlock && block < num_blocks(), "I2: the clean stack names no block");
    Check(!clean[Index(block)], "I2: a block is on the clean stack twice");
    Check(nodes_[Index(block)] == kNoNode, "I2: a clean block has a node");
    clean[Index(block)] = true;
  }
  Check(references_[Index(kScratchBlock)] == 0 && nodes_[Index(kScratchBlock)] == kNoNode,
        "I4: scratch is in use");
  std::int32_t num_referenced = 0;
  std::int32_t num_cached = 0;
  for (BlockId block = 1; block < num_blocks(); ++block) {
    const std::int32_t count = references_[Index(block)];
    Check(count >= 0, "I3: a reference count is negative");
    Check(count == 0 || !clean[Index(block)], "I4: a referenced block is on the clean stack");
    const bool is_cached = count == 0 && nodes_[Index(block)] != kNoNode;
    Check(count > 0 || is_cached || clean[Index(block)], "I2: a block is in no place");
    num_referenced += count > 0 ? 1 : 0;
    num_cached += is_cached ? 1 : 0;
  }
  Check(num_cached == num_cached_, "I2: the count of cached blocks is wrong");
  Check(num_referenced == num_referenced_, "I2: the count of referenced blocks is wrong");
  Check(num_clean() + num_cached_ + num_referenced_ + 1 == num_blocks(), "I1: blocks are lost");
}

}  // namespace antiphon
