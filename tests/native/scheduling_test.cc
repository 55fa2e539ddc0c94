// Who is admitted, who waits for whom, and how a step's tokens are shared.
#include <gtest/gtest.h>

#include <algorithm>

#include "small_engine.h"

namespace antiphon {
namespace {

using Rows = std::vector<Handle>;

TEST(Admission, ASmallOneMayPassOneThatDoesNotFit) {
  Engine engine(SmallWith([](CoreConfig& config) { config.bypass_requests = 1; }));
  const Handle running = engine.SubmitFrom(1, 2, 9);  // 5 of the 8 blocks
  const Handle large = engine.SubmitFrom(20, 6, 3);   // 4
  const Handle first_small = engine.SubmitFrom(40, 2, 1);
  const Handle second_small = engine.SubmitFrom(60, 2, 1);

  engine.Step();

  EXPECT_EQ(engine.rows(), (Rows{running, first_small}));
  EXPECT_EQ(engine.stats().num_bypasses_total, 1);
  engine.Step();
  EXPECT_EQ(engine.rows(), (Rows{running}));  // passed once, and no more
  while (engine.Step() && engine.rows().back() == running) {
  }
  EXPECT_EQ(engine.rows(), (Rows{large, second_small}));
}

TEST(Admission, NobodyPassesForLongerThanTheBound) {
  Engine engine(SmallWith([](CoreConfig& config) { config.bypass_steps = 2; }));
  const Handle running = engine.SubmitFrom(1, 2, 9);
  engine.SubmitFrom(20, 6, 3);
  engine.Step();
  engine.Step();
  engine.SubmitFrom(40, 2, 1);

  engine.Step();

  EXPECT_EQ(engine.rows(), (Rows{running}));
}

TEST(Admission, WithoutBypassTheOrderIsStrict) {
  Engine engine(SmallWith([](CoreConfig& config) { config.bypass_requests = 0; }));
  const Handle running = engine.SubmitFrom(1, 2, 9);
  engine.SubmitFrom(20, 6, 3);
  engine.SubmitFrom(40, 2, 1);

  engine.Step();

  EXPECT_EQ(engine.rows(), (Rows{running}));
}

TEST(Admission, WaitsForABlockThatAnotherComputesInThisStep) {
  Engine engine;
  engine.Submit(7, 1);
  engine.Submit(7, 1);

  engine.Step();
  EXPECT_EQ(engine.header(kHeaderNumRows), 1);
  EXPECT_EQ(engine.stats().num_deferrals_total, 1);
  engine.Step();

  EXPECT_EQ(engine.out().reused_tokens[0], 6);
}

TEST(Admission, WaitsForNobodyWhoGetsNoRow) {
  Engine engine(SmallWith([](CoreConfig& config) {
    config.num_blocks = 20;
    config.max_rows = 4;
    config.max_step_tokens = 5;
  }));
  engine.SubmitFrom(1, 15, 1);
  engine.Step();
  // Behind it there is a token left, too little for a block of the second; the third has that block
  // too and must not wait for it.
  const Handle second = engine.SubmitFrom(40, 3, 1);
  const Handle third = engine.SubmitFrom(40, 3, 1);
  for (int i = 0; i < 20 && engine.Step(); ++i) {
    EXPECT_GT(engine.header(kHeaderNumRows), 0);
  }

  EXPECT_TRUE(engine.core().Tokens(second).empty());
  EXPECT_TRUE(engine.core().Tokens(third).empty());
}

TEST(Admission, OneThatWaitsForABlockIsPassedNoMoreOftenThanOthers) {
  Engine engine(SmallWith([](CoreConfig& config) {
    config.num_blocks = 40;
    config.max_rows = 8;
    config.max_requests = 8;
    config.max_step_tokens = 16;
    config.max_context_tokens = 32;
    config.chunk_tokens = 2;
    config.bypass_requests = 2;
  }));
  engine.SubmitFrom(1, 20, 1);
  const Handle waits = engine.SubmitFrom(1, 20, 1);
  for (TokenId first = 40; first < 100; first += 20) {
    engine.SubmitFrom(first, 2, 9);
  }

  engine.Step();
  EXPECT_EQ(std::ranges::count(engine.rows(), waits), 0);
  engine.Step();

  EXPECT_EQ(std::ranges::count(engine.rows(), waits), 1);
}

TEST(Admission, DeferralCanBeSwitchedOff) {
  Engine engine(SmallWith([](CoreConfig& config) { config.prefix_deferral = false; }));
  engine.Submit(4, 1);
  engine.Submit(4, 1);

  engine.Step();

  EXPECT_EQ(engine.header(kHeaderNumRows), 2);
}

TEST(Admission, HigherPriorityIsServedFirstThoughItCameLater) {
  Engine engine(SmallWith([](CoreConfig& config) { config.max_rows = 1; }));
  engine.SubmitFrom(1, 2, 1, {.priority = 10});
  const Handle urgent = engine.SubmitFrom(20, 2, 1, {.priority = 90});

  engine.Step();

  EXPECT_EQ(engine.rows(), (Rows{urgent}));
}

TEST(StaticBatch, ANewBatchBeginsWhenTheOldOneHasEnded) {
  Engine engine(SmallWith([](CoreConfig& config) {
    config.capacity_policy = CapacityPolicy::kStaticBatch;
    config.num_blocks = 20;
  }));
  const Handle first = engine.SubmitFrom(1, 2, 3);
  const Handle second = engine.SubmitFrom(20, 2, 2);
  engine.Step();
  const Handle third = engine.SubmitFrom(40, 2, 1);

  engine.Step();
  EXPECT_EQ(engine.rows(), (Rows{first, second}));
  engine.Step();
  EXPECT_EQ(engine.rows(), (Rows{first}));
  engine.Step();
  EXPECT_EQ(engine.rows(), (Rows{third}));
}

TEST(StaticBatch, IsAdmittedAsAWholeThoughItsPromptsTakeSeveralSteps) {
  Engine engine(SmallWith([](CoreConfig& config) {
    config.capacity_policy = CapacityPolicy::kStaticBatch;
    config.num_blocks = 20;
  }));
  engine.SubmitFrom(1, 8, 4);
  engine.SubmitFrom(20, 8, 4);

  engine.Step();

  EXPECT_EQ(engine.header(kHeaderNumRows), 1);
  EXPECT_EQ(engine.stats().num_running, 2);
}

TEST(EqualProgress, PromptsShareAStepsTokens) {
  Engine engine(SmallWith([](CoreConfig& config) {
    config.chunk_policy = ChunkPolicy::kEqualProgress;
    config.num_blocks = 30;
  }));
  engine.SubmitFrom(1, 12, 1);
  engine.SubmitFrom(20, 12, 1);

  engine.Step();

  EXPECT_EQ(engine.out().q_len[0], 4);
  EXPECT_EQ(engine.out().q_len[1], 4);
}

TEST(PartialReuse, GoesOnInsideABlockByCopyingIt) {
  Engine engine(SmallWith([](CoreConfig& config) {
    config.block_tokens = 4;
    config.max_step_tokens = 16;
  }));
  engine.Submit(11, 1);
  engine.Run();
  std::vector<TokenId> prompt = {1, 2, 3, 4, 5, 6, 70, 71};
  engine.core().Submit({.prompt = prompt, .scope = 1, .max_output_tokens = 1, .priority = 50});

  engine.Step();

  EXPECT_EQ(engine.out().reused_tokens[0], 6);
  EXPECT_EQ(engine.header(kHeaderNumCopies), 1);
  EXPECT_EQ(engine.out().copy_ops[0], static_cast<std::int32_t>(CopyKind::kOnWrite));
  EXPECT_EQ(engine.out().copy_ops[4], 2);
  EXPECT_EQ(engine.stats().num_copies_on_write_total, 1);
}

TEST(PartialReuse, OutputsOfOnePromptGoOnFromItsLastToken) {
  Engine engine(SmallWith([](CoreConfig& config) { config.block_tokens = 4; }));
  const Handle leader = engine.Submit(7, 3);
  engine.Submit(7, 3, leader);
  engine.Step();

  engine.Step();

  EXPECT_EQ(engine.out().reused_tokens[1], 6);
}

TEST(Reuse, WhatARequestHasToComputeItselfIsNotTakenFromTheCache) {
  for (const std::int32_t num_reusable : {0, 3, 4, 20}) {
    Engine engine;
    engine.SubmitFrom(1, 9, 1);
    engine.Run();

    engine.SubmitFrom(1, 9, 1, {.priority = 50, .num_reusable = num_reusable});
    engine.Step();

    EXPECT_EQ(engine.out().reused_tokens[0], std::min(num_reusable, 8));
    engine.Run();
    engine.SubmitFrom(1, 9, 1);
    engine.Step();
    EXPECT_EQ(engine.out().reused_tokens[0], 8);  // what others may find is as before
  }
}

TEST(Reuse, WhatARequestHasComputedItselfItTakesAfterAHold) {
  Engine engine;
  engine.SubmitFrom(1, 14, 1);
  engine.Run();
  const Handle handle = engine.SubmitFrom(1, 14, 1, {.priority = 50, .num_reusable = 0});
  engine.Step();
  ASSERT_EQ(engine.out().q_len[0], 8);
  engine.core().Hold(handle);
  engine.core().Release(handle);

  engine.Step();

  EXPECT_EQ(engine.out().reused_tokens[0], 8);
  EXPECT_EQ(engine.out().q_len[0], 6);
}

TEST(Reuse, NobodyWaitsForABlockThatHeHasToComputeHimself) {
  Engine engine;
  engine.SubmitFrom(1, 3, 1);
  engine.SubmitFrom(1, 3, 1, {.priority = 50, .num_reusable = 1});

  engine.Step();

  EXPECT_EQ(engine.header(kHeaderNumRows), 2);
  EXPECT_EQ(engine.stats().num_deferrals_total, 0);
}

TEST(HostTier, IsNotAskedForWhatARequestHasToComputeItself) {
  Engine engine(SmallWith([](CoreConfig& config) { config.num_host_blocks = 8; }));
  engine.SubmitFrom(1, 15, 1);
  engine.Run();
  engine.SubmitFrom(20, 15, 1);
  engine.Run();

  engine.SubmitFrom(1, 15, 1, {.priority = 50, .num_reusable = 5});
  engine.Run();

  EXPECT_LE(engine.stats().num_reused_tokens_total, 5);
  EXPECT_LE(engine.stats().num_onloads_total, 2);
}

TEST(HostTier, BringsBackWhatHadToMakeRoom) {
  Engine engine(SmallWith([](CoreConfig& config) { config.num_host_blocks = 8; }));
  engine.SubmitFrom(1, 15, 1);
  engine.Run();
  engine.SubmitFrom(20, 15, 1);
  engine.Run();
  EXPECT_GT(engine.stats().num_offloads_total, 0);

  engine.SubmitFrom(1, 15, 1);
  engine.Step();

  EXPECT_GT(engine.stats().num_onloads_total, 0);
  EXPECT_EQ(engine.out().reused_tokens[0], 14);
}

TEST(HostTier, BringsALongPrefixOverSeveralSteps) {
  Engine engine(SmallWith([](CoreConfig& config) {
    config.num_host_blocks = 16;
    config.max_step_copies = 3;
    config.partial_reuse = false;
  }));
  engine.SubmitFrom(1, 15, 1);
  engine.Run();
  for (TokenId other = 20; other < 100; other += 20) {
    engine.SubmitFrom(other, 5, 1);  // three blocks a time, so that each can be offloaded
    engine.Run();
  }
  const std::int64_t num_offloads = engine.stats().num_offloads_total;
  ASSERT_GE(num_offloads, 7);

  engine.SubmitFrom(1, 15, 1);
  engine.Step();
  EXPECT_EQ(engine.header(kHeaderNumRows), 0);  // copies alone
  EXPECT_EQ(engine.header(kHeaderNumCopies), 3);
  engine.Run();

  EXPECT_GE(engine.stats().num_onloads_total, 4);
  EXPECT_EQ(engine.stats().num_generated_tokens_total, 6);
}

}  // namespace
}  // namespace antiphon
