#include "antiphon/kernels/nucleus.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace antiphon::kernels {
namespace {

// Sorts everything.
struct NaiveNucleus {
  std::vector<std::size_t> order;
  std::vector<double> sums;  // of those that are kept

  NaiveNucleus(const std::vector<float>& weights, double limit) : order(weights.size()) {
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
    double sum = 0;
    for (const std::size_t index : order) {
      if (!sums.empty() && sum >= limit) {
        break;
      }
      sum += weights[index];
      sums.push_back(sum);
    }
  }

  // Whether `index` is what `uniform` picks, give or take rounding.
  bool allows(std::size_t index, double uniform) const {
    const auto place =
        static_cast<std::size_t>(std::find(order.begin(), order.end(), index) - order.begin());
    if (place >= sums.size()) {
      return false;
    }
    const double slack = 1e-9 * sums.back();
    const double target = uniform * sums.back();
    return sums[place] >= target - slack && (place == 0 || sums[place - 1] <= target + slack);
  }
};

std::vector<float> RandomWeights(std::mt19937& random, std::size_t size, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(size);
  for (float& logit : logits) {
    // Coarse, so that some are equal.
    logit = std::round(normal(random) * 16) / 16;
  }
  const float largest = *std::max_element(logits.begin(), logits.end());
  for (float& logit : logits) {
    logit = std::exp(logit - largest);
  }
  return logits;
}

TEST(NucleusDraw, PicksWhatSortingWould) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> uniform(0, 1);
  NucleusDraw draw;
  for (const std::size_t size : {1, 2, 50, 3000}) {
    for (const float spread : {0.0F, 0.1F, 2.0F, 30.0F}) {
      const std::vector<float> weights = RandomWeights(random, size, spread);
      const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (const double share : {1e-6, 0.1, 0.5, 0.9, 0.999, 0.999999}) {
        const double limit = share * total;
        const NaiveNucleus naive(weights, limit);
        for (int i = 0; i < 20; ++i) {
          const double u = i == 0 ? 0.0 : i == 1 ? std::nextafter(1.0, 0.0) : uniform(random);
          const std::size_t drawn = draw(weights, limit, u);
          EXPECT_TRUE(naive.allows(drawn, u))
              << drawn << " of " << size << ", share " << share << ", uniform " << u;
        }
      }
    }
  }
}

TEST(NucleusDraw, TheFirstOfEqualsComesFirst) {
  NucleusDraw draw;
  const std::vector<float> weights(8, 1.0F);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(draw(weights, 4.0, (static_cast<double>(i) + 0.5) / 4), i);
  }
}

TEST(NucleusDraw, NeverPicksWhatHasNoWeight) {
  NucleusDraw draw;
  std::vector<float> weights(100, 0.0F);
  weights[60] = 1.0F;
  EXPECT_EQ(draw(weights, 1.0, std::nextafter(1.0, 0.0)), 60U);
  EXPECT_EQ(draw(weights, 0.3, 0.0), 60U);
}

}  // namespace
}  // namespace antiphon::kernels
