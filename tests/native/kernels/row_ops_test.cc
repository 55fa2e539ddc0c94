#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "antiphon/kernels/embedding.h"
#include "antiphon/kernels/norm.h"
#include "antiphon/kernels/rope_store.h"
#include "attention_case.h"

namespace antiphon::kernels {
namespace {

std::vector<float> RandomFloats(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return values;
}

class RowOps : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!has(GetParam())) {
      GTEST_SKIP() << "this machine has no " << name(GetParam());
    }
  }
};

double Tolerance(Type type, double expected) {
  return (type == Type::kF32 ? 1e-6 : 4e-3) * std::max(1.0, std::abs(expected));
}

TEST_P(RowOps, NormsAreThoseOfTheNaiveModel) {
  for (const std::int64_t size : {1, 3, 8, 17, 64, 100, 896}) {
    for (const std::int64_t num_rows : {1, 5, 70}) {
      for (const Type type : {Type::kF32, Type::kBf16}) {
        const std::int64_t stride = size + 3;
        const std::vector<float> in = RandomFloats(num_rows * stride, 1);
        const std::vector<float> weight = RandomFloats(size, 2);
        Elements out(type, num_rows * (size + 1));
        ThreadTeam team(2);
        TaskCursor cursor;
        team.run([&](Worker& worker) {
          rms_norm(worker, cursor, {weight.data(), size, 1e-5F},
                   {in.data(), Type::kF32, num_rows, stride}, {out.data(), type, size + 1},
                   GetParam());
        });
        for (std::int64_t row = 0; row < num_rows; ++row) {
          double squares = 0;
          for (std::int64_t i = 0; i < size; ++i) {
            squares += std::pow(double{in[row * stride + i]}, 2);
          }
          const double factor = 1 / std::sqrt(squares / static_cast<double>(size) + 1e-5);
          for (std::int64_t i = 0; i < size; ++i) {
            const double expected = in[row * stride + i] * factor * weight[i];
            ASSERT_NEAR(out.at(row * (size + 1) + i), expected, Tolerance(type, expected));
          }
          EXPECT_EQ(out.at(row * (size + 1) + size), 0) << "behind a row's end";
        }
      }
    }
  }
}

// One token's heads, rotated as doubles.
std::vector<double> NaiveHead(const float* head, int dim, const float* norm, const float* cos,
                              const float* sin) {
  std::vector<double> values(head, head + dim);
  if (norm != nullptr) {
    double squares = 0;
    for (const double value : values) {
      squares += value * value;
    }
    for (int i = 0; i < dim; ++i) {
      values[i] *= norm[i] / std::sqrt(squares / dim + 1e-6);
    }
  }
  std::vector<double> rotated(values.size());
  for (int i = 0; i < dim / 2; ++i) {
    rotated[i] = values[i] * cos[i] - values[dim / 2 + i] * sin[i];
    rotated[dim / 2 + i] = values[dim / 2 + i] * cos[i] + values[i] * sin[i];
  }
  return rotated;
}

struct RopeCase {
  int num_heads = 6;
  int num_kv_heads = 2;
  int head_dim = 64;
  bool has_norms = false;
  Type type = Type::kF32;
};

void ExpectNaiveRope(const RopeCase& shape, Isa isa) {
  constexpr int kTokens = 21;
  const int dim = shape.head_dim;
  const std::int64_t kv_size = std::int64_t{shape.num_kv_heads} * dim;
  const std::int64_t q_size = std::int64_t{shape.num_heads} * dim;
  const std::int64_t width = q_size + 2 * kv_size;
  const std::vector<float> qkv = RandomFloats(kTokens * width, 1);
  const std::vector<float> q_norm = RandomFloats(dim, 2);
  const std::vector<float> k_norm = RandomFloats(dim, 3);
  const std::vector<float> cos = RandomFloats(kTokens * dim / 2, 4);
  const std::vector<float> sin = RandomFloats(kTokens * dim / 2, 5);
  std::vector<std::int64_t> slots;
  for (int i = 0; i < kTokens; ++i) {
    slots.push_back((i * 8) % kTokens + 3);
  }
  Elements keys(shape.type, (kTokens + 4) * kv_size);
  Elements values(shape.type, (kTokens + 4) * kv_size);
  Elements q(shape.type, kTokens * q_size);
  const RopeStore op{.num_heads = shape.num_heads,
                     .num_kv_heads = shape.num_kv_heads,
                     .head_dim = dim,
                     .q_norm = shape.has_norms ? q_norm.data() : nullptr,
                     .k_norm = shape.has_norms ? k_norm.data() : nullptr,
                     .epsilon = 1e-6F,
                     .cos = cos.data(),
                     .sin = sin.data(),
                     .k_pool = keys.data(),
                     .v_pool = values.data(),
                     .kv_type = shape.type,
                     .slot_mapping = slots.data()};
  ThreadTeam team(2);
  TaskCursor cursor;
  team.run([&](Worker& worker) {
    rope_store(worker, cursor, op, {qkv.data(), Type::kF32, kTokens, width},
               {q.data(), shape.type, q_size}, isa);
  });
  for (int token = 0; token < kTokens; ++token) {
    const float* row = qkv.data() + token * width;
    const float* c = cos.data() + token * dim / 2;
    const float* s = sin.data() + token * dim / 2;
    for (int head = 0; head < shape.num_heads + shape.num_kv_heads; ++head) {
      const bool is_key = head >= shape.num_heads;
      const std::vector<double> expected =
          NaiveHead(row + head * dim, dim, is_key ? op.k_norm : op.q_norm, c, s);
      for (int i = 0; i < dim; ++i) {
        const float value =
            is_key ? keys.at(slots[token] * kv_size + (head - shape.num_heads) * dim + i)
                   : q.at(token * q_size + head * dim + i);
        ASSERT_NEAR(value, expected[i], 2 * Tolerance(shape.type, expected[i]));
      }
    }
    for (std::int64_t i = 0; i < kv_size; ++i) {
      const float expected = row[q_size + kv_size + i];
      ASSERT_NEAR(values.at(slots[token] * kv_size + i), expected, Tolerance(shape.type, expected));
    }
  }
  for (std::int64_t i = 0; i < 3 * kv_size; ++i) {
    ASSERT_EQ(keys.at(i), 0) << "a slot that no token has";
  }
}

TEST_P(RowOps, HeadsAreRotatedAndStoredAsInTheNaiveModel) {
  for (const Type type : {Type::kF32, Type::kBf16}) {
    for (const bool has_norms : {false, true}) {
      for (const int dim : {8, 20, 64, 128}) {
        ExpectNaiveRope({.head_dim = dim, .has_norms = has_norms, .type = type}, GetParam());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, RowOps, testing::Values(Isa::kPortable, Isa::kAvx2, Isa::kAvx512),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST(RopeAngles, AreThoseOfPositionTimesFrequency) {
  const std::vector<std::int32_t> positions{0, 1, 77, 32'000};
  const std::vector<float> frequencies{1.0F, 0.1F, 0.001F};
  std::vector<float> cos(12);
  std::vector<float> sin(12);
  ThreadTeam team(2);
  TaskCursor cursor;
  team.run([&](Worker& worker) {
    rope_angles(worker, cursor,
                {positions.data(), 4, frequencies.data(), 3, 1.5F, cos.data(), sin.data()});
  });
  for (std::size_t i = 0; i < cos.size(); ++i) {
    // The product is rounded to f32 first, as transformers does.
    const float angle = static_cast<float>(positions[i / 3]) * frequencies[i % 3];
    EXPECT_NEAR(cos[i], 1.5 * std::cos(double{angle}), 1e-6);
    EXPECT_NEAR(sin[i], 1.5 * std::sin(double{angle}), 1e-6);
  }
}

TEST(Embedding, IsTheRowOfEachId) {
  constexpr std::int64_t kRows = 37;
  constexpr std::int64_t kSize = 40;
  const std::vector<float> weights = RandomFloats(kRows * kSize, 1);
  PackedMatrix table(kRows, kSize, WeightFormat::kF32, RowOrder::kPlain, Isa::kPortable);
  table.pack_f32(0, kRows, weights.data());
  const std::vector<std::int32_t> ids{36, 0, 5, 5, 17};
  std::vector<float> out(ids.size() * kSize);
  ThreadTeam team(2);
  TaskCursor cursor;
  team.run([&](Worker& worker) {
    embed(worker, cursor, table, ids.data(), std::ssize(ids), {out.data(), Type::kF32, kSize});
  });
  for (std::size_t token = 0; token < ids.size(); ++token) {
    for (std::int64_t i = 0; i < kSize; ++i) {
      EXPECT_EQ(out[token * kSize + i], weights[ids[token] * kSize + i]);
    }
  }
}

}  // namespace
}  // namespace antiphon::kernels
