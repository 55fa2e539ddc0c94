#include "antiphon/batch_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "antiphon/random.h"
#include "step_arrays.h"

namespace antiphon {
namespace {

Request MakeRequest(RequestState state, std::vector<TokenId> tokens, std::int32_t num_prompt,
                    std::int32_t num_computed) {
  Request request;
  request.handle = 77;
  request.epoch = 3;
  request.state = state;
  request.tokens = std::move(tokens);
  request.num_prompt = num_prompt;
  request.num_computed = num_computed;
  request.slot = 1;
  request.draws = Draws(9, 2);
  request.flags = kFlagBias;
  request.chain.blocks = {4, 7, 2};
  return request;
}

TEST(PlanWriter, WritesAFirstChunk) {
  StepArrays arrays(2, 8, 8);
  Request request = MakeRequest(RequestState::kPrefill, {1, 2, 3, 4, 5, 6}, 6, 2);
  request.new_slot = true;
  const StepBuffers& out = arrays.buffers();
  PlanWriter writer(out, 2);

  writer.AddChunk(request, 2);
  writer.Finish(5, {});

  EXPECT_EQ(out.handle[0], 77U);
  EXPECT_EQ(out.epoch[0], 3U);
  EXPECT_EQ(out.flags[0], kFlagPrefill | kFlagFirst | kFlagBias);
  EXPECT_EQ(out.reused_tokens[0], 2);
  EXPECT_EQ(out.ctx_len[0], 2);
  EXPECT_EQ(out.kv_len[0], 4);
  EXPECT_EQ(out.input_ids[1], 4);
  EXPECT_EQ(out.positions[1], 3);
  EXPECT_EQ(out.slot_mapping[0], 7 * 2);
  EXPECT_EQ(out.slot_mapping[1], 7 * 2 + 1);
  EXPECT_EQ(out.slot_init[0], 0);
  EXPECT_EQ(out.sample_indptr[1], 0);
  EXPECT_EQ(arrays.header(kHeaderNumSamples), 0);
  EXPECT_EQ(arrays.header(kHeaderNumPrefillRows), 1);
  EXPECT_EQ(arrays.header(kHeaderNumTableDeltas), 3);
  EXPECT_EQ(arrays.header(kHeaderStepId), 5);
}

TEST(PlanWriter, RowsFollowEachOther) {
  StepArrays arrays(2, 8, 8);
  Request decode = MakeRequest(RequestState::kDecode, {1, 2, 3, 9, 8, 7}, 3, 5);
  Request last_chunk = MakeRequest(RequestState::kPrefill, {1, 2, 3, 4, 5}, 5, 2);
  const StepBuffers& out = arrays.buffers();
  PlanWriter writer(out, 2);

  writer.AddDecode(decode);
  writer.AddChunk(last_chunk, 3);
  writer.Finish(6, {});

  EXPECT_EQ(out.cu_q[1], 1);
  EXPECT_EQ(out.cu_q[2], 4);
  EXPECT_EQ(out.input_ids[0], 7);
  EXPECT_EQ(out.input_ids[1], 3);
  EXPECT_EQ(out.sample_rows[0], 0);
  EXPECT_EQ(out.sample_rows[1], 3);
  EXPECT_EQ(out.slot_mapping[0], 2 * 2 + 1);
  EXPECT_EQ(out.output_position[0], 3);
  EXPECT_EQ(out.uniform[0], Uniform(9, 2, 3));
  EXPECT_EQ(out.flags[0] & (kFlagPrefill | kFlagSample), kFlagSample);
  EXPECT_EQ(arrays.header(kHeaderNumDecodeRows), 1);
  EXPECT_EQ(arrays.header(kHeaderNumSlotInits), 0);
}

TEST(PlanWriter, TellsTheDeviceOnlyWhatIsNewOrMoved) {
  StepArrays arrays(1, 8, 8);
  Request request = MakeRequest(RequestState::kDecode, {1, 2, 3, 4, 5}, 4, 4);
  request.chain.num_sent = 2;
  request.chain.moved = {0};
  EXPECT_EQ(NumTableDeltas(request.chain, 3), 2);
  PlanWriter writer(arrays.buffers(), 2);

  writer.AddDecode(request);
  writer.Finish(1, {});

  const std::int32_t* delta = arrays.buffers().table_delta;
  EXPECT_EQ(std::vector<std::int32_t>(delta, delta + 6),
            (std::vector<std::int32_t>{1, 0, 4, 1, 2, 2}));
  EXPECT_EQ(arrays.header(kHeaderNumTableDeltas), 2);
  EXPECT_EQ(NumTableDeltas(request.chain, 3), 0);
}

// What a chunk of one token says, but for its flag.
TEST(PlanWriter, FillsInEveryColumnOfRowsThatDecode) {
  StepArrays decodes(3, 3, 16);
  StepArrays chunks(3, 3, 16);
  PlanWriter decode_writer(decodes.buffers(), 2);
  PlanWriter chunk_writer(chunks.buffers(), 2);
  for (std::int32_t length = 4; length < 7; ++length) {
    std::vector<TokenId> tokens(static_cast<std::size_t>(length), 10 + length);
    Request decode = MakeRequest(RequestState::kDecode, tokens, 3, length - 1);
    decode.chain.blocks.resize(static_cast<std::size_t>(BlocksFor(length, 2)), 9);
    Request chunk = decode;
    decode_writer.AddDecode(decode);
    chunk_writer.AddChunk(chunk, 1);
  }
  decode_writer.Finish(1, {});
  chunk_writer.Finish(1, {});

  const StepBuffers& a = decodes.buffers();
  const StepBuffers& b = chunks.buffers();
  const auto expect_equal = [](const auto* one, const auto* other, std::size_t count) {
    EXPECT_TRUE(std::equal(one, one + count, other));
  };
  for (const auto column :
       {&StepBuffers::slot, &StepBuffers::q_len, &StepBuffers::ctx_len, &StepBuffers::kv_len,
        &StepBuffers::reused_tokens, &StepBuffers::output_position, &StepBuffers::sample_rows,
        &StepBuffers::input_ids, &StepBuffers::gather_slot, &StepBuffers::positions}) {
    expect_equal(a.*column, b.*column, 3);
  }
  expect_equal(a.slot_mapping, b.slot_mapping, 3);
  expect_equal(a.uniform, b.uniform, 3);
  expect_equal(a.cu_q, b.cu_q, 4);
  expect_equal(a.sample_indptr, b.sample_indptr, 4);
  expect_equal(a.table_delta, b.table_delta,
               static_cast<std::size_t>(a.header[kHeaderNumTableDeltas]) * kTableDeltaColumns);
}

TEST(PlanWriter, SaysThatARequestComesBack) {
  StepArrays arrays(1, 8, 8);
  Request request = MakeRequest(RequestState::kPrefill, {1, 2, 3, 4, 5, 6}, 4, 0);
  request.new_slot = true;
  request.started = true;
  PlanWriter writer(arrays.buffers(), 2);

  writer.AddChunk(request, 6);
  writer.Finish(1, {});

  EXPECT_EQ(arrays.buffers().flags[0], kFlagPrefill | kFlagSample | kFlagResumed | kFlagBias);
  EXPECT_EQ(arrays.header(kHeaderNumSlotInits), 1);
  EXPECT_EQ(arrays.buffers().output_position[0], 2);
}

TEST(PlanWriter, LetsTheDeviceReadATokenThatIsNotKnownYet) {
  StepArrays arrays(1, 8, 8);
  Request request = MakeRequest(RequestState::kDecode, {1, 2, 3}, 3, 4);
  request.num_inflight = 1;
  request.num_pending = 2;
  PlanWriter writer(arrays.buffers(), 2);

  writer.AddDecode(request);
  writer.Finish(1, {});

  EXPECT_EQ(arrays.buffers().input_ids[0], kUnknownToken);
  EXPECT_EQ(arrays.buffers().gather_slot[0], 1);
  EXPECT_EQ(arrays.buffers().positions[0], 4);
  EXPECT_EQ(arrays.buffers().output_position[0], 2);
  EXPECT_EQ(arrays.buffers().uniform[0], Uniform(9, 2, 2));
}

TEST(PlanWriter, WritesCopies) {
  StepArrays arrays(1, 8, 8, /*num_copies=*/2);
  PlanWriter writer(arrays.buffers(), 2);
  const CopyOp copies[] = {{.kind = CopyKind::kOffload,
                            .source_tier = Tier::kDevice,
                            .source = 3,
                            .destination = 1,
                            .num_tokens = 2},
                           {.kind = CopyKind::kOnWrite,
                            .source_tier = Tier::kHost,
                            .source = 2,
                            .destination = 5,
                            .num_tokens = 1}};

  writer.Finish(1, copies);

  const std::int32_t* ops = arrays.buffers().copy_ops;
  EXPECT_EQ(std::vector<std::int32_t>(ops, ops + 10),
            (std::vector<std::int32_t>{1, 0, 3, 1, 2, 3, 1, 2, 5, 1}));
  EXPECT_EQ(arrays.header(kHeaderNumCopies), 2);
}

}  // namespace
}  // namespace antiphon
