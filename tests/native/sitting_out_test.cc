// Requests that sit out, and rows that bring no token.
#include <gtest/gtest.h>

#include <vector>

#include "small_engine.h"

namespace antiphon {
namespace {

std::vector<TokenId> TokensOf(Engine& engine, Handle handle) {
  const auto tokens = engine.core().Tokens(handle);
  return {tokens.begin(), tokens.end()};
}

TEST(SittingOut, ARequestGetsNoRowsAndKeepsItsBlocksAndItsPlace) {
  Engine engine;
  const Handle first = engine.SubmitFrom(1, 3, 4);
  const Handle second = engine.SubmitFrom(20, 3, 4);
  engine.Step();
  const auto num_used = engine.stats().num_blocks_used;

  EXPECT_TRUE(engine.core().SitOut(first));
  EXPECT_TRUE(engine.core().SitOut(first));
  engine.Step();

  EXPECT_EQ(engine.rows(), std::vector<Handle>{second});
  EXPECT_EQ(engine.stats().num_running, 2);
  EXPECT_GE(engine.stats().num_blocks_used, num_used);
  EXPECT_TRUE(engine.core().Rejoin(first));
  engine.Step();
  EXPECT_EQ(engine.rows(), (std::vector<Handle>{first, second}));
  EXPECT_EQ(engine.out().flags[0] & (kFlagFirst | kFlagResumed), 0U);
}

TEST(SittingOut, IsNoStallHoweverLongItTakes) {
  Engine engine(SmallWith([](CoreConfig& config) {
    config.max_rows = 1;
    config.stall_passes = 5;
  }));
  const Handle handle = engine.SubmitFrom(1, 3, 4);
  engine.Step();
  engine.SubmitFrom(20, 3, 4);

  engine.core().SitOut(handle);

  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(engine.Plan(), 0);
  }
  engine.core().Rejoin(handle);
  EXPECT_TRUE(engine.Step());
}

TEST(SittingOut, WhoHasEndedDoesNeither) {
  Engine engine;
  const Handle handle = engine.SubmitFrom(1, 3, 4);
  engine.core().Abort(handle);

  EXPECT_FALSE(engine.core().SitOut(handle));
  EXPECT_FALSE(engine.core().Rejoin(handle));
}

TEST(SittingOut, WhoeverIsAdmittedMeanwhileGetsNoRowBeforeItRejoins) {
  Engine engine;
  const Handle handle = engine.SubmitFrom(1, 3, 4);
  engine.core().SitOut(handle);

  EXPECT_EQ(engine.Plan(), 0);
  EXPECT_EQ(engine.stats().num_running, 1);
  engine.core().Rejoin(handle);

  ASSERT_TRUE(engine.Step());
  EXPECT_EQ(engine.rows(), std::vector<Handle>{handle});
  EXPECT_NE(engine.out().flags[0] & kFlagFirst, 0U);
}

TEST(Withheld, ATokenIsDrawnByTheNextRowInstead) {
  // Blocks are of two tokens: the last token lies at each place of one.
  for (const std::int32_t num_prompt : {1, 2, 3, 4, 5}) {
    Engine engine;
    const Handle handle = engine.SubmitFrom(1, num_prompt, 4);
    engine.Plan();
    const double uniform = engine.out().uniform[0];

    engine.CommitWithout(0);

    EXPECT_EQ(engine.result(0), (std::vector<std::int32_t>{0, 0, 0, 1}));
    ASSERT_NE(engine.Plan(), 0);
    EXPECT_EQ(engine.rows(), std::vector<Handle>{handle});
    EXPECT_EQ(engine.out().input_ids[0], num_prompt);
    EXPECT_EQ(engine.out().positions[0], num_prompt - 1);
    EXPECT_EQ(engine.out().output_position[0], 0);
    EXPECT_EQ(engine.out().uniform[0], uniform);
    EXPECT_EQ(engine.out().flags[0] & (kFlagFirst | kFlagResumed), 0U);
    engine.Commit(50);
    EXPECT_EQ(engine.result(0)[0], 1);
    EXPECT_EQ(TokensOf(engine, handle).back(), 50);
    engine.Run();
    EXPECT_EQ(engine.stats().num_blocks_used, 0);
  }
}

TEST(Withheld, NothingIsPublishedThatIsWrittenAgain) {
  Engine engine;
  const Handle handle = engine.SubmitFrom(1, 4, 4);  // two whole blocks
  engine.Plan();

  engine.CommitWithout(0);

  const std::vector<TokenId> prompt = {1, 2, 3, 4};
  const ScopeId scope =
      engine.core().InternScope({.tenant = "", .cache_scope = "", .adapter = "", .weights = ""});
  EXPECT_EQ(engine.core().MatchPrefix(scope, prompt), 2);
  engine.Step();
  EXPECT_EQ(engine.core().MatchPrefix(scope, prompt), 4);
  EXPECT_TRUE(engine.core().Abort(handle));
}

TEST(Withheld, OthersOfTheStepAreNotTouched) {
  Engine engine;
  engine.SubmitFrom(1, 3, 4);
  const Handle other = engine.SubmitFrom(20, 3, 4);
  engine.Plan();

  engine.CommitWithout(0, 60);

  EXPECT_EQ(engine.result(1)[0], 1);
  EXPECT_EQ(TokensOf(engine, other), (std::vector<TokenId>{20, 21, 22, 60}));
}

TEST(Withheld, ARowOfARequestThatHasEndedChangesNothing) {
  Engine engine;
  const Handle handle = engine.SubmitFrom(1, 3, 4);
  engine.Plan();
  engine.core().Abort(handle);

  engine.CommitWithout(0);

  EXPECT_EQ(engine.result(0), (std::vector<std::int32_t>{0, 0, 0, 0}));
  EXPECT_EQ(engine.stats().num_blocks_used, 0);
}

TEST(Withheld, WhoIsHeldMeanwhileRestsAndGoesOnWithTheSameToken) {
  Engine engine;
  const Handle handle = engine.SubmitFrom(1, 4, 4);
  engine.Plan();
  engine.core().Hold(handle);

  engine.CommitWithout(0);

  EXPECT_EQ(engine.stats().num_held, 1);
  engine.core().Release(handle);
  ASSERT_NE(engine.Plan(), 0);
  EXPECT_EQ(engine.out().output_position[0], 0);
  engine.Commit(50);
  EXPECT_EQ(TokensOf(engine, handle).back(), 50);
}

TEST(Withheld, AFollowerOfAPromptDoesNotWaitForItsToken) {
  Engine engine(SmallWith([](CoreConfig& config) { config.num_blocks = 17; }));
  const Handle leader = engine.Submit(5, 4);
  const Handle follower = engine.Submit(5, 4, leader);
  engine.Plan();
  engine.core().SitOut(leader);

  engine.CommitWithout(0);

  ASSERT_TRUE(engine.Step());
  EXPECT_EQ(engine.rows(), std::vector<Handle>{follower});
}

TEST(Withheld, WhoHasOtherRowsInFlightMustBringAToken) {
  Engine engine(SmallWith([](CoreConfig& config) {
    config.run_ahead = 1;
    config.num_buffer_sets = 3;
  }));
  engine.SubmitFrom(1, 3, 4);
  engine.Plan();
  engine.Plan();

  EXPECT_THROW(engine.CommitWithout(0), InvariantError);
}

}  // namespace
}  // namespace antiphon
