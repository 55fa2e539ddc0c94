// Steps in flight while others are planned, and pauses among them.
#include <gtest/gtest.h>

#include <algorithm>

#include "small_engine.h"

namespace antiphon {
namespace {

using Rows = std::vector<Handle>;

CoreConfig Ahead(std::int32_t run_ahead) {
  return SmallWith([run_ahead](CoreConfig& config) {
    config.run_ahead = run_ahead;
    config.num_buffer_sets = run_ahead + 2;
    config.num_blocks = 20;
  });
}

TEST(RunAhead, TheNextTokenIsReadOnTheDevice) {
  Engine engine(Ahead(1));
  engine.Submit(3);
  engine.Plan();
  EXPECT_EQ(engine.out().gather_slot[0], kNoSlot);

  engine.Plan();

  EXPECT_EQ(engine.out().input_ids[0], kUnknownToken);
  EXPECT_EQ(engine.out().gather_slot[0], engine.out().slot[0]);
  EXPECT_EQ(engine.out().positions[0], 3);
  EXPECT_EQ(engine.out().output_position[0], 1);
}

TEST(RunAhead, NoRowIsPlannedBehindALastTokenThatIsForeseen) {
  for (const std::int32_t run_ahead : {0, 1, 2}) {
    Engine engine(Ahead(run_ahead));
    engine.Submit(3, 2);

    engine.Run();

    EXPECT_EQ(engine.stats().step, 2);
    EXPECT_EQ(engine.stats().num_generated_tokens_total, 2);
  }
}

TEST(RunAhead, AnEndThatComesLateVoidsTheRowBehindIt) {
  Engine engine(Ahead(1));
  engine.Submit(3, 8);
  engine.Plan();
  engine.Plan();

  engine.Commit(100);
  EXPECT_EQ(engine.result(0)[1], static_cast<std::int32_t>(FinishReason::kEndId));
  EXPECT_EQ(engine.stats().num_blocks_used, 2);  // the row in flight may still write
  engine.Commit(1);

  EXPECT_EQ(engine.result(0), (std::vector<std::int32_t>{0, 0, 0, 0}));
  EXPECT_EQ(engine.stats().num_blocks_used, 0);
  EXPECT_EQ(engine.stats().num_generated_tokens_total, 1);
}

TEST(RunAhead, WhatWasComputedBehindTheEndIsNotReused) {
  Engine engine(Ahead(2));
  engine.Submit(3, 8);
  engine.Plan();
  engine.Plan();
  engine.Plan();
  engine.Commit(100);
  engine.Commit(1);
  engine.Commit(1);
  std::vector<TokenId> next = {1, 2, 3, 100, 1, 7};
  engine.core().Submit({.prompt = next, .scope = 1, .max_output_tokens = 1, .priority = 50});

  engine.Step();

  EXPECT_EQ(engine.out().reused_tokens[0], 3);
}

TEST(RunAhead, StepsAreCommittedInOrder) {
  Engine engine(Ahead(1));
  engine.Submit(3);
  const StepId first = engine.Plan();
  engine.Plan();

  EXPECT_THROW(engine.core().Commit(first + 1), InvariantError);
}

TEST(RunAhead, ChunksOfAPromptFollowEachOtherWithoutWaiting) {
  Engine engine(Ahead(1));
  engine.Submit(14, 1);
  engine.Plan();
  engine.Plan();

  EXPECT_EQ(engine.out().ctx_len[0], 8);
  EXPECT_EQ(engine.header(kHeaderNumSamples), 1);
}

CoreConfig Tight(std::int32_t run_ahead) {
  return SmallWith([run_ahead](CoreConfig& config) {
    config.capacity_policy = CapacityPolicy::kMaxUtilization;
    config.run_ahead = run_ahead;
    config.num_buffer_sets = run_ahead + 2;
    config.watermark_blocks = 0;
    config.cooldown_steps = 0;
  });
}

TEST(MaxUtilization, AdmitsWhatDoesNotFitToItsEndAndPausesTheLatest) {
  for (const std::int32_t run_ahead : {0, 1, 2}) {
    Engine engine(Tight(run_ahead));
    engine.SubmitFrom(1, 2, 12);
    engine.SubmitFrom(30, 2, 12);
    engine.Plan();
    EXPECT_EQ(engine.stats().num_running, 2);  // 14 blocks to their ends, of 8

    engine.Run();

    EXPECT_GT(engine.stats().num_preemptions_total, 0);
    EXPECT_EQ(engine.stats().num_generated_tokens_total, 24);
    EXPECT_EQ(engine.stats().num_blocks_used, 0);
  }
}

TEST(MaxUtilization, TheOldestIsNeverPaused) {
  Engine engine(Tight(0));
  const Handle oldest = engine.SubmitFrom(1, 2, 14);
  engine.SubmitFrom(30, 2, 14);
  engine.SubmitFrom(60, 2, 14);
  while (!engine.core().Tokens(oldest).empty()) {
    engine.Step();
    EXPECT_EQ(engine.rows().front(), oldest);
  }
}

TEST(MaxUtilization, ARequestWithARowInFlightIsHeldUpNotPaused) {
  Engine engine(Tight(1));
  engine.SubmitFrom(1, 6, 9);
  const Handle later = engine.SubmitFrom(30, 6, 9);
  engine.Plan();
  Rows in_flight = engine.rows();
  bool was_held = false;
  while (engine.stats().num_preemptions_total == 0) {
    const bool was_planned = engine.Plan() != 0;
    if (engine.stats().num_preemptions_total > 0) {
      EXPECT_EQ(std::ranges::count(in_flight, later), 0);
    }
    if (!in_flight.empty()) {
      engine.Commit();
    }
    in_flight = was_planned ? engine.rows() : Rows{};
    was_held = was_held || std::ranges::count(in_flight, later) == 0;
  }

  EXPECT_TRUE(was_held);
  engine.Run();
  EXPECT_EQ(engine.stats().num_generated_tokens_total, 18);
}

TEST(Pause, KeepsTokensAndGoesOnFromThem) {
  Engine engine(SmallWith([](CoreConfig& config) { config.faults.pause_every = 2; }));
  const Handle handle = engine.Submit(3, 4);
  std::vector<TokenId> sampled;
  for (TokenId token = 50; engine.Plan() != 0; ++token) {
    EXPECT_EQ(engine.out().output_position[0], static_cast<std::int32_t>(sampled.size()));
    const bool is_first = (engine.out().flags[0] & kFlagFirst) != 0;
    EXPECT_EQ(is_first, sampled.empty());
    sampled.push_back(token);
    engine.Commit(token);
  }

  EXPECT_EQ(sampled.size(), 4U);
  EXPECT_GT(engine.stats().num_preemptions_total, 0);
  EXPECT_TRUE(engine.core().Tokens(handle).empty());
}

TEST(Pause, AbortOfAPausedRequestLeavesNothingBehind) {
  Engine engine(Tight(0));
  engine.SubmitFrom(1, 2, 14);
  const Handle later = engine.SubmitFrom(30, 2, 14);
  while (engine.stats().num_paused == 0) {
    ASSERT_TRUE(engine.Step());
  }

  EXPECT_TRUE(engine.core().Abort(later));
  engine.Run();

  EXPECT_EQ(engine.stats().num_paused + engine.stats().num_waiting, 0);
}

TEST(Census, NamesWhoWaits) {
  Engine engine;
  engine.Submit(3);

  const std::string census = engine.core().Census();

  EXPECT_NE(census.find("waiting=1"), std::string::npos);
  EXPECT_NE(census.find("[queued"), std::string::npos);
}

}  // namespace
}  // namespace antiphon
