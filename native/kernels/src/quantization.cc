#include "quantization.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "float16.h"
#include "tile_layout.h"

namespace antiphon::kernels {
namespace {

constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();

bool all_finite(const float* weights, int count) {
  float sum = 0;
  for (int i = 0; i < count; ++i) {
    sum += weights[i] * 0.0F;
  }
  return sum == 0.0F;
}

float largest_magnitude(const float* weights, int count) {
  float largest = 0;
  for (int i = 0; i < count; ++i) {
    largest = std::max(largest, std::abs(weights[i]));
  }
  return largest;
}

// Around 0: levels -bound … bound, stored with `bound` + 1 added.
float quantize_symmetric(const float* weights, int count, int bound, float row_scale,
                         std::uint8_t* values) {
  if (!all_finite(weights, count)) {
    return kNoNumber;
  }
  const float scale =
      storable(largest_magnitude(weights, count) / static_cast<float>(bound), row_scale);
  const float inverse = scale == 0 ? 0 : 1 / scale;
  const auto limit = static_cast<float>(bound);
  const float shift = limit + 1.5F;  // half a level more, since the conversion cuts off
  for (int i = 0; i < count; ++i) {
    const float level = std::clamp(weights[i] * inverse, -limit, limit);
    values[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(level + shift));
  }
  return scale;
}

struct Line {
  float scale;
  float offset;
};

// Sets the levels nearest to the weights and returns the sum of squared errors.
float round_to(const Line& line, const float* weights, int top, std::uint8_t* values) {
  const float inverse = line.scale == 0 ? 0 : 1 / line.scale;
  const auto limit = static_cast<float>(top);
  float error = 0;
  for (int i = 0; i < kSliceLength; ++i) {
    const float level = std::clamp((weights[i] - line.offset) * inverse, 0.0F, limit);
    const auto value = static_cast<std::int32_t>(level + 0.5F);
    values[i] = static_cast<std::uint8_t>(value);
    const float miss = line.scale * static_cast<float>(value) + line.offset - weights[i];
    error += miss * miss;
  }
  return error;
}

// The line through the weights over their levels, by least squares.
Line fit(const float* weights, const std::uint8_t* values, const Line& before) {
  float sum_x = 0;
  float sum_y = 0;
  float sum_xx = 0;
  float sum_xy = 0;
  for (int i = 0; i < kSliceLength; ++i) {
    const auto x = static_cast<float>(values[i]);
    sum_x += x;
    sum_y += weights[i];
    sum_xx += x * x;
    sum_xy += x * weights[i];
  }
  constexpr float kCount = kSliceLength;
  const float spread = kCount * sum_xx - sum_x * sum_x;
  if (spread <= 0) {
    return before;
  }
  const float scale = (kCount * sum_xy - sum_x * sum_y) / spread;
  return {scale, (sum_y - scale * sum_x) / kCount};
}

// From the smallest to the largest weight at first; then the levels and the line that fits them
// are found in turn, and the best that came up is kept.
QuantizedSlice quantize_affine(const float* weights, int top, float row_scale) {
  if (!all_finite(weights, kSliceLength)) {
    return {{}, {kNoNumber, kNoNumber}, 0};
  }
  constexpr int kRounds = 3;
  const auto [low, high] = std::minmax_element(weights, weights + kSliceLength);
  Line line = {(*high - *low) / static_cast<float>(top), *low};
  QuantizedSlice best = {};
  float best_error = std::numeric_limits<float>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const Line stored = {storable(line.scale, row_scale), storable(line.offset, row_scale)};
    QuantizedSlice slice = {{}, {stored.scale, stored.scale}, stored.offset};
    const float error = round_to(stored, weights, top, slice.values.data());
    if (round == 0 || error < best_error) {
      best = slice;
      best_error = error;
    }
    line = fit(weights, slice.values.data(), line);
  }
  return best;
}

}  // namespace

float row_scale_for(float largest) {
  if (largest == 0 || !std::isfinite(largest)) {
    return 1;
  }
  constexpr int kTopExponent = 14;  // of float16, which ends below 2^16
  constexpr int kLowest = -100;     // the scale and what is multiplied with it stay normal
  return std::ldexp(1.0F, std::max(std::ilogb(largest) - kTopExponent, kLowest));
}

float storable(float scale, float row_scale) {
  return from_f16(to_f16(scale / row_scale)) * row_scale;
}

QuantizedSlice quantize(const float* weights, WeightFormat format, float row_scale) {
  constexpr int kHalf = kSliceLength / 2;
  QuantizedSlice slice = {};
  std::uint8_t* values = slice.values.data();
  switch (format) {
    case WeightFormat::kInt8:
      slice.scales[0] = quantize_symmetric(weights, kSliceLength, 127, row_scale, values);
      slice.scales[1] = slice.scales[0];
      return slice;
    case WeightFormat::kInt6:
      slice.scales[0] = quantize_symmetric(weights, kHalf, 31, row_scale, values);
      slice.scales[1] = quantize_symmetric(weights + kHalf, kHalf, 31, row_scale, values + kHalf);
      return slice;
    default:
      return quantize_affine(weights, format == WeightFormat::kInt5 ? 31 : 15, row_scale);
  }
}

float value_of(const QuantizedSlice& slice, WeightFormat format, int k) {
  const double scale = slice.scales[format == WeightFormat::kInt6 ? k / 16 : 0];
  double offset = slice.offset;
  if (format == WeightFormat::kInt8) {
    offset = -128 * scale;
  } else if (format == WeightFormat::kInt6) {
    offset = -32 * scale;
  }
  return static_cast<float>(scale * slice.values[k] + offset);
}

float cut_value_of(const QuantizedSlice& slice, WeightFormat format, int k) {
  // Step by step what kernels do, so that nothing but the last bit of a double could differ.
  const auto range = static_cast<float>(1 << value_bits(format));
  const float scale = slice.scales[format == WeightFormat::kInt6 ? k / 16 : 0];
  const float factor = scale * range;
  float stretched = 0;
  if (format == WeightFormat::kInt8 || format == WeightFormat::kInt6) {
    const auto short_factor =
        std::bit_cast<float>(std::bit_cast<std::int32_t>(factor * kStretch) & kShortFactor);
    stretched = static_cast<float>((slice.values[k] / double{range} - 0.5) * short_factor);
  } else {
    const double value = 1.0 + slice.values[k] / double{range};
    const float addend = slice.offset - factor;
    stretched = static_cast<float>(value * (factor * kStretch) + double{addend * kStretch});
  }
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(stretched) & 0xFFFF0000U);
}

}  // namespace antiphon::kernels
