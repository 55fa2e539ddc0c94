#include "antiphon/engine_core.h"

#include <gtest/gtest.h>

#include "small_engine.h"

namespace antiphon {
namespace {

std::int32_t ReasonFor(TokenId token, std::int32_t max_output, std::int32_t num_prompt = 3) {
  Engine engine;
  engine.Submit(num_prompt, max_output);
  engine.Step(token);
  return engine.result(0)[1];
}

TEST(EngineCore, EndIdsComeBeforeStopIdsAndThoseBeforeLimits) {
  EXPECT_EQ(ReasonFor(100, 1), static_cast<std::int32_t>(FinishReason::kEndId));
  EXPECT_EQ(ReasonFor(98, 1), static_cast<std::int32_t>(FinishReason::kStopId));
  EXPECT_EQ(ReasonFor(1, 1), static_cast<std::int32_t>(FinishReason::kMaxOutputTokens));
  EXPECT_EQ(ReasonFor(1, 2), static_cast<std::int32_t>(FinishReason::kNone));
}

TEST(EngineCore, OutputThatFillsTheContextSaysSoUnlessItWasAskedForExactly) {
  EXPECT_EQ(ReasonFor(1, 2, /*num_prompt=*/15),
            static_cast<std::int32_t>(FinishReason::kNone));  // a chunk only
  Engine engine;
  engine.Submit(15, /*max_output=*/2);
  engine.Step();
  engine.Step();
  EXPECT_EQ(engine.result(0)[1], static_cast<std::int32_t>(FinishReason::kContextFull));
  engine.Submit(15, /*max_output=*/1);
  engine.Step();
  EXPECT_EQ(engine.result(0)[1], static_cast<std::int32_t>(FinishReason::kMaxOutputTokens));
}

TEST(EngineCore, NothingToDoGivesNoStep) {
  Engine engine;

  EXPECT_EQ(engine.Plan(), 0);
  EXPECT_EQ(engine.header(kHeaderNumRows), 0);
  EXPECT_EQ(engine.stats().step, 0);
}

TEST(EngineCore, EveryChunkIsInterleavedWithDecoding) {
  CoreConfig config = kSmall;
  config.num_blocks = 20;
  Engine engine(config);
  engine.Submit(2, 8);
  engine.Step();
  engine.Submit(15, 1);

  std::vector<std::int32_t> chunks;
  while (engine.stats().num_waiting + engine.stats().num_running > 1) {
    engine.Plan();
    EXPECT_EQ(engine.out().q_len[0], 1);
    EXPECT_EQ(engine.header(kHeaderNumDecodeRows), 1);
    chunks.push_back(engine.out().q_len[1]);
    engine.Commit(1);
  }

  EXPECT_EQ(chunks, (std::vector<std::int32_t>{6, 7}));
}

TEST(EngineCore, RequestThatCouldNotRunAloneIsRefusedAtOnce) {
  CoreConfig config = kSmall;
  config.num_blocks = 5;
  Engine engine(config);

  try {
    engine.Submit(8, 3);
    FAIL();
  } catch (const NeverFitsError& error) {
    EXPECT_EQ(error.needed(), 5);
    EXPECT_EQ(error.available(), 4);
  }
  engine.Submit(8, 1);
  engine.Run();
  EXPECT_EQ(engine.stats().num_generated_tokens_total, 1);
}

TEST(EngineCore, BadArgumentsAreRefusedAndChangeNothing) {
  Engine engine;

  EXPECT_THROW(engine.Submit(0), std::invalid_argument);
  EXPECT_THROW(engine.Submit(16), std::invalid_argument);
  EXPECT_THROW(engine.Submit(3, 0), std::invalid_argument);
  const TokenId prompt[] = {1, -1};
  EXPECT_THROW(engine.core().Submit({.prompt = prompt, .scope = 1, .max_output_tokens = 1}),
               std::invalid_argument);
  const std::span<const TokenId> good(prompt, 1);
  EXPECT_THROW(engine.core().Submit({.prompt = good, .scope = 9, .max_output_tokens = 1}),
               std::invalid_argument);
  EXPECT_THROW(
      engine.core().Submit({.prompt = good, .scope = 1, .max_output_tokens = 1, .flags = 1}),
      std::invalid_argument);

  EXPECT_EQ(engine.stats().num_waiting, 0);
  engine.core().CheckInvariants();
}

TEST(EngineCore, AdmittedRequestsAlwaysRunToTheirEnd) {
  CoreConfig config = kSmall;
  config.num_blocks = 7;
  Engine engine(config);
  engine.Submit(2, 7);
  engine.Submit(3, 6);
  engine.Step();

  EXPECT_EQ(engine.stats().num_running, 1);
  EXPECT_EQ(engine.stats().num_waiting, 1);
  engine.Run();
  EXPECT_EQ(engine.stats().num_generated_tokens_total, 13);
  EXPECT_EQ(engine.stats().num_blocks_used, 0);
}

TEST(EngineCore, AbortInEveryPhaseGivesEverythingBack) {
  for (int phase = 0; phase < 4; ++phase) {
    Engine engine;
    const Handle handle = engine.Submit(13, 3);
    for (int step = 0; step < phase; ++step) {
      engine.Step();
    }

    EXPECT_TRUE(engine.core().Abort(handle));
    EXPECT_FALSE(engine.core().Abort(handle));
    EXPECT_FALSE(engine.core().Finish(handle, 0));

    engine.core().CheckInvariants();
    EXPECT_EQ(engine.stats().num_blocks_used, 0);
    EXPECT_EQ(engine.stats().num_running + engine.stats().num_waiting, 0);
    EXPECT_FALSE(engine.Step());
  }
}

TEST(EngineCore, AbortBetweenPlanAndCommitHoldsTheBlocksUntilTheCommit) {
  Engine engine;
  const Handle handle = engine.Submit(3);
  engine.Plan();

  EXPECT_TRUE(engine.core().Abort(handle));
  EXPECT_EQ(engine.stats().num_blocks_used, 2);
  EXPECT_FALSE(engine.core().Abort(handle));
  engine.Commit(1);

  EXPECT_EQ(engine.result(0), (std::vector<std::int32_t>{0, 0, 0, 0}));
  EXPECT_EQ(engine.stats().num_blocks_used, 0);
  EXPECT_EQ(engine.stats().num_blocks_cached, 0);  // what was in flight counts for nothing
  EXPECT_EQ(engine.stats().num_generated_tokens_total, 0);
}

TEST(EngineCore, FollowerWaitsForItsLeadersPromptAndReusesIt) {
  Engine engine;
  const Handle leader = engine.Submit(9, 2);
  engine.Submit(9, 2, leader);

  engine.Step();
  EXPECT_EQ(engine.header(kHeaderNumRows), 1);
  engine.Step();
  EXPECT_EQ(engine.header(kHeaderNumRows), 1);
  engine.Step();

  EXPECT_EQ(engine.header(kHeaderNumSlotInits), 1);
  EXPECT_EQ(engine.out().reused_tokens[1], 8);
}

TEST(EngineCore, FollowerGoesOnWhenItsLeaderIsGone) {
  Engine engine;
  const Handle leader = engine.Submit(9, 2);
  engine.Submit(9, 2, leader);
  const Handle aborted = engine.Submit(9, 2, leader);

  engine.core().Abort(aborted);
  engine.core().Abort(leader);
  engine.core().CheckInvariants();
  engine.Run();

  EXPECT_EQ(engine.stats().num_generated_tokens_total, 2);
}

TEST(EngineCore, OthersPassAFollower) {
  Engine engine;
  const Handle leader = engine.Submit(9, 1);
  engine.Submit(9, 1, leader);
  engine.Submit(1, 1);
  engine.Step();
  engine.Step();

  EXPECT_EQ(engine.header(kHeaderNumRows), 2);
  EXPECT_EQ(engine.header(kHeaderNumSlotInits), 1);
}

TEST(EngineCore, ReuseIsCountedAndOffWhereItIsSwitchedOff) {
  for (const bool prefix_reuse : {true, false}) {
    CoreConfig config = kSmall;
    config.prefix_reuse = prefix_reuse;
    Engine engine(config);
    engine.Submit(9, 1);
    engine.Run();
    engine.Submit(9, 1);
    engine.Run();

    EXPECT_EQ(engine.stats().num_reused_tokens_total, prefix_reuse ? 8 : 0);
    EXPECT_EQ(engine.stats().num_prefilled_tokens_total, prefix_reuse ? 10 : 18);
    EXPECT_EQ(engine.stats().num_blocks_cached, prefix_reuse ? 5 : 0);
  }
}

TEST(EngineCore, MoreStepsInFlightThanRunAheadAreRefused) {
  Engine engine;
  engine.Submit(3);
  const StepId step = engine.Plan();

  EXPECT_THROW(engine.core().Plan(1), InvariantError);
  EXPECT_THROW(engine.core().Commit(step + 1), InvariantError);
  EXPECT_THROW(engine.core().Commit(0), InvariantError);
  engine.Commit(1);
  EXPECT_THROW(engine.core().Commit(step), InvariantError);
}

TEST(EngineCore, SampledRowWithoutATokenIsABug) {
  Engine engine;
  engine.Submit(3);
  engine.Plan();

  EXPECT_THROW(engine.Commit(-1), InvariantError);
}

TEST(EngineCore, ConfigsThatCannotWorkAreRefused) {
  const auto refused = [](auto change) {
    CoreConfig config = kSmall;
    change(config);
    EXPECT_THROW(EngineCore core(config), std::invalid_argument);
  };

  refused([](CoreConfig& config) { config.num_blocks = 1; });
  refused([](CoreConfig& config) { config.block_tokens = 0; });
  refused([](CoreConfig& config) { config.max_rows = 0; });
  refused([](CoreConfig& config) { config.max_step_tokens = 1; });
  refused([](CoreConfig& config) { config.max_context_tokens = 1; });
  refused([](CoreConfig& config) { config.max_requests = 0; });
  refused([](CoreConfig& config) { config.chunk_tokens = 1; });
  refused([](CoreConfig& config) { config.num_buffer_sets = 0; });
  refused([](CoreConfig& config) { config.run_ahead = 3; });
  refused([](CoreConfig& config) { config.run_ahead = config.num_buffer_sets; });
  refused([](CoreConfig& config) { config.bypass_requests = -1; });
  refused([](CoreConfig& config) { config.stall_passes = 0; });
}

TEST(EngineCore, BuffersTooSmallForOneContextAreRefused) {
  EngineCore core(kSmall);
  const std::int32_t num_copies = core.config().max_step_copies;
  const StepArrays small(3, 8, core.min_table_deltas() - 1, num_copies);
  const StepArrays no_copies(3, 8, core.min_table_deltas(), num_copies - 1);
  const StepArrays enough(3, 8, core.min_table_deltas(), num_copies);

  EXPECT_THROW(core.RegisterBuffers(0, small.buffers()), std::invalid_argument);
  EXPECT_THROW(core.RegisterBuffers(0, no_copies.buffers()), std::invalid_argument);
  EXPECT_THROW(core.RegisterBuffers(2, enough.buffers()), std::invalid_argument);
  core.RegisterBuffers(1, enough.buffers());
}

TEST(EngineCore, ManyRequestsOverASmallPoolLeaveNothingBehind) {
  Engine engine;
  std::uint64_t state = 1;
  std::vector<Handle> handles;
  for (int i = 0; i < 3000; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto choice = static_cast<std::int32_t>(state >> 34);
    if (engine.stats().num_running + engine.stats().num_waiting < 6) {
      handles.push_back(engine.Submit(1 + choice % 12, 1 + choice % 4,
                                      choice % 3 == 0 && !handles.empty() ? handles.back() : 0));
    }
    if (choice % 7 == 0) {
      engine.core().Abort(handles[static_cast<std::size_t>(choice) % handles.size()]);
    }
    engine.Step(choice % 90);
  }
  engine.Run();

  EXPECT_EQ(engine.stats().num_blocks_used, 0);
  EXPECT_GT(engine.stats().num_evictions_total, 0);
  EXPECT_GT(engine.stats().num_reused_tokens_total, 0);
}

}  // namespace
}  // namespace antiphon
