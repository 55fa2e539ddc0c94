#include "antiphon/capacity.h"

#include <gtest/gtest.h>

namespace antiphon {
namespace {

TEST(NoEvictCapacity, LastOutputTokenNeedsNoBlock) {
  EXPECT_EQ(NoEvictCapacity::BlocksToCompletion(8, 1, 4), 2);
  EXPECT_EQ(NoEvictCapacity::BlocksToCompletion(8, 2, 4), 3);
  EXPECT_EQ(NoEvictCapacity::BlocksToCompletion(1, 1, 4), 1);
}

TEST(NoEvictCapacity, OnlyLiveHitsAreFree) {
  NoEvictCapacity capacity;

  EXPECT_FALSE(capacity.Fits(/*num_needed=*/5, /*num_live_hits=*/0, /*num_available=*/4));
  EXPECT_TRUE(capacity.Fits(/*num_needed=*/5, /*num_live_hits=*/1, /*num_available=*/4));
}

TEST(NoEvictCapacity, WhatIsPromisedIsNotPromisedAgain) {
  NoEvictCapacity capacity;
  capacity.Reserve(3);

  EXPECT_FALSE(capacity.Fits(2, 0, 4));
  EXPECT_TRUE(capacity.Fits(1, 0, 4));
  capacity.Settle(1);
  EXPECT_TRUE(capacity.Fits(2, 0, 4));
  EXPECT_EQ(capacity.Unreserved(4), 2);
}

TEST(NoEvictCapacity, RefusesToSettleMoreThanIsReserved) {
  NoEvictCapacity capacity;
  capacity.Reserve(1);

  EXPECT_THROW(capacity.Settle(2), InvariantError);
}

}  // namespace
}  // namespace antiphon
