#include "antiphon/capacity.h"

#include <gtest/gtest.h>

namespace antiphon {
namespace {

TEST(Capacity, WhatIsPromisedIsNotPromisedAgain) {
  Capacity capacity({.num_blocks = 8});
  capacity.Reserve(3);

  EXPECT_EQ(capacity.Headroom({}, /*num_available=*/4), 1);
  capacity.Settle(1);
  EXPECT_EQ(capacity.Headroom({}, 4), 2);
  EXPECT_EQ(capacity.Unreserved(4), 2);
}

TEST(Capacity, RefusesToSettleMoreThanIsReserved) {
  Capacity capacity({.num_blocks = 8});
  capacity.Reserve(1);

  EXPECT_THROW(capacity.Settle(2), InvariantError);
}

TEST(Capacity, PromisesTheNextTokenOnlyUnderMaxUtilization) {
  EXPECT_EQ(Capacity({.policy = CapacityPolicy::kMaxUtilization}).BlocksToPromise(9, 3), 3);
  EXPECT_EQ(Capacity({.policy = CapacityPolicy::kGuaranteedNoEvict}).BlocksToPromise(9, 3), 9);
  EXPECT_EQ(Capacity({.policy = CapacityPolicy::kStaticBatch}).BlocksToPromise(9, 3), 9);
}

TEST(Capacity, WatermarkIsLeftFreeWhileOthersRun) {
  const Capacity chosen(
      {.policy = CapacityPolicy::kMaxUtilization, .num_blocks = 500, .watermark_blocks = 7});
  const Capacity automatic({.policy = CapacityPolicy::kMaxUtilization, .num_blocks = 500});

  EXPECT_EQ(chosen.Headroom({.num_running = 3}, 20), 13);
  EXPECT_EQ(chosen.Headroom({.num_running = 0}, 20), 20);
  EXPECT_EQ(automatic.Headroom({.num_running = 3}, 20), 20 - 5 - 3);
}

TEST(Capacity, NobodyIsAdmittedSoonAfterAPauseUnlessNobodyRuns) {
  Capacity capacity({.policy = CapacityPolicy::kMaxUtilization, .cooldown_steps = 2});
  EXPECT_TRUE(capacity.MayAdmit({.num_running = 1, .num_plans = 5}));
  capacity.NotePause(/*num_plans=*/5);

  EXPECT_FALSE(capacity.MayAdmit({.num_running = 1, .num_plans = 7}));
  EXPECT_TRUE(capacity.MayAdmit({.num_running = 1, .num_plans = 8}));
  EXPECT_TRUE(capacity.MayAdmit({.num_running = 0, .num_plans = 6}));
}

TEST(Capacity, AStaticBatchIsClosedWhileAnyoneDecodes) {
  const Capacity capacity({.policy = CapacityPolicy::kStaticBatch});

  EXPECT_TRUE(capacity.MayAdmit({.num_running = 2, .any_decoding = false}));
  EXPECT_FALSE(capacity.MayAdmit({.num_running = 2, .any_decoding = true}));
}

}  // namespace
}  // namespace antiphon
