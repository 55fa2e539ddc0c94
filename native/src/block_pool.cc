// The age list is doubly linked through two arrays, so that a block leaves its middle in O(1) when
// a prefix hit references it again. The clean stack is LIFO: the block used last is warm in the
// caches.
#include "antiphon/block_pool.h"

namespace antiphon {

BlockPool::BlockPool(std::int32_t num_blocks) {
  ANTIPHON_CHECK(num_blocks >= 2);
  const auto size = static_cast<std::size_t>(num_blocks);
  references_.resize(size, 0);
  nodes_.resize(size, kNoNode);
  older_.resize(size, kNoBlock);
  newer_.resize(size, kNoBlock);
  last_use_.resize(size, 0);
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

NodeId BlockPool::DropOldest() {
  ANTIPHON_CHECK(first_ != kNoBlock);
  const BlockId block = first_;
  const NodeId node = nodes_[Index(block)];
  RemoveFromAgeList(block);
  nodes_[Index(block)] = kNoNode;
  clean_.push_back(block);
  return node;
}

void BlockPool::AddReference(BlockId block) {
  ANTIPHON_CHECK(block != kScratchBlock);
  if (references_[Index(block)]++ > 0) {
    return;
  }
  ANTIPHON_CHECK(nodes_[Index(block)] != kNoNode);
  RemoveFromAgeList(block);
  ++num_referenced_;
}

void BlockPool::DropReference(BlockId block) {
  ANTIPHON_CHECK(block != kScratchBlock && references_[Index(block)] > 0);
  if (--references_[Index(block)] > 0) {
    return;
  }
  --num_referenced_;
  if (nodes_[Index(block)] == kNoNode) {
    clean_.push_back(block);
  } else {
    last_use_[Index(block)] = ++tick_;
    AppendToAgeList(block);
  }
}

void BlockPool::SetNode(BlockId block, NodeId node) {
  ANTIPHON_CHECK(references_[Index(block)] > 0);
  nodes_[Index(block)] = node;
}

std::vector<BlockId> BlockPool::CachedBlocks() const {
  std::vector<BlockId> blocks;
  blocks.reserve(static_cast<std::size_t>(num_cached_));
  for (BlockId block = first_; block != kNoBlock; block = newer_[Index(block)]) {
    blocks.push_back(block);
    Check(blocks.size() <= references_.size(), "I2: the age list has a cycle");
  }
  return blocks;
}

void BlockPool::CheckInvariants() const {
  std::vector<int> num_places(references_.size(), 0);
  ++num_places[Index(kScratchBlock)];
  for (const BlockId block : clean_) {
    ++num_places[Index(block)];
    Check(nodes_[Index(block)] == kNoNode, "I2: a clean block has a node");
  }
  const std::vector<BlockId> cached = CachedBlocks();
  std::uint64_t last_tick = 0;
  for (const BlockId block : cached) {
    ++num_places[Index(block)];
    Check(nodes_[Index(block)] != kNoNode, "I2: a cached block has no node");
    Check(last_use_[Index(block)] > last_tick, "I9: the age list is out of order");
    last_tick = last_use_[Index(block)];
  }
  std::int32_t num_referenced = 0;
  for (BlockId block = 1; block < num_blocks(); ++block) {
    const std::int32_t count = references_[Index(block)];
    Check(count >= 0, "I3: a reference count is negative");
    Check(count == 0 || num_places[Index(block)] == 0, "I4: a referenced block is on a free list");
    num_places[Index(block)] += count > 0 ? 1 : 0;
    num_referenced += count > 0 ? 1 : 0;
  }
  Check(references_[Index(kScratchBlock)] == 0, "I4: scratch is referenced");
  for (const int places : num_places) {
    Check(places == 1, "I2: a block is in no place or in several");
  }
  Check(static_cast<std::int32_t>(cached.size()) == num_cached_,
        "I2: the age list's count is wrong");
  Check(num_referenced == num_referenced_, "I2: the count of referenced blocks is wrong");
  Check(num_clean() + num_cached_ + num_referenced_ + 1 == num_blocks(), "I1: blocks are lost");
}

void BlockPool::AppendToAgeList(BlockId block) {
  older_[Index(block)] = last_;
  newer_[Index(block)] = kNoBlock;
  (last_ == kNoBlock ? first_ : newer_[Index(last_)]) = block;
  last_ = block;
  ++num_cached_;
}

void BlockPool::RemoveFromAgeList(BlockId block) {
  const BlockId older = older_[Index(block)];
  const BlockId newer = newer_[Index(block)];
  (older == kNoBlock ? first_ : newer_[Index(older)]) = newer;
  (newer == kNoBlock ? last_ : older_[Index(newer)]) = older;
  older_[Index(block)] = kNoBlock;
  newer_[Index(block)] = kNoBlock;
  --num_cached_;
}

}  // namespace antiphon
