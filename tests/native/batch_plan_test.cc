#include "antiphon/batch_plan.h"

#include <gtest/gtest.h>

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
  request.seed = 9;
  request.output_index = 2;
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

  writer.AddRow(request, 2);
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
  Request decode = MakeRequest(RequestState::kDecode, {1, 2, 3, 9}, 3, 3);
  Request last_chunk = MakeRequest(RequestState::kPrefill, {1, 2, 3, 4, 5}, 5, 2);
  const StepBuffers& out = arrays.buffers();
  PlanWriter writer(out, 2);

  writer.AddRow(decode, 1);
  writer.AddRow(last_chunk, 3);
  writer.Finish(6, {});

  EXPECT_EQ(out.cu_q[1], 1);
  EXPECT_EQ(out.cu_q[2], 4);
  EXPECT_EQ(out.input_ids[0], 9);
  EXPECT_EQ(out.input_ids[1], 3);
  EXPECT_EQ(out.sample_rows[0], 0);
  EXPECT_EQ(out.sample_rows[1], 3);
  EXPECT_EQ(out.output_position[0], 1);
  EXPECT_EQ(out.uniform[0], Uniform(9, 2, 1));
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

  writer.AddRow(request, 1);
  writer.Finish(1, {});

  const std::int32_t* delta = arrays.buffers().table_delta;
  EXPECT_EQ(std::vector<std::int32_t>(delta, delta + 6),
            (std::vector<std::int32_t>{1, 0, 4, 1, 2, 2}));
  EXPECT_EQ(arrays.header(kHeaderNumTableDeltas), 2);
  EXPECT_EQ(NumTableDeltas(request.chain, 3), 0);
}

TEST(PlanWriter, SaysThatARequestComesBack) {
  StepArrays arrays(1, 8, 8);
  Request request = MakeRequest(RequestState::kPrefill, {1, 2, 3, 4, 5, 6}, 4, 0);
  request.new_slot = true;
  request.started = true;
  PlanWriter writer(arrays.buffers(), 2);

  writer.AddRow(request, 6);
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

  writer.AddRow(request, 1);
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
