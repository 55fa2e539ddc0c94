#include "antiphon/session_table.h"

#include <gtest/gtest.h>

#include "small_engine.h"

namespace antiphon {
namespace {

void Turn(Engine& engine, std::uint64_t session, TokenId first, std::int32_t num_prompt) {
  engine.SubmitFrom(first, num_prompt, 1, {.priority = 50, .session = session});
  engine.Run();
}

std::int32_t NumCached(const Engine& engine, TokenId first, std::int32_t num_tokens) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(num_tokens));
  std::iota(tokens.begin(), tokens.end(), first);
  return const_cast<Engine&>(engine).core().MatchPrefix(1, tokens);
}

TEST(Sessions, AClosedSessionsBlocksAreTheFirstToGo) {
  Engine engine;
  Turn(engine, 1, 1, 7);
  Turn(engine, 2, 40, 7);
  EXPECT_TRUE(engine.core().CloseSession(2));
  EXPECT_FALSE(engine.core().CloseSession(2));

  Turn(engine, 0, 80, 7);  // 4 blocks; 8 are there

  EXPECT_EQ(NumCached(engine, 1, 6), 6);
  EXPECT_EQ(NumCached(engine, 40, 6), 0);
}

TEST(Sessions, ABranchThatTheSessionHasLeftGoesFirst) {
  Engine engine;
  Turn(engine, 1, 1, 9);
  Turn(engine, 2, 40, 5);
  EXPECT_TRUE(engine.core().RewindSession(1, 4));

  Turn(engine, 0, 80, 5);

  EXPECT_EQ(NumCached(engine, 1, 8), 4);
  EXPECT_EQ(NumCached(engine, 40, 4), 4);
}

TEST(Sessions, AForkKeepsWhatItSharesWhenTheOtherIsClosed) {
  Engine engine;
  Turn(engine, 0, 40, 7);  // used longest ago
  Turn(engine, 1, 1, 7);
  EXPECT_TRUE(engine.core().ForkSession(1, 9));
  EXPECT_FALSE(engine.core().ForkSession(5, 6));
  EXPECT_TRUE(engine.core().CloseSession(1));

  Turn(engine, 0, 80, 3);

  EXPECT_EQ(NumCached(engine, 1, 6), 6);
  EXPECT_LT(NumCached(engine, 40, 6), 6);
  EXPECT_TRUE(engine.core().CloseSession(9));
}

TEST(Sessions, SessionsAreHintsAndNeverPins) {
  Engine engine;
  for (std::uint64_t session = 1; session <= 10; ++session) {
    Turn(engine, session, static_cast<TokenId>(20 * session), 9);
  }

  Turn(engine, 0, 500, 15);

  EXPECT_EQ(engine.stats().num_generated_tokens_total, 11);
}

TEST(Sessions, ATurnThatEndsAfterTheCloseDoesNotBringTheSessionBack) {
  Engine engine;
  engine.SubmitFrom(1, 3, 1, {.priority = 50, .session = 1});
  engine.Plan();
  engine.core().CloseSession(1);
  engine.Commit();

  EXPECT_FALSE(engine.core().RewindSession(1, 1));
}

TEST(Sessions, TheOneUsedLongestAgoIsForgotten) {
  Engine engine(SmallWith([](CoreConfig& config) { config.max_sessions = 2; }));
  Turn(engine, 1, 1, 3);
  Turn(engine, 2, 20, 3);
  Turn(engine, 3, 40, 3);

  EXPECT_FALSE(engine.core().ForkSession(1, 8));
  EXPECT_TRUE(engine.core().CloseSession(2));
  EXPECT_TRUE(engine.core().CloseSession(3));
}

}  // namespace
}  // namespace antiphon
