// Holds in every phase, and what they leave to others.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "small_engine.h"

namespace antiphon {
namespace {

CoreConfig Roomy(std::int32_t run_ahead) {
  return SmallWith([run_ahead](CoreConfig& config) {
    config.num_blocks = 33;
    config.run_ahead = run_ahead;
    config.num_buffer_sets = run_ahead + 2;
  });
}

// Plans and commits until nothing runs; returns the tokens that `handle` had last.
std::vector<TokenId> OutputOf(Engine& engine, Handle handle) {
  std::vector<TokenId> tokens;
  while (!engine.core().Tokens(handle).empty()) {
    const auto known = engine.core().Tokens(handle);
    tokens.assign(known.begin(), known.end());
    if (!engine.Step()) {
      break;
    }
  }
  return tokens;
}

TEST(Hold, ARequestThatWaitsLeavesTheLineAndComesBackToItsPlace) {
  Engine engine(SmallWith([](CoreConfig& config) { config.max_rows = 1; }));
  const Handle first = engine.SubmitFrom(1, 3, 1);
  const Handle second = engine.SubmitFrom(20, 3, 1);
  const Handle third = engine.SubmitFrom(40, 3, 1);
  EXPECT_TRUE(engine.core().Hold(first));
  EXPECT_TRUE(engine.core().Hold(second));
  EXPECT_EQ(engine.stats().num_held, 2);
  EXPECT_EQ(engine.stats().num_waiting, 1);

  EXPECT_TRUE(engine.core().Release(second));
  ASSERT_TRUE(engine.Step());
  EXPECT_EQ(engine.rows(), std::vector<Handle>{second});
  EXPECT_TRUE(engine.core().Release(first));
  ASSERT_TRUE(engine.Step());
  EXPECT_EQ(engine.rows(), std::vector<Handle>{first});
  ASSERT_TRUE(engine.Step());
  EXPECT_EQ(engine.rows(), std::vector<Handle>{third});
}

TEST(Hold, NothingIsDoneForWhoeverIsHeldAndNothingIsKeptFromOthers) {
  Engine engine(Roomy(0));
  const Handle handle = engine.Submit(5, 8);
  engine.Step();
  engine.Step();

  engine.core().Hold(handle);

  EXPECT_EQ(engine.stats().num_held, 1);
  EXPECT_EQ(engine.stats().num_running, 0);
  EXPECT_EQ(engine.stats().num_blocks_used, 0);
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(engine.Plan(), 0);  // and it never counts as a stall
  }
}

TEST(Hold, WhatWasComputedIsReusedAfterwards) {
  Engine engine(Roomy(0));
  const Handle handle = engine.Submit(5, 8);
  engine.Step(50);
  engine.Step(51);
  engine.core().Hold(handle);
  engine.core().Release(handle);
  EXPECT_EQ(engine.stats().num_paused, 1) << "it has started, and waits to go on";

  engine.Plan();

  EXPECT_EQ(engine.rows(), std::vector<Handle>{handle});
  EXPECT_NE(engine.out().flags[0] & kFlagResumed, 0U);
  EXPECT_EQ(engine.out().ctx_len[0], 6);  // seven tokens are known, six were computed
  EXPECT_EQ(engine.out().output_position[0], 2);
  EXPECT_EQ(engine.core().Times(handle)->num_preemptions, 0);
}

TEST(Hold, TokensOfRowsInFlightAreKept) {
  for (const std::int32_t run_ahead : {1, 2}) {
    Engine engine(Roomy(run_ahead));
    const Handle handle = engine.Submit(3, 8);
    for (std::int32_t i = 0; i <= run_ahead; ++i) {
      ASSERT_NE(engine.Plan(), 0);
    }
    engine.core().Hold(handle);
    EXPECT_EQ(engine.stats().num_held, 0) << "rows in flight use its blocks";

    engine.Commit(50);
    EXPECT_EQ(engine.result(0)[0], 1);
    EXPECT_EQ(engine.Plan(), 0);
    for (std::int32_t i = 0; i < run_ahead; ++i) {
      engine.Commit(51);
    }

    EXPECT_EQ(engine.stats().num_held, 1);
    EXPECT_EQ(engine.stats().num_blocks_used, 0);
    EXPECT_EQ(engine.core().Tokens(handle).size(), static_cast<std::size_t>(4 + run_ahead));
  }
}

TEST(Hold, ReleasedBeforeItsRowsCameInARequestGoesOnAsIfNothingHadBeen) {
  Engine engine(Roomy(1));
  const Handle handle = engine.Submit(3, 8);
  engine.Plan();
  engine.core().Hold(handle);
  engine.core().Release(handle);

  engine.Plan();

  EXPECT_EQ(engine.rows(), std::vector<Handle>{handle});
  EXPECT_EQ(engine.out().flags[0] & (kFlagFirst | kFlagResumed), 0U);
  engine.Commit();
  engine.Commit();
  EXPECT_EQ(engine.stats().num_held, 0);
}

TEST(Hold, AnEndThatComesFromARowInFlightEndsTheRequest) {
  Engine engine(Roomy(1));
  const Handle handle = engine.Submit(3, 8);
  engine.Plan();
  engine.core().Hold(handle);

  engine.Commit(100);

  EXPECT_EQ(engine.result(0)[1], static_cast<std::int32_t>(FinishReason::kEndId));
  EXPECT_FALSE(engine.core().Release(handle));
  EXPECT_FALSE(engine.core().Hold(handle));
  EXPECT_EQ(engine.stats().num_held, 0);
}

TEST(Hold, BothAreIdempotent) {
  Engine engine(Roomy(0));
  const Handle handle = engine.Submit(3, 4);
  EXPECT_TRUE(engine.core().Release(handle));
  EXPECT_TRUE(engine.core().Hold(handle));
  EXPECT_TRUE(engine.core().Hold(handle));
  EXPECT_EQ(engine.stats().num_held, 1);
  EXPECT_TRUE(engine.core().Release(handle));
  EXPECT_TRUE(engine.core().Release(handle));

  EXPECT_EQ(OutputOf(engine, handle).size(), 6U);  // all but the last, with which it ended
  EXPECT_EQ(engine.stats().num_generated_tokens_total, 4);
}

TEST(Hold, AHeldRequestEndsByAbortAndByFinish) {
  for (const bool is_aborted : {false, true}) {
    Engine engine(Roomy(0));
    const Handle handle = engine.Submit(3, 8);
    engine.Step();
    engine.core().Hold(handle);

    EXPECT_TRUE(is_aborted ? engine.core().Abort(handle) : engine.core().Finish(handle, 1));

    EXPECT_EQ(engine.stats().num_held, 0);
    EXPECT_TRUE(engine.core().Tokens(handle).empty());
    engine.core().CheckInvariants();
  }
}

TEST(Hold, WhoWaitsForAPromptDoesNotWaitForOneThatIsHeld) {
  for (const std::int32_t num_steps_before : {0, 1}) {
    Engine engine(Roomy(0));
    const Handle leader = engine.Submit(13, 2);
    const Handle follower = engine.Submit(13, 2, leader);
    for (std::int32_t i = 0; i < num_steps_before; ++i) {
      engine.Step();  // a chunk of the leader's prompt
    }

    engine.core().Hold(leader);
    ASSERT_TRUE(engine.Step());

    EXPECT_EQ(engine.rows(), std::vector<Handle>{follower});
    const Handle later = engine.Submit(13, 2, leader);
    engine.Run();
    EXPECT_TRUE(engine.core().Tokens(later).empty());
    EXPECT_EQ(engine.stats().num_held, 1);
  }
}

TEST(Hold, AllOutputsOfAPromptRestAndGoOnTogether) {
  Engine engine(Roomy(0));
  const Handle leader = engine.Submit(5, 3);
  const Handle follower = engine.Submit(5, 3, leader);
  engine.core().Hold(leader);
  engine.core().Hold(follower);
  EXPECT_EQ(engine.Plan(), 0);

  engine.core().Release(leader);
  engine.core().Release(follower);
  ASSERT_TRUE(engine.Step());

  EXPECT_EQ(engine.rows(), std::vector<Handle>{leader}) << "the follower waits for its prompt";
  engine.Run();
  EXPECT_EQ(engine.stats().num_generated_tokens_total, 6);
}

TEST(Hold, TheHeadOfTheLineThatIsHeldHoldsNobodyUp) {
  Engine engine(SmallWith([](CoreConfig& config) { config.bypass_requests = 0; }));
  engine.SubmitFrom(1, 2, 9);
  engine.Step();
  const Handle large = engine.SubmitFrom(30, 9, 7);
  const Handle small = engine.SubmitFrom(60, 2, 1);
  engine.Step();
  EXPECT_FALSE(engine.core().Tokens(small).empty()) << "it may not pass";

  engine.core().Hold(large);
  engine.Step();

  EXPECT_TRUE(engine.core().Tokens(small).empty());
}

TEST(Hold, WhoComesBackIsOwedNothingForTheTimeBefore) {
  Engine engine(SmallWith([](CoreConfig& config) { config.bypass_steps = 2; }));
  engine.SubmitFrom(1, 2, 12);
  engine.Step();
  const Handle large = engine.SubmitFrom(30, 9, 7);
  engine.Step();
  engine.core().Hold(large);
  for (int i = 0; i < 3; ++i) {
    engine.Step();
  }

  engine.core().Release(large);
  const Handle small = engine.SubmitFrom(60, 2, 1);
  engine.Step();

  EXPECT_TRUE(engine.core().Tokens(small).empty()) << "it may pass for two steps more";
}

TEST(Hold, ASessionGoesOnFromWhereAHeldTurnStands) {
  Engine engine(Roomy(0));
  const Handle handle = engine.SubmitFrom(1, 6, 8, {.priority = 50, .session = 7});
  engine.Step(50);
  engine.core().Hold(handle);

  EXPECT_TRUE(engine.core().ForkSession(7, 8));
  EXPECT_TRUE(engine.core().CloseSession(7));
  engine.core().Release(handle);
  engine.Run();
  EXPECT_FALSE(engine.core().CloseSession(7)) << "the end of its turn brings it back";
}

TEST(Hold, CensusAndDumpTellOfIt) {
  Engine engine(Roomy(0));
  engine.core().Hold(engine.Submit(3));
  engine.SubmitFrom(20, 3, 1);

  const std::string census = engine.core().Census();

  EXPECT_NE(census.find(" held=1"), std::string::npos);
  EXPECT_EQ(census.find("[held"), std::string::npos) << "it waits for nothing of the engine's";
  EXPECT_NE(engine.core().DumpState().find("\"num_held\":1"), std::string::npos);
}

}  // namespace
}  // namespace antiphon
