#include "antiphon/kernels/program.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

namespace antiphon::kernels {
namespace {

constexpr std::int64_t kWidth = 40;

std::shared_ptr<PackedMatrix> Identity() {
  auto matrix = std::make_shared<PackedMatrix>(kWidth, kWidth, WeightFormat::kF32, RowOrder::kPlain,
                                               Isa::kPortable);
  for (std::int64_t row = 0; row < kWidth; ++row) {
    std::vector<float> values(kWidth, 0.0F);
    values[static_cast<std::size_t>(row)] = 1.0F;
    matrix->pack_f32(row, 1, values.data());
  }
  return matrix;
}

std::shared_ptr<ThreadTeam> Team(int num_threads = 1) {
  return std::make_shared<ThreadTeam>(num_threads);
}

TEST(ProgramTest, OperationsFollowEachOtherWhereTheyTouch) {
  for (const int num_threads : {1, 3}) {
    Program program(Team(num_threads), 8, Isa::kPortable);
    const BufferId in = program.add_buffer(kWidth, Type::kF32);
    const BufferId middle = program.add_buffer(kWidth, Type::kF32);
    const BufferId out = program.add_buffer(2 * kWidth, Type::kF32);
    program.add_linear(in, Identity(), {}, Epilogue::kStore, middle);
    program.add_linear(middle, Identity(), {}, Epilogue::kStore, out);
    program.add_linear(middle, Identity(), {}, Epilogue::kStore, out, kWidth);
    program.add_linear(in, Identity(), {}, Epilogue::kAdd, out, kWidth);
    EXPECT_EQ(program.num_barriers(), 2);

    auto* values = static_cast<float*>(program.data(in));
    for (std::int64_t i = 0; i < 3 * kWidth; ++i) {
      values[i] = static_cast<float>(i);
    }
    StepArrays step;
    step.num_tokens = 3;
    program.run(step);
    program.run(step);

    const auto* results = static_cast<const float*>(program.data(out));
    for (std::int64_t row = 0; row < 3; ++row) {
      for (std::int64_t column = 0; column < kWidth; ++column) {
        const float value = values[row * kWidth + column];
        EXPECT_EQ(results[row * 2 * kWidth + column], value);
        EXPECT_EQ(results[row * 2 * kWidth + kWidth + column], 2 * value);
      }
    }
    EXPECT_EQ(results[3 * 2 * kWidth], 0.0F);  // behind the step's rows nothing is written
    EXPECT_EQ(program.num_runs(), 2);
  }
}

TEST(ProgramTest, RowsOfBfloat16BeginWithACacheLine) {
  Program program(Team(), 4, Isa::kPortable);

  const BufferId narrow = program.add_buffer(kWidth, Type::kBf16);
  const BufferId wide = program.add_buffer(kWidth, Type::kF32);

  EXPECT_EQ(program.stride(narrow), 64);
  EXPECT_EQ(program.stride(wide), kWidth);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(program.data(narrow)) % kCacheLine, 0U);
}

// One head of one layer, without products: what comes out are the values.
class CacheProgramTest : public testing::Test {
 protected:
  static constexpr AttentionShape kShape{1, 1, 8};

  CacheProgramTest() : program_(Team(2), 4, Isa::kPortable) {
    qkv_ = program_.add_buffer(24, Type::kF32);
    const BufferId q = program_.add_buffer(8, Type::kF32);
    out_ = program_.add_buffer(8, Type::kF32);
    program_.add_rope_angles({1.0F, 0.5F, 0.25F, 0.125F}, 1.0F);
    program_.add_rope_store(0, kShape, qkv_, {}, {}, 0.0F, q);
    program_.add_attention(0, kShape, q, 0, out_);
  }

  void Bind() { program_.bind_cache({Type::kF32, 3, 16, 1, 8}, {{keys_.data(), values_.data()}}); }

  StepArrays Step() const {
    StepArrays step;
    step.num_tokens = 2;
    step.positions = positions_;
    step.slot_mapping = slots_;
    step.row_tokens = lengths_;
    step.row_starts = starts_;
    step.row_contexts = contexts_;
    step.row_slots = rows_;
    step.block_tables = tables_;
    step.table_columns = 1;
    return step;
  }

  std::array<float, 3 * 16 * 8> keys_{};
  std::array<float, 3 * 16 * 8> values_{};
  std::array<std::int32_t, 2> positions_{0, 0};
  std::array<std::int64_t, 2> slots_{16, 32};
  std::array<std::int32_t, 2> lengths_{1, 1};
  std::array<std::int32_t, 2> starts_{0, 1};
  std::array<std::int32_t, 2> contexts_{0, 0};
  std::array<std::int32_t, 2> rows_{2, 0};
  std::array<std::int32_t, 3> tables_{2, -1, 1};
  Program program_;
  BufferId qkv_ = 0;
  BufferId out_ = 0;
};

TEST_F(CacheProgramTest, RowsWriteAndReadTheirOwnBlocks) {
  Bind();
  auto* qkv = static_cast<float*>(program_.data(qkv_));
  for (int i = 0; i < 48; ++i) {
    qkv[i] = static_cast<float>(i);
  }

  program_.run(Step());

  const auto* out = static_cast<const float*>(program_.data(out_));
  for (int i = 0; i < 8; ++i) {
    EXPECT_FLOAT_EQ(out[i], qkv[16 + i]);
    EXPECT_FLOAT_EQ(out[8 + i], qkv[40 + i]);
    EXPECT_EQ(values_[16 * 8 + static_cast<std::size_t>(i)], qkv[16 + i]);
  }
}

TEST_F(CacheProgramTest, NothingRunsWithoutACache) {
  EXPECT_THROW(program_.run(Step()), std::invalid_argument);
}

TEST_F(CacheProgramTest, ArraysThatLeadOutOfTheCacheAreRefused) {
  Bind();
  slots_[1] = 48;
  EXPECT_THROW(program_.run(Step()), std::invalid_argument);
  slots_[1] = 32;
  tables_[2] = 3;
  EXPECT_THROW(program_.run(Step()), std::invalid_argument);
  tables_[2] = 1;
  rows_[1] = 3;
  EXPECT_THROW(program_.run(Step()), std::invalid_argument);
  rows_[1] = 0;
  contexts_[1] = 16;
  EXPECT_THROW(program_.run(Step()), std::invalid_argument);
  contexts_[1] = 0;
  program_.run(Step());
  EXPECT_EQ(program_.num_runs(), 1);
}

TEST_F(CacheProgramTest, CacheOfAnotherFormIsRefused) {
  EXPECT_THROW(program_.bind_cache({Type::kF32, 3, 16, 1, 16}, {{keys_.data(), values_.data()}}),
               std::invalid_argument);
  EXPECT_THROW(program_.bind_cache({Type::kF32, 3, 16, 1, 8}, {}), std::invalid_argument);
}

}  // namespace
}  // namespace antiphon::kernels
