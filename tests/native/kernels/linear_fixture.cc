#include "linear_fixture.h"

#include <algorithm>
#include <cmath>

namespace antiphon::kernels {

std::vector<Isa> isas_here() {
  std::vector<Isa> isas;
  for (int isa = 0; isa <= static_cast<int>(Isa::kAvx512Vnni); ++isa) {
    if (has(static_cast<Isa>(isa))) {
      isas.push_back(static_cast<Isa>(isa));
    }
  }
  return isas;
}

Buffer::Buffer(Type type_, const std::vector<float>& values) : type(type_), floats(values) {
  for (float& value : floats) {
    halves.push_back(to_bf16(value));
    value = type == Type::kBf16 ? from_bf16(halves.back()) : value;
  }
}

Buffer seen_by(const PackedMatrix& weights, const Buffer& rows, std::int64_t width) {
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

Expected naive_product(const std::vector<float>& weights, const Buffer& in,
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

std::vector<std::vector<float>> unpacked(const PackedMatrix& weights) {
  std::vector<std::vector<float>> rows;
  for (std::int64_t row = 0; row < weights.num_out(); ++row) {
    rows.emplace_back(static_cast<std::size_t>(weights.num_in()));
    weights.unpack_row(row, rows.back().data());
  }
  return rows;
}

}  // namespace antiphon::kernels
