// Products beside a naive model in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "antiphon/kernels/linear.h"
#include "antiphon/kernels/thread_team.h"
#include "bfloat16.h"

namespace antiphon::kernels {

inline std::vector<Isa> isas_here() {
  std::vector<Isa> isas;
  for (int isa = 0; isa <= static_cast<int>(Isa::kAvx512Vnni); ++isa) {
    if (has(static_cast<Isa>(isa))) {
      isas.push_back(static_cast<Isa>(isa));
    }
  }
  return isas;
}

// Whether products take rows as integers.
inline bool takes_integers(Isa isa, WeightFormat format) {
  return isa != base_of(isa) && format != WeightFormat::kF32 && format != WeightFormat::kBf16;
}

inline std::vector<float> random_floats(std::mt19937& random, std::int64_t count, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

// Values of either type, rounded to it.
struct Buffer {
  Buffer(Type type_, const std::vector<float>& values) : type(type_), floats(values) {
    for (float& value : floats) {
      halves.push_back(to_bf16(value));
      value = type == Type::kBf16 ? from_bf16(halves.back()) : value;
    }
  }
  void* data() { return type == Type::kBf16 ? static_cast<void*>(halves.data()) : floats.data(); }
  float at(std::int64_t index) const {
    return type == Type::kBf16 ? from_bf16(halves[index]) : floats[index];
  }

  Type type;
  std::vector<float> floats;
  std::vector<std::uint16_t> halves;
};

struct Shape {
  std::int64_t num_out;
  std::int64_t num_in;
  std::int64_t num_rows;
};

inline void run_linear(ThreadTeam& team, const PackedMatrix& weights, const Rows& in,
                       const float* bias, Epilogue epilogue, const RowsOut& out,
                       std::int64_t out_column = 0) {
  TaskCursor cursor;
  team.run([&](Worker& worker) {
    linear(worker, cursor, weights, in, bias, epilogue, out, out_column);
  });
}

// Rows `width` wide as products with these weights see them: where they take integers, 32 inputs at
// a time are the nearest of 255 levels around 0, by their largest.
inline Buffer seen_by(const PackedMatrix& weights, const Buffer& rows, std::int64_t width) {
  if (!takes_integers(weights.isa(), weights.format())) {
    return rows;
  }
  std::vector<float> seen = rows.floats;
  const auto num_values = static_cast<std::int64_t>(seen.size());
  for (std::int64_t row = 0; row < num_values; row += width) {
    for (std::int64_t first = row; first < row + width; first += 32) {
      const std::int64_t end = std::min(first + 32, row + width);
      float largest = 0;
      for (std::int64_t k = first; k < end; ++k) {
        largest = std::max(largest, std::abs(seen[k]));
      }
      constexpr float kRounding = 0x1.8p23F;  // ties as well are decided as they are there
      for (std::int64_t k = first; k < end; ++k) {
        seen[k] = (std::fma(seen[k], 127 / largest, kRounding) - kRounding) * (largest / 127);
      }
    }
  }
  return {Type::kF32, seen};
}

// One output, of weights as products see them, and by how much sums of float32 may miss it.
struct Expected {
  double value;
  double tolerance;
};

inline Expected naive_product(const std::vector<float>& weights, const Buffer& in,
                              std::int64_t first_input, double bias) {
  double sum = bias;
  double magnitude = std::abs(bias);
  for (std::size_t k = 0; k < weights.size(); ++k) {
    const double term = double{weights[k]} * in.at(first_input + static_cast<std::int64_t>(k));
    sum += term;
    magnitude += std::abs(term);
  }
  return {sum, magnitude * 1e-6 + 1e-30};
}

inline std::vector<std::vector<float>> unpacked(const PackedMatrix& weights) {
  std::vector<std::vector<float>> rows;
  for (std::int64_t row = 0; row < weights.num_out(); ++row) {
    rows.emplace_back(static_cast<std::size_t>(weights.num_in()));
    weights.unpack_row(row, rows.back().data());
  }
  return rows;
}

}  // namespace antiphon::kernels
