#include "antiphon/block_pool.h"

#include <gtest/gtest.h>

namespace antiphon {
namespace {

TEST(BlockPool, ScratchIsNeverGivenOut) {
  BlockPool pool(4);

  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(pool.TakeClean(), kScratchBlock);
  }

  EXPECT_EQ(pool.num_available(), 0);
  EXPECT_THROW(pool.TakeClean(), InvariantError);
  pool.CheckInvariants();
}

TEST(BlockPool, BlockWithoutNodeIsCleanAgainAndUsedNext) {
  BlockPool pool(4);
  const BlockId block = pool.TakeClean();

  pool.DropReference(block);

  EXPECT_EQ(pool.num_clean(), 3);
  EXPECT_EQ(pool.TakeClean(), block);
}

TEST(BlockPool, BlockWithNodeIsKeptUntilItIsTheOldest) {
  BlockPool pool(4);
  const BlockId first = pool.TakeClean();
  const BlockId second = pool.TakeClean();
  pool.SetNode(first, 10);
  pool.SetNode(second, 20);

  pool.DropReference(second);
  pool.DropReference(first);

  EXPECT_EQ(pool.CachedBlocks(), (std::vector<BlockId>{second, first}));
  EXPECT_EQ(pool.DropOldest(), 20);
  EXPECT_EQ(pool.num_cached(), 1);
  EXPECT_EQ(pool.num_clean(), 2);
  pool.CheckInvariants();
}

TEST(BlockPool, ReferencedBlockLeavesTheMiddleOfTheAgeList) {
  BlockPool pool(5);
  std::vector<BlockId> blocks;
  for (NodeId node = 0; node < 3; ++node) {
    blocks.push_back(pool.TakeClean());
    pool.SetNode(blocks.back(), node);
  }
  for (const BlockId block : blocks) {
    pool.DropReference(block);
  }

  pool.AddReference(blocks[1]);

  EXPECT_EQ(pool.CachedBlocks(), (std::vector<BlockId>{blocks[0], blocks[2]}));
  EXPECT_EQ(pool.num_referenced(), 1);
  pool.CheckInvariants();
}

TEST(BlockPool, BlockStaysReferencedUntilAllLetGo) {
  BlockPool pool(3);
  const BlockId block = pool.TakeClean();
  pool.SetNode(block, 1);
  pool.AddReference(block);

  pool.DropReference(block);
  EXPECT_EQ(pool.num_cached(), 0);

  pool.DropReference(block);
  EXPECT_EQ(pool.num_cached(), 1);
  EXPECT_THROW(pool.DropReference(block), InvariantError);
}

TEST(BlockPool, CleanBlockCannotBeReferencedByName) {
  BlockPool pool(3);

  EXPECT_THROW(pool.AddReference(1), InvariantError);
  EXPECT_THROW(pool.AddReference(kScratchBlock), InvariantError);
}

}  // namespace
}  // namespace antiphon
