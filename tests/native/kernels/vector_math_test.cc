#include "portable/vector_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "row_kernels.h"

// The vectors of other instruction sets are tried by tests of the ops that use them: attention's
// weights for exp2, products' gates for silu. What they share is tried here.
namespace antiphon::kernels {
namespace {

using portable::FloatVector;

// Units in the last place of `expected` between it and `value`.
double UnitsOff(float value, double expected) {
  const double unit = std::ldexp(1.0, std::max(std::ilogb(expected), -126) - 23);
  return std::abs(value - expected) / unit;
}

TEST(VectorMath, Exp2IsWithinTwoUnits) {
  double worst = 0;
  for (int i = -1250; i <= 1270; ++i) {
    const float x = static_cast<float>(i) * 0.1F + 0.013F;
    worst = std::max(worst, UnitsOff(exp2(FloatVector::set(x)).lanes[0], std::exp2(double{x})));
  }
  EXPECT_LE(worst, 2.0);
}

TEST(VectorMath, ExpIsWithinTwoUnits) {
  double worst = 0;
  for (int i = -860; i <= 880; ++i) {
    const float x = static_cast<float>(i) * 0.1F + 0.013F;
    worst = std::max(worst, UnitsOff(exp(FloatVector::set(x)).lanes[0], std::exp(double{x})));
  }
  EXPECT_LE(worst, 2.0);
}

TEST(VectorMath, ExponentialsEndWhereFloatsDo) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto exp2_of = [](float x) { return exp2(FloatVector::set(x)).lanes[1]; };
  const auto exp_of = [](float x) { return exp(FloatVector::set(x)).lanes[1]; };

  EXPECT_EQ(exp2_of(0), 1.0F);
  EXPECT_EQ(exp_of(0), 1.0F);
  for (const float low : {-160.0F, -1e6F, std::numeric_limits<float>::lowest(), -kInfinity}) {
    EXPECT_EQ(exp2_of(low), 0.0F);
    EXPECT_EQ(exp_of(low), 0.0F);
  }
  for (const float high : {129.0F, 1e6F, kInfinity}) {
    EXPECT_EQ(exp2_of(high), kInfinity);
    EXPECT_EQ(exp_of(high), kInfinity);
  }
  EXPECT_TRUE(std::isnan(exp2_of(std::nanf(""))));
  EXPECT_TRUE(std::isnan(exp_of(std::nanf(""))));
}

TEST(VectorMath, SiluIsThatOfDoubles) {
  for (const float x : {-200.0F, -20.0F, -1.0F, 0.0F, 0.5F, 3.0F, 200.0F}) {
    const double expected = x / (1 + std::exp(-double{x}));
    EXPECT_NEAR(silu(FloatVector::set(x)).lanes[2], expected, 1e-6 * (1 + std::abs(expected)));
  }
}

}  // namespace
}  // namespace antiphon::kernels
