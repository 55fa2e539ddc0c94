// Products beside a naive model in double precision. What loops is in the source, which is
// optimized where tests are not.
#pragma once

#include <cstdint>
#include <vector>

#include "antiphon/kernels/linear.h"
#include "antiphon/kernels/thread_team.h"
#include "bfloat16.h"
#include "random_floats.h"

namespace antiphon::kernels {

std::vector<Isa> isas_here();

// Whether products take rows as integers.
inline bool takes_integers(Isa isa, WeightFormat format) {
  return isa != base_of(isa) && format != WeightFormat::kF32 && format != WeightFormat::kBf16;
}

// Values of either type, rounded to it.
struct Buffer {
  Buffer(Type type_, const std::vector<float>& values);
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
Buffer seen_by(const PackedMatrix& weights, const Buffer& rows, std::int64_t width);

// One output, of weights as products see them, and by how much sums of float32 may miss it.
struct Expected {
  double value;
  double tolerance;
};

Expected naive_product(const std::vector<float>& weights, const Buffer& in,
                       std::int64_t first_input, double bias);

std::vector<std::vector<float>> unpacked(const PackedMatrix& weights);

}  // namespace antiphon::kernels
