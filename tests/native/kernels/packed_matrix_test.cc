#include "antiphon/kernels/packed_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "float16.h"
#include "linear_fixture.h"

namespace antiphon::kernels {
namespace {

struct Precision {
  WeightFormat format;
  float of_largest;  // by how much a weight may be off, of the largest beside it
};

class Packing : public testing::TestWithParam<Precision> {};

TEST_P(Packing, BringsRowsBackInAnyOrderAndFromEitherType) {
  std::mt19937 random(3);
  constexpr std::int64_t kOut = 75;
  constexpr std::int64_t kIn = 71;
  for (const Isa isa : isas_here()) {
    for (const float scale : {1e-30F, 0.02F, 1e20F}) {
      const Buffer weights(Type::kBf16, random_floats(random, kOut * kIn, scale));
      PackedMatrix matrix(kOut, kIn, GetParam().format, RowOrder::kPlain, isa);
      matrix.pack_f32(40, 35, &weights.floats[40 * kIn]);
      matrix.pack_bf16(0, 40, weights.halves.data());

      const auto rows = unpacked(matrix);

      for (std::int64_t i = 0; i < kOut * kIn; ++i) {
        ASSERT_NEAR(rows[i / kIn][i % kIn], weights.floats[i], GetParam().of_largest * 5 * scale);
      }
    }
  }
}

TEST_P(Packing, KeepsZerosAndConstants) {
  PackedMatrix matrix(2, 64, GetParam().format);
  const std::vector<float> weights(64, 0.5F);
  matrix.pack_f32(1, 1, weights.data());

  const auto rows = unpacked(matrix);

  EXPECT_EQ(rows[0], std::vector<float>(64, 0));
  for (const float value : rows[1]) {
    EXPECT_NEAR(value, 0.5F, 2e-3);
  }
}

TEST_P(Packing, LetsWhatIsNoNumberBeSeen) {
  PackedMatrix matrix(1, 96, GetParam().format);
  std::vector<float> weights(96, 0.5F);
  weights[40] = std::numeric_limits<float>::infinity();
  weights[70] = std::numeric_limits<float>::quiet_NaN();
  matrix.pack_f32(0, 1, weights.data());

  const std::vector<float> row = unpacked(matrix)[0];

  EXPECT_NEAR(row[0], 0.5F, 2e-3);
  EXPECT_FALSE(std::isfinite(row[40]));
  EXPECT_TRUE(std::isnan(row[70]));
}

INSTANTIATE_TEST_SUITE_P(Formats, Packing,
                         testing::Values(Precision{WeightFormat::kF32, 0},
                                         Precision{WeightFormat::kBf16, 0},
                                         Precision{WeightFormat::kInt8, 1 / 200.F},
                                         Precision{WeightFormat::kInt6, 1 / 50.F},
                                         Precision{WeightFormat::kInt5, 1 / 25.F},
                                         Precision{WeightFormat::kInt4, 1 / 12.F}));

TEST(PackedMatrix, KeepsGatesAndUpsTogether) {
  std::mt19937 random(4);
  const std::vector<float> weights = random_floats(random, 38 * 33);
  PackedMatrix matrix(38, 33, WeightFormat::kF32, RowOrder::kGateUp, Isa::kPortable);
  matrix.pack_f32(0, 38, weights.data());

  const auto rows = unpacked(matrix);

  for (std::int64_t i = 0; i < 38 * 33; ++i) {
    ASSERT_EQ(rows[i / 33][i % 33], weights[i]);
  }
}

TEST(PackedMatrix, RefusesWhatHasNoPlace) {
  EXPECT_THROW(PackedMatrix(0, 32, WeightFormat::kF32), std::invalid_argument);
  EXPECT_THROW(PackedMatrix(32, -1, WeightFormat::kF32), std::invalid_argument);
  EXPECT_THROW(PackedMatrix(33, 32, WeightFormat::kF32, RowOrder::kGateUp), std::invalid_argument);
  PackedMatrix matrix(32, 64, WeightFormat::kInt8);
  std::vector<float> row(64);
  EXPECT_THROW(matrix.pack_f32(32, 1, row.data()), std::invalid_argument);
  EXPECT_THROW(matrix.pack_f32(-1, 1, row.data()), std::invalid_argument);
  EXPECT_THROW(matrix.unpack_row(32, row.data()), std::invalid_argument);
  EXPECT_THROW(matrix.pack_gguf(0, 1, GgufType::kQ6_K, nullptr), std::invalid_argument);
  EXPECT_THROW(gguf_row_bytes(static_cast<GgufType>(99), 32), std::invalid_argument);
}

TEST(PackedMatrix, TellsItsSizeBeforeItIsMade) {
  EXPECT_EQ(PackedMatrix::packed_bytes(896, 4864, WeightFormat::kBf16), 896 * 4864 * 2U);
  EXPECT_EQ(PackedMatrix::packed_bytes(896, 4864, WeightFormat::kInt8), 896 * 4864 / 32 * 34U);
  EXPECT_EQ(PackedMatrix::packed_bytes(896, 4864, WeightFormat::kInt4), 896 * 4864 / 32 * 20U);
  EXPECT_EQ(PackedMatrix(896, 4864, WeightFormat::kInt4).num_bytes(), 896 * 4864 / 32 * 20U);
}

TEST(Float16, IsRoundedToTheNearest) {
  for (std::uint32_t bits = 0; bits < 0x7C00U; ++bits) {
    const float value = from_f16(static_cast<std::uint16_t>(bits));
    const float next =
        bits + 1 == 0x7C00U ? 65536.F : from_f16(static_cast<std::uint16_t>(bits + 1));
    const float middle = value + (next - value) / 2;
    ASSERT_EQ(to_f16(value), bits);
    ASSERT_EQ(to_f16(-value), bits | 0x8000U);
    ASSERT_EQ(to_f16(middle), bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(to_f16(std::nextafter(middle, 0.F)), bits);
    ASSERT_EQ(to_f16(std::nextafter(middle, 1e9F)), bits + 1);
  }
  EXPECT_TRUE(std::isnan(from_f16(to_f16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isinf(from_f16(to_f16(1e9F))));
}

}  // namespace
}  // namespace antiphon::kernels
