#include "antiphon/kernels/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "linear_fixture.h"

namespace antiphon::kernels {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kF32,  WeightFormat::kBf16, WeightFormat::kInt8,
                                     WeightFormat::kInt6, WeightFormat::kInt5, WeightFormat::kInt4};

struct Case {
  Isa isa;
  WeightFormat format;
};

class Linear : public testing::TestWithParam<Case> {
 protected:
  PackedMatrix random_matrix(std::int64_t num_out, std::int64_t num_in,
                             RowOrder order = RowOrder::kPlain) {
    PackedMatrix matrix(num_out, num_in, GetParam().format, order, GetParam().isa);
    const std::vector<float> weights = random_floats(random_, num_out * num_in, 0.1F);
    matrix.pack_f32(0, num_out, weights.data());
    return matrix;
  }

  Buffer random_rows(Type type, std::int64_t num_rows, std::int64_t width) {
    return {type, random_floats(random_, num_rows * width)};
  }

  void check(const Shape& shape, Epilogue epilogue, Type out_type, bool with_bias);

  std::mt19937 random_{7};
  ThreadTeam team_{2, false};
};

void Linear::check(const Shape& shape, Epilogue epilogue, Type out_type, bool with_bias) {
  const bool gated = epilogue == Epilogue::kSiluMul;
  const std::int64_t width = gated ? shape.num_out / 2 : shape.num_out;
  const PackedMatrix matrix =
      random_matrix(shape.num_out, shape.num_in, gated ? RowOrder::kGateUp : RowOrder::kPlain);
  Buffer in = random_rows(matrix.input_type(), shape.num_rows, shape.num_in);
  const std::vector<float> bias = random_floats(random_, shape.num_out);
  constexpr std::int64_t kColumn = 3;  // before it and behind the product nothing may change
  const std::int64_t stride = width + 5;
  Buffer out = random_rows(out_type, shape.num_rows, stride);
  const Buffer before = out;

  run_linear(team_, matrix, {in.data(), in.type, shape.num_rows, shape.num_in},
             with_bias ? bias.data() : nullptr, epilogue, {out.data(), out_type, stride}, kColumn);

  const auto weights = unpacked(matrix);
  const Buffer seen = seen_by(matrix, in, shape.num_in);
  const auto product = [&](std::int64_t row, std::int64_t output) {
    return naive_product(weights[output], seen, row * shape.num_in, with_bias ? bias[output] : 0);
  };
  for (std::int64_t row = 0; row < shape.num_rows; ++row) {
    for (std::int64_t i = 0; i < stride; ++i) {
      const std::int64_t output = i - kColumn;
      const std::int64_t index = row * stride + i;
      const float found = out.at(index);
      if (output < 0 || output >= width) {
        // A hundred thousand times: whole assertions would take longer than all else here.
        if (found != before.at(index)) {
          FAIL() << "column " << i << " of row " << row << " was " << before.at(index) << " and is "
                 << found;
        }
        continue;
      }
      Expected expected = product(row, output);
      if (gated) {
        const double silu = expected.value / (1 + std::exp(-expected.value));
        const Expected up = product(row, width + output);
        expected.tolerance = 1.2 * expected.tolerance * std::abs(up.value) +
                             up.tolerance * std::abs(silu) + 1e-6 * std::abs(silu * up.value);
        expected.value = silu * up.value;
      } else if (epilogue == Epilogue::kAdd) {
        expected.value += before.at(index);
        expected.tolerance += 1e-6 * std::abs(before.at(index));
      }
      expected.tolerance += out_type == Type::kBf16 ? std::abs(expected.value) / 250 : 0;
      if (!(std::abs(found - expected.value) <= expected.tolerance)) {
        FAIL() << "output " << output << " of row " << row << " of " << shape.num_out << " x "
               << shape.num_in << " x " << shape.num_rows << " is " << found << " instead of "
               << expected.value << " +- " << expected.tolerance;
      }
    }
  }
}

TEST_P(Linear, AgreesWithTheNaiveModelInEveryShape) {
  std::uniform_int_distribution<std::int64_t> outs(1, 70);
  std::uniform_int_distribution<std::int64_t> ins(1, 130);
  std::uniform_int_distribution<std::int64_t> rows(1, 70);
  for (int i = 0; i < 6; ++i) {
    const Shape shape = {outs(random_), ins(random_), rows(random_)};
    check(shape, Epilogue::kStore, i % 2 == 0 ? Type::kF32 : Type::kBf16, i % 3 == 0);
    check(shape, Epilogue::kAdd, Type::kF32, i % 3 == 1);
    check({2 * shape.num_out, shape.num_in, shape.num_rows}, Epilogue::kSiluMul,
          i % 2 == 0 ? Type::kF32 : Type::kBf16, i % 3 == 2);
  }
}

TEST_P(Linear, AgreesWithTheNaiveModelBeyondOneChunkAndTask) {
  check({66, 1120, 3}, Epilogue::kStore, Type::kF32, true);
  check({20, 2080, 97}, Epilogue::kAdd, Type::kF32, false);
}

TEST_P(Linear, RowsResultsDependOnNothingButTheRow) {
  constexpr std::int64_t kIn = 1120;
  constexpr std::int64_t kOut = 96;
  constexpr std::int64_t kRows = 83;
  const PackedMatrix matrix = random_matrix(kOut, kIn);
  Buffer in = random_rows(matrix.input_type(), kRows, kIn);
  const std::int64_t element = in.type == Type::kBf16 ? 2 : 4;
  std::vector<float> whole(kRows * kOut);
  run_linear(team_, matrix, {in.data(), in.type, kRows, kIn}, nullptr, Epilogue::kStore,
             {whole.data(), Type::kF32, kOut});

  ThreadTeam others(3, false);
  for (const std::int64_t num_rows : {1, 2, 3, 4, 7, 15, 16, 17, 31, 32, 33, 48, 65}) {
    const std::int64_t first = kRows - num_rows - num_rows % 5;
    std::vector<float> part(num_rows * kOut);
    run_linear(num_rows % 2 == 0 ? team_ : others, matrix,
               {static_cast<std::byte*>(in.data()) + first * kIn * element, in.type, num_rows, kIn},
               nullptr, Epilogue::kStore, {part.data(), Type::kF32, kOut});

    ASSERT_EQ(std::memcmp(part.data(), &whole[first * kOut], part.size() * sizeof(float)), 0)
        << num_rows << " rows";
  }
}

TEST_P(Linear, WhatIsNoNumberStaysInItsRow) {
  constexpr std::int64_t kIn = 70;
  constexpr std::int64_t kOut = 40;
  const PackedMatrix matrix = random_matrix(kOut, kIn);
  std::vector<float> values = random_floats(random_, 3 * kIn);
  values[kIn + 5] = std::numeric_limits<float>::quiet_NaN();
  values[2 * kIn + 64] = std::numeric_limits<float>::infinity();
  Buffer in(matrix.input_type(), values);
  std::vector<float> out(3 * kOut);

  run_linear(team_, matrix, {in.data(), in.type, 3, kIn}, nullptr, Epilogue::kStore,
             {out.data(), Type::kF32, kOut});

  for (std::int64_t i = 0; i < kOut; ++i) {
    EXPECT_TRUE(std::isfinite(out[i]));
    EXPECT_TRUE(std::isnan(out[kOut + i]));
    EXPECT_FALSE(std::isfinite(out[2 * kOut + i]));
  }
}

TEST_P(Linear, TakesRowsOfTheOtherType) {
  constexpr std::int64_t kIn = 96;
  constexpr std::int64_t kOut = 20;
  const PackedMatrix matrix = random_matrix(kOut, kIn);
  Buffer halves = random_rows(Type::kBf16, 5, kIn);
  Buffer floats(Type::kF32, halves.floats);
  std::vector<float> of_halves(5 * kOut);
  std::vector<float> of_floats(5 * kOut);

  run_linear(team_, matrix, {halves.data(), Type::kBf16, 5, kIn}, nullptr, Epilogue::kStore,
             {of_halves.data(), Type::kF32, kOut});
  run_linear(team_, matrix, {floats.data(), Type::kF32, 5, kIn}, nullptr, Epilogue::kStore,
             {of_floats.data(), Type::kF32, kOut});

  EXPECT_EQ(of_halves, of_floats);
}

TEST_P(Linear, TakesZerosAndTheSmallestAndLargestInputs) {
  constexpr std::int64_t kIn = 128;
  constexpr std::int64_t kOut = 20;
  const PackedMatrix matrix = random_matrix(kOut, kIn);
  std::vector<float> values(kIn);
  values[40] = 0x1p-126F;
  values[70] = 0x1p60F;
  values[100] = -0x1p100F;
  Buffer in(matrix.input_type(), values);
  std::vector<float> out(kOut);

  run_linear(team_, matrix, {in.data(), in.type, 1, kIn}, nullptr, Epilogue::kStore,
             {out.data(), Type::kF32, kOut});

  const auto weights = unpacked(matrix);
  for (std::int64_t i = 0; i < kOut; ++i) {
    const Expected expected = naive_product(weights[i], in, 0, 0);
    EXPECT_NEAR(out[i], expected.value, expected.tolerance);
  }
}

TEST_P(Linear, StoresGatesAndUpsInTheirOwnColumns) {
  const PackedMatrix paired = random_matrix(70, 40, RowOrder::kGateUp);
  PackedMatrix plain(70, 40, WeightFormat::kF32, RowOrder::kPlain, Isa::kPortable);
  const auto weights = unpacked(paired);
  for (std::int64_t row = 0; row < 70; ++row) {
    plain.pack_f32(row, 1, weights[row].data());
  }
  Buffer in = random_rows(paired.input_type(), 2, 40);
  const std::vector<float> bias = random_floats(random_, 70);
  std::vector<float> of_paired(140);
  std::vector<float> of_plain(140);

  run_linear(team_, paired, {in.data(), in.type, 2, 40}, bias.data(), Epilogue::kStore,
             {of_paired.data(), Type::kF32, 70});
  run_linear(team_, plain, {in.data(), in.type, 2, 40}, bias.data(), Epilogue::kStore,
             {of_plain.data(), Type::kF32, 70});

  for (int i = 0; i < 140; ++i) {
    // Integers are a 254th of the largest input beside them off at most.
    const bool are_integers = takes_integers(GetParam().isa, GetParam().format);
    EXPECT_NEAR(of_paired[i], of_plain[i], are_integers ? 0.05 : 1e-5);
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Isa isa : isas_here()) {
    for (const WeightFormat format : kFormats) {
      // Others are those of the instruction set that it stands on.
      if (isa != base_of(isa) && !takes_integers(isa, format)) {
        continue;
      }
      cases.push_back({isa, format});
    }
  }
  return cases;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  constexpr const char* kNames[] = {"f32", "bf16", "int8", "int6", "int5", "int4"};
  return std::string(name(info.param.isa)) + "_" + kNames[static_cast<int>(info.param.format)];
}

INSTANTIATE_TEST_SUITE_P(All, Linear, testing::ValuesIn(all_cases()), case_name);

TEST(LinearOfIntegers, IsTheSameInVectorsOfAnyWidth) {
  if (!has(Isa::kAvxVnni) || !has(Isa::kAvx512Vnni)) {
    GTEST_SKIP() << "this machine lacks one of them";
  }
  constexpr std::int64_t kIn = 200;
  constexpr std::int64_t kOut = 70;
  constexpr std::int64_t kRows = 9;
  std::mt19937 random(5);
  const std::vector<float> weights = random_floats(random, kOut * kIn);
  Buffer in(Type::kBf16, random_floats(random, kRows * kIn));
  ThreadTeam team(1, false);
  for (const WeightFormat format : kFormats) {
    if (!takes_integers(Isa::kAvxVnni, format)) {
      continue;
    }
    std::vector<float> results[2];
    for (const Isa isa : {Isa::kAvxVnni, Isa::kAvx512Vnni}) {
      PackedMatrix matrix(kOut, kIn, format, RowOrder::kPlain, isa);
      matrix.pack_f32(0, kOut, weights.data());
      std::vector<float>& out = results[isa == Isa::kAvxVnni ? 0 : 1];
      out.resize(kRows * kOut);
      run_linear(team, matrix, {in.data(), in.type, kRows, kIn}, nullptr, Epilogue::kStore,
                 {out.data(), Type::kF32, kOut});
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

// More of them than there are tasks or cores.
TEST(LinearOfManyWorkers, IsThatOfOne) {
  constexpr std::int64_t kIn = 320;
  constexpr std::int64_t kOut = 160;
  constexpr std::int64_t kRows = 600;
  std::mt19937 random(6);
  const std::vector<float> weights = random_floats(random, kOut * kIn);
  ThreadTeam alone(1, false);
  ThreadTeam many(64, false);
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kInt8}) {
    PackedMatrix matrix(kOut, kIn, format, RowOrder::kPlain, best_isa());
    matrix.pack_f32(0, kOut, weights.data());
    Buffer in(matrix.input_type(), random_floats(random, kRows * kIn));
    for (const std::int64_t num_rows : {std::int64_t{1}, std::int64_t{40}, kRows}) {
      std::vector<float> results[2];
      for (ThreadTeam* const team : {&alone, &many}) {
        std::vector<float>& out = results[team == &alone ? 0 : 1];
        out.resize(num_rows * kOut);
        run_linear(*team, matrix, {in.data(), in.type, num_rows, kIn}, nullptr, Epilogue::kStore,
                   {out.data(), Type::kF32, kOut});
      }
      EXPECT_EQ(results[0], results[1]) << num_rows << " rows";
    }
  }
}

TEST(LinearArguments, AreRefusedWhereAnEpilogueCantTakeThem) {
  const PackedMatrix matrix(32, 32, WeightFormat::kF32, RowOrder::kPlain, Isa::kPortable);
  ThreadTeam team(1, false);
  std::vector<float> values(64);
  const Rows in = {values.data(), Type::kF32, 1, 32};

  EXPECT_THROW(
      run_linear(team, matrix, in, nullptr, Epilogue::kAdd, {values.data() + 32, Type::kBf16, 32}),
      std::invalid_argument);
  EXPECT_THROW(run_linear(team, matrix, in, nullptr, Epilogue::kSiluMul,
                          {values.data() + 32, Type::kF32, 32}),
               std::invalid_argument);
}

}  // namespace
}  // namespace antiphon::kernels
