#include "antiphon/kernels/row_draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace antiphon::kernels {
namespace {

constexpr double kAlmostOne = 1.0 - 0x1p-53;

std::vector<Isa> Isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (has(isa)) {
      isas.push_back(isa);
    }
  }
  return isas;
}

std::vector<float> RandomLogits(std::mt19937& random, std::size_t size, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(size);
  for (float& logit : logits) {
    // Coarse, so that some are equal.
    logit = std::round(normal(random) * 16) / 16;
  }
  return logits;
}

// Sorts everything, in double precision.
struct NaiveDraw {
  std::vector<std::size_t> order;
  std::vector<double> sums;  // of those that are kept

  NaiveDraw(const std::vector<float>& logits, const DrawParams& params) : order(logits.size()) {
    const double largest = *std::max_element(logits.begin(), logits.end());
    const auto weight = [&](std::size_t place) {
      return std::exp((logits[place] - largest) / params.temperature);
    };
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (params.top_k > 0 || params.min_p > 0 || params.top_p < 1) {
      std::stable_sort(order.begin(), order.end(),
                       [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
      std::erase_if(order, [&](std::size_t place) { return weight(place) < params.min_p; });
    }
    if (params.top_k > 0 && order.size() > static_cast<std::size_t>(params.top_k)) {
      order.resize(static_cast<std::size_t>(params.top_k));
    }
    double total = 0;
    for (const std::size_t place : order) {
      total += weight(place);
    }
    double sum = 0;
    for (const std::size_t place : order) {
      if (params.top_p < 1 && !sums.empty() && sum >= params.top_p * total) {
        break;
      }
      sum += weight(place);
      sums.push_back(sum);
    }
  }

  // Whether `place` is what `uniform` picks, give or take rounding.
  bool allows(std::size_t place, double uniform) const {
    const auto rank =
        static_cast<std::size_t>(std::find(order.begin(), order.end(), place) - order.begin());
    if (rank >= sums.size()) {
      return false;
    }
    const double slack = 2e-6 * sums.back();
    const double target = uniform * sums.back();
    return sums[rank] >= target - slack && (rank == 0 || sums[rank - 1] <= target + slack);
  }
};

TEST(RowDraw, PicksWhatSortingWould) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (const Isa isa : Isas()) {
    RowDraw draw(isa);
    for (const std::size_t size : {1, 3, 127, 513, 9'000}) {
      for (const float spread : {0.0F, 1.0F, 20.0F}) {
        std::vector<float> logits = RandomLogits(random, size, spread);
        for (DrawParams params :
             {DrawParams{}, DrawParams{.temperature = 0.3F, .top_p = 0.8},
              DrawParams{.top_p = 0.999}, DrawParams{.top_k = 40},
              DrawParams{.temperature = 2.0F, .top_k = 500, .top_p = 0.7},
              DrawParams{.min_p = 0.05}, DrawParams{.top_k = 7, .min_p = 0.2}}) {
          const NaiveDraw naive(logits, params);
          for (int i = 0; i < 4; ++i) {
            params.uniform = i == 0 ? 0.0 : i == 1 ? kAlmostOne : uniform(random);
            const std::size_t drawn = draw.draw(logits, params);
            EXPECT_TRUE(naive.allows(drawn, params.uniform))
                << drawn << " of " << size << " on " << name(isa) << ", top-k " << params.top_k
                << ", top-p " << params.top_p << ", min-p " << params.min_p << ", uniform "
                << params.uniform;
          }
        }
      }
    }
  }
}

TEST(RowDraw, FindsTheFirstOfTheLargest) {
  std::mt19937 random(6);
  for (const Isa isa : Isas()) {
    RowDraw draw(isa);
    for (const std::size_t size : {1, 100, 128, 129, 4'000}) {
      std::vector<float> logits = RandomLogits(random, size, 0.2F);
      const auto expected = std::max_element(logits.begin(), logits.end()) - logits.begin();
      EXPECT_EQ(draw.likeliest(logits), static_cast<std::size_t>(expected));
    }
  }
}

TEST(RowDraw, WhatIsNoNumberIsNeverChosen) {
  const float none = std::numeric_limits<float>::quiet_NaN();
  const float infinite = std::numeric_limits<float>::infinity();
  for (const Isa isa : Isas()) {
    RowDraw draw(isa);
    for (const std::size_t place : {0, 5, 130, 299}) {
      std::vector<float> logits(300, none);
      logits[7] = -infinite;
      logits[place] = 1.0F;
      EXPECT_EQ(draw.likeliest(logits), place);
      logits[9] = none;
      EXPECT_EQ(draw.draw(logits, {.uniform = kAlmostOne}), place);
      logits[9] = infinite;
      EXPECT_EQ(draw.draw(logits, {.top_k = 1}), 9U);
    }
  }
}

}  // namespace
}  // namespace antiphon::kernels
