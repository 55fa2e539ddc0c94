#include "antiphon/micro_batcher.h"

#include <gtest/gtest.h>

#include <vector>

namespace antiphon {
namespace {

MicroBatcher Make(std::int32_t max_rows, std::int32_t max_step_tokens,
                  std::int32_t chunk_tokens = 0) {
  MicroBatcher batcher({.block_tokens = 4,
                        .max_rows = max_rows,
                        .max_step_tokens = max_step_tokens,
                        .chunk_tokens = chunk_tokens});
  batcher.Begin(/*max_table_deltas=*/100);
  return batcher;
}

TEST(MicroBatcher, LastChunkMayEndAnywhere) {
  EXPECT_EQ(Make(4, 16).ChunkFor(/*start=*/8, /*remaining=*/7), 7);
}

TEST(MicroBatcher, OtherChunksEndOnABlockEdgeOfThePrompt) {
  EXPECT_EQ(Make(4, 15).ChunkFor(/*start=*/0, /*remaining=*/40), 12);
  EXPECT_EQ(Make(4, 15).ChunkFor(/*start=*/8, /*remaining=*/40), 12);
}

TEST(MicroBatcher, ChunkIsBoundedByItsOwnLimit) {
  EXPECT_EQ(Make(4, 16, /*chunk_tokens=*/9).ChunkFor(0, 40), 8);
  EXPECT_EQ(Make(4, 16, /*chunk_tokens=*/9).ChunkFor(0, 9), 9);
}

TEST(MicroBatcher, NoChunkWhereLessThanABlockIsLeft) {
  MicroBatcher batcher = Make(4, 16);
  ASSERT_TRUE(batcher.Take(/*num_tokens=*/13, /*num_table_deltas=*/0));

  EXPECT_EQ(batcher.ChunkFor(0, 40), 0);
  EXPECT_EQ(batcher.ChunkFor(0, 3), 3);
}

TEST(MicroBatcher, TakesNoRowBeyondAnyLimit) {
  MicroBatcher batcher = Make(2, 16);

  EXPECT_FALSE(batcher.Take(17, 0));
  EXPECT_FALSE(batcher.Take(1, 101));
  EXPECT_TRUE(batcher.Take(1, 60));
  EXPECT_FALSE(batcher.Take(1, 41));
  EXPECT_TRUE(batcher.Take(1, 40));
  EXPECT_FALSE(batcher.Take(1, 0));
  EXPECT_EQ(batcher.tokens_left(), 14);
}

std::vector<std::int32_t> Shares(const MicroBatcher& batcher, std::vector<Chunk> chunks) {
  batcher.ShareEqually(chunks);
  std::vector<std::int32_t> shares;
  for (const Chunk& chunk : chunks) {
    shares.push_back(chunk.q_len);
  }
  return shares;
}

TEST(MicroBatcher, SharesABlockEachInTurn) {
  EXPECT_EQ(Shares(Make(8, 16), {{.start = 0, .remaining = 40}, {.start = 0, .remaining = 40}}),
            (std::vector<std::int32_t>{8, 8}));
  EXPECT_EQ(Shares(Make(8, 16), {{.start = 0, .remaining = 40}, {.start = 0, .remaining = 3}}),
            (std::vector<std::int32_t>{12, 3}));
  EXPECT_EQ(Shares(Make(8, 12), {{.start = 0, .remaining = 40}, {.start = 8, .remaining = 40}}),
            (std::vector<std::int32_t>{8, 4}));
}

TEST(MicroBatcher, SharesEndOnBlockEdgesAlsoBehindAPartialBlock) {
  EXPECT_EQ(Shares(Make(8, 16), {{.start = 3, .remaining = 40}, {.start = 0, .remaining = 40}}),
            (std::vector<std::int32_t>{5, 8}));
}

TEST(MicroBatcher, SharesRespectTheLimitOfAChunk) {
  EXPECT_EQ(Shares(Make(8, 64, /*chunk_tokens=*/8), {{.start = 0, .remaining = 40}}),
            (std::vector<std::int32_t>{8}));
}

TEST(MicroBatcher, TheFirstGetsSomethingWhereNoBlockIsLeft) {
  MicroBatcher batcher = Make(8, 16);
  ASSERT_TRUE(batcher.Take(14, 0));

  EXPECT_EQ(Shares(batcher, {{.start = 6, .remaining = 40}, {.start = 0, .remaining = 2}}),
            (std::vector<std::int32_t>{2, 0}));
  EXPECT_FALSE(batcher.HasBlocksFor(2));
  EXPECT_TRUE(batcher.HasBlocksFor(1));
}

TEST(MicroBatcher, LeavesABlockOfBudgetToAPromptBesideAllThatDecode) {
  EXPECT_EQ(Make(64, 16).max_running(), 13);
  EXPECT_EQ(Make(8, 16).max_running(), 8);
  EXPECT_EQ(Make(8, 4).max_running(), 1);
}

TEST(MicroBatcher, RefusesLimitsUnderWhichNoPromptGetsOn) {
  EXPECT_THROW(Make(4, 3), InvariantError);
  EXPECT_THROW(Make(4, 16, /*chunk_tokens=*/3), InvariantError);
}

}  // namespace
}  // namespace antiphon
