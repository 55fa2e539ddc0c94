#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace antiphon::kernels {

// Around 0, `scale` off in the mean and two and a half times that at most. Each is the sum of two
// halves of a random number: logarithms for normal ones took a third of the tests' time.
std::vector<float> random_floats(std::mt19937& random, std::int64_t count, float scale = 1);

}  // namespace antiphon::kernels
