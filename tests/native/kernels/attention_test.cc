#include "antiphon/kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "attention_case.h"

namespace antiphon::kernels {
namespace {

class Attention : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!has(GetParam())) {
      GTEST_SKIP() << "this machine has no " << name(GetParam());
    }
  }
};

// The largest difference from the naive model in some of a row's tokens.
double LargestError(const SequenceShape& shape, const AttentionSequence& sequence,
                    const Elements& out, std::int64_t first_token, RowSize size) {
  double error = 0;
  const int step = std::max(1, size.tokens / 3);
  for (int token = size.tokens - 1; token >= 0; token -= step) {
    for (int head = 0; head < shape.num_kv_heads * shape.group; ++head) {
      const std::vector<double> expected = sequence.naive(size.context + token, head);
      for (int i = 0; i < shape.head_dim; ++i) {
        const float value =
            out.at((first_token + token) * sequence.q_size() + head * shape.head_dim + i);
        const double difference = std::abs(value - expected[static_cast<std::size_t>(i)]);
        error = std::isnan(value) ? HUGE_VAL : std::max(error, difference);
      }
    }
  }
  return error;
}

// Values are about 1: weights and results in bf16 are 1/256 off each, and much of that cancels.
double Bound(const SequenceShape& shape, Isa isa) {
  const bool has_bf16_weights =
      isa >= Isa::kAvx512Bf16 && shape.kv_type == Type::kBf16 && shape.q_type == Type::kBf16;
  return (has_bf16_weights ? 8e-3 : 1e-5) + (shape.out_type == Type::kBf16 ? 8e-3 : 0);
}

void ExpectNaive(const SequenceShape& shape, std::vector<RowSize> sizes, Isa isa, int threads) {
  std::vector<AttentionSequence> sequences;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    sequences.emplace_back(shape, sizes[i].context + sizes[i].tokens,
                           static_cast<std::uint32_t>(i));
  }
  std::vector<AttentionRun::Row> rows;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    rows.push_back({&sequences[i], sizes[i]});
  }
  AttentionRun run(shape, rows, 5);
  ThreadTeam team(threads);
  AttentionWorkspace workspace(threads);
  const Elements out = run.run(team, workspace, isa);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_LT(LargestError(shape, sequences[i], out, run.first_token(i), sizes[i]),
              Bound(shape, isa))
        << name(isa) << ", row " << i << ": " << sizes[i].tokens << " tokens behind "
        << sizes[i].context << ", dim " << shape.head_dim << ", group " << shape.group
        << ", window " << shape.window;
  }
}

TEST_P(Attention, IsThatOfTheNaiveModel) {
  ExpectNaive({}, {{0, 1}, {5, 1}, {63, 1}, {64, 1}, {700, 1}, {0, 70}, {37, 90}, {500, 30}},
              GetParam(), 2);
}

TEST_P(Attention, TakesAnyMixOfTypes) {
  for (const Type kv : {Type::kF32, Type::kBf16}) {
    for (const Type q : {Type::kF32, Type::kBf16}) {
      for (const Type out : {Type::kF32, Type::kBf16}) {
        ExpectNaive({.kv_type = kv, .q_type = q, .out_type = out}, {{80, 1}, {20, 25}}, GetParam(),
                    1);
      }
    }
  }
}

TEST_P(Attention, TakesHeadsOfAnySize) {
  for (const int dim : {8, 24, 32, 64, 80, 96, 128, 256}) {
    for (const Type type : {Type::kF32, Type::kBf16}) {
      ExpectNaive({.num_kv_heads = 1, .group = 2, .head_dim = dim, .kv_type = type, .q_type = type},
                  {{70, 1}, {10, 30}}, GetParam(), 1);
    }
  }
}

TEST_P(Attention, TakesGroupsOfAnySize) {
  for (const int group : {1, 5, 7, 8, 16, 17, 130}) {
    ExpectNaive({.num_kv_heads = group > 8 ? 1 : 3, .group = group, .head_dim = 32},
                {{66, 1}, {3, 20}}, GetParam(), 1);
  }
}

TEST_P(Attention, TakesBlocksOfAnySize) {
  for (const int block_tokens : {1, 3, 16, 24, 64, 100}) {
    ExpectNaive({.group = 2, .head_dim = 32, .block_tokens = block_tokens}, {{150, 1}, {50, 20}},
                GetParam(), 1);
  }
}

TEST_P(Attention, SeesNothingOutsideOfItsWindow) {
  for (const int window : {1, 64, 100, 600}) {
    ExpectNaive({.group = 2, .head_dim = 32, .window = window}, {{0, 1}, {700, 1}, {20, 150}},
                GetParam(), 2);
  }
}

// Where a prompt is cut, whom it shares a step with, on how many threads, and where its blocks lie
// changes no bit.
struct Cut {
  int context;
  int tokens;
  int threads;
  bool has_mates;
};

void ExpectBitsOfThePrompt(const SequenceShape& shape, Isa isa) {
  constexpr int kLength = 700;
  const AttentionSequence sequence(shape, kLength, 1);
  const AttentionSequence mate(shape, 100, 2);
  ThreadTeam alone(1);
  AttentionWorkspace workspace(1);
  AttentionRun whole(shape, {{&sequence, {0, kLength}}}, 1);
  const Elements expected = whole.run(alone, workspace, isa);

  for (const Cut& cut : {Cut{0, 1, 1, false}, Cut{63, 1, 1, true}, Cut{64, 1, 2, true},
                         Cut{511, 1, 1, false}, Cut{512, 1, 2, false}, Cut{699, 1, 4, true},
                         Cut{690, 10, 2, false}, Cut{400, 200, 3, true}}) {
    ThreadTeam team(cut.threads);
    AttentionWorkspace shared(cut.threads);
    std::vector<AttentionRun::Row> rows{{&sequence, {cut.context, cut.tokens}}};
    if (cut.has_mates) {
      rows.insert(rows.begin(), {{&mate, {77, 1}}, {&mate, {0, 40}}});
    }
    AttentionRun part(shape, rows, 3);
    const Elements out = part.run(team, shared, isa);
    std::int64_t num_different = 0;
    const std::int64_t first = part.first_token(rows.size() - 1) * sequence.q_size();
    for (std::int64_t i = 0; i < cut.tokens * sequence.q_size(); ++i) {
      const float a = out.at(first + i);
      const float b = expected.at(cut.context * sequence.q_size() + i);
      num_different += std::memcmp(&a, &b, sizeof(a)) == 0 ? 0 : 1;
    }
    EXPECT_EQ(num_different, 0) << cut.tokens << " tokens behind " << cut.context << " on "
                                << cut.threads << " threads, window " << shape.window;
  }
}

TEST_P(Attention, ATokensResultDependsOnNothingElse) {
  const SequenceShape shape{.num_kv_heads = 1, .group = 7, .head_dim = 32};
  ExpectBitsOfThePrompt(shape, GetParam());

  SequenceShape other = shape;
  other.group = 2;
  other.kv_type = other.q_type = Type::kF32;
  other.window = 300;
  ExpectBitsOfThePrompt(other, GetParam());
  other.kv_type = other.q_type = Type::kBf16;
  other.window = 90;
  ExpectBitsOfThePrompt(other, GetParam());
}

TEST_P(Attention, AWorkspaceThatIsTooSmallChangesNothing) {
  const SequenceShape shape{.num_kv_heads = 1, .head_dim = 32};
  const AttentionSequence sequence(shape, 1100, 1);
  AttentionRun run(shape, {{&sequence, {1099, 1}}}, 1);
  ThreadTeam team(3);
  AttentionWorkspace ample(3);
  AttentionWorkspace tiny(3, 64);

  const Elements shared_out = run.run(team, ample, GetParam());
  const Elements whole = run.run(team, tiny, GetParam());

  for (std::int64_t i = 0; i < whole.size(); ++i) {
    ASSERT_EQ(whole.at(i), shared_out.at(i));
  }
}

TEST_P(Attention, AResetWorkspaceForgetsWhatAFailureLeft) {
  const SequenceShape shape{.num_kv_heads = 1, .head_dim = 32};
  const AttentionSequence sequence(shape, 1100, 1);
  AttentionRun run(shape, {{&sequence, {1099, 1}}}, 1);
  ThreadTeam team(2);
  AttentionWorkspace workspace(2);
  const Elements expected = run.run(team, workspace, GetParam());
  workspace.num_complete(0).store(1);

  workspace.reset();

  const Elements out = run.run(team, workspace, GetParam());
  for (std::int64_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out.at(i), expected.at(i));
  }
}

TEST_P(Attention, WhatIsNoNumberStaysNone) {
  const SequenceShape shape{.num_kv_heads = 1, .group = 2, .head_dim = 32};
  AttentionSequence sequence(shape, 100, 1);
  AttentionSequence broken(shape, 100, 2);
  const_cast<Elements&>(broken.keys()).set(50 * 32, std::numeric_limits<float>::quiet_NaN());
  AttentionRun run(shape, {{&broken, {99, 1}}, {&sequence, {99, 1}}}, 1);
  ThreadTeam team(1);
  AttentionWorkspace workspace(1);

  const Elements out = run.run(team, workspace, GetParam());

  for (int i = 0; i < 64; ++i) {
    EXPECT_TRUE(std::isnan(out.at(i)));
    EXPECT_FALSE(std::isnan(out.at(64 + i)));
  }
}

TEST_P(Attention, ValuesThatAreNoNumbersReachOnlyWhoSeesThem) {
  for (const Type type : {Type::kF32, Type::kBf16}) {
    for (const float value :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      for (const int window : {0, 20}) {
        constexpr int kBroken = 70;
        const SequenceShape shape{.num_kv_heads = 1,
                                  .group = 3,
                                  .head_dim = 40,
                                  .window = window,
                                  .kv_type = type,
                                  .q_type = type};
        const AttentionSequence whole(shape, 120, 1);
        AttentionSequence broken(shape, 120, 1);
        const_cast<Elements&>(broken.values()).set(kBroken * 40 + 7, value);
        ThreadTeam team(1);
        AttentionWorkspace workspace(1);
        const Elements expected =
            AttentionRun(shape, {{&whole, {0, 120}}}, 1).run(team, workspace, GetParam());

        const Elements out =
            AttentionRun(shape, {{&broken, {0, 120}}}, 1).run(team, workspace, GetParam());

        for (int token = 0; token < 120; ++token) {
          const bool sees = token >= kBroken && (window == 0 || token < kBroken + window);
          const std::int64_t place = token * broken.q_size() + 7;
          if (sees) {
            EXPECT_FALSE(std::isfinite(out.at(place))) << token;
          } else {
            EXPECT_EQ(out.at(place), expected.at(place)) << token;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, Attention,
                         testing::Values(Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16,
                                         Isa::kAmx),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace antiphon::kernels
