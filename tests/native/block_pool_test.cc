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

TEST(BlockPool, BlockWithNodeIsCachedUntilItIsUntied) {
  BlockPool pool(4);
  const BlockId block = pool.TakeClean();
  pool.Tie(block, 10);

  EXPECT_TRUE(pool.DropReference(block));
  EXPECT_EQ(pool.CachedBlocks(), (std::vector<BlockId>{block}));
  EXPECT_EQ(pool.num_clean(), 2);
  EXPECT_EQ(pool.num_available(), 3);
  pool.CheckInvariants();

  pool.Untie(block);
  EXPECT_EQ(pool.num_cached(), 0);
  EXPECT_EQ(pool.num_clean(), 3);
  pool.CheckInvariants();
}

TEST(BlockPool, ReferencedBlockIsNoLongerCached) {
  BlockPool pool(4);
  const BlockId block = pool.TakeClean();
  pool.Tie(block, 10);
  pool.DropReference(block);

  EXPECT_TRUE(pool.AddReference(block));
  EXPECT_FALSE(pool.AddReference(block));

  EXPECT_EQ(pool.num_cached(), 0);
  EXPECT_EQ(pool.num_referenced(), 1);
  EXPECT_EQ(pool.reference_count(block), 2);
}

TEST(BlockPool, BlockThatIsUntiedWhileReferencedIsCleanWhenAllHaveLetGo) {
  BlockPool pool(4);
  const BlockId block = pool.TakeClean();
  pool.Tie(block, 10);
  pool.AddReference(block);

  pool.Untie(block);
  EXPECT_FALSE(pool.DropReference(block));
  EXPECT_EQ(pool.num_clean(), 2);
  EXPECT_FALSE(pool.DropReference(block));

  EXPECT_EQ(pool.num_clean(), 3);
  EXPECT_THROW(pool.DropReference(block), InvariantError);
}

TEST(BlockPool, ABlockIsTiedToOneNodeAtATime) {
  BlockPool pool(4);
  const BlockId block = pool.TakeClean();
  pool.Tie(block, 10);

  EXPECT_THROW(pool.Tie(block, 11), InvariantError);
  pool.Untie(block);
  EXPECT_THROW(pool.Untie(block), InvariantError);
}

TEST(BlockPool, TheHostsPoolMayBeEmpty) {
  const BlockPool pool(1);

  EXPECT_EQ(pool.num_available(), 0);
  pool.CheckInvariants();
}

TEST(BlockPool, CleanBlockCannotBeReferencedByName) {
  BlockPool pool(3);

  EXPECT_THROW(pool.AddReference(1), InvariantError);
  EXPECT_THROW(pool.AddReference(kScratchBlock), InvariantError);
}

}  // namespace
}  // namespace antiphon
