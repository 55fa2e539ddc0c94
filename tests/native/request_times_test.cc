#include "antiphon/request_times.h"

#include <gtest/gtest.h>

#include "small_engine.h"

namespace antiphon {
namespace {

TEST(RequestTimes, ChunksBetweenTheFirstAndTheLastAreMerged) {
  RequestTimes times;
  times.Reset(1, 5);
  for (std::int32_t i = 0; i < 40; ++i) {
    times.AddChunk({.start_ns = 10 * i,
                    .end_ns = 10 * i + 5,
                    .step = i + 1,
                    .num_steps = 1,
                    .num_tokens = 2,
                    .num_rows = i == 35 ? 9 : 1});
  }

  ASSERT_EQ(times.num_chunks, RequestTimes::kMaxChunks);
  EXPECT_EQ(times.chunks[31].step, 32);
  const PrefillChunk& merged = times.chunks[32];
  EXPECT_EQ(merged.start_ns, 320);
  EXPECT_EQ(merged.end_ns, 385);
  EXPECT_EQ(merged.step, 33);
  EXPECT_EQ(merged.num_steps, 7);
  EXPECT_EQ(merged.num_tokens, 14);
  EXPECT_EQ(merged.num_rows, 9);
  EXPECT_EQ(times.chunks[33].step, 40);
}

TEST(RequestTimes, RestsBeyondTheFirstAreCountedAndAddedUp) {
  RequestTimes times;
  times.Reset(1, 0);
  for (std::int64_t i = 0; i < 20; ++i) {
    times.StartRest(100 * i, i % 2 == 1);
    times.EndRest(100 * i + 7);
    times.EndRest(100 * i + 9);
  }

  EXPECT_EQ(times.num_rests, 20);
  EXPECT_EQ(times.rest_ns, 140);
  ASSERT_EQ(times.known_rests().size(), 16U);
  EXPECT_TRUE(times.known_rests()[15].held);
  EXPECT_EQ(times.known_rests()[15].start_ns, 1500);
}

TEST(RequestTimes, ARestEndsWhereAnotherStarts) {
  RequestTimes times;
  times.Reset(1, 0);

  times.StartRest(10, /*held=*/true);
  times.StartRest(15, /*held=*/false);
  times.EndRest(18);

  ASSERT_EQ(times.known_rests().size(), 2U);
  EXPECT_TRUE(times.known_rests()[0].held);
  EXPECT_EQ(times.known_rests()[0].end_ns, 15);
  EXPECT_FALSE(times.known_rests()[1].held);
  EXPECT_EQ(times.known_rests()[1].start_ns, 15);
  EXPECT_EQ(times.rest_ns, 8);
}

TEST(RequestTimes, MemoryThatIsLostAgainBeforeARowIsAnotherRest) {
  Engine engine;
  const Handle handle = engine.SubmitFrom(1, 4, 4);
  engine.Step();
  engine.core().Hold(handle);
  engine.core().Release(handle);
  engine.core().SitOut(handle);
  EXPECT_EQ(engine.Plan(), 0);
  ASSERT_EQ(engine.stats().num_running, 1);

  engine.core().Hold(handle);

  engine.core().Release(handle);
  engine.core().Rejoin(handle);
  ASSERT_TRUE(engine.Step());
  EXPECT_EQ(engine.core().Times(handle)->num_rests, 2);
  EXPECT_FALSE(engine.core().Times(handle)->is_resting);
}

TEST(RequestTimes, NothingIsLeftOfWhoHadThePlaceBefore) {
  RequestTimes times;
  times.Reset(1, 0);
  times.AddChunk({.start_ns = 1, .end_ns = 2, .step = 1, .num_steps = 1, .num_tokens = 3});
  times.StartRest(3, false);

  times.Reset(2, 50);

  EXPECT_EQ(times.handle, 2U);
  EXPECT_EQ(times.arrival_ns, 50);
  EXPECT_TRUE(times.known_chunks().empty());
  EXPECT_FALSE(times.is_resting);
}

}  // namespace
}  // namespace antiphon
