// What tests/bench/kernels.py calls: matrices of random weights, and the time that products take.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <random>
#include <vector>

#include "antiphon/kernels/linear.h"
#include "antiphon/kernels/thread_team.h"
#include "bfloat16.h"
#include "huge_pages.h"

using namespace antiphon::kernels;

namespace {

double seconds(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::vector<std::uint16_t> random_halves(std::int64_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.05F);
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  for (std::uint16_t& value : values) {
    value = to_bf16(normal(random));
  }
  return values;
}

}  // namespace

extern "C" {

#define BENCH_API __attribute__((visibility("default")))

BENCH_API int best() { return static_cast<int>(best_isa()); }

BENCH_API PackedMatrix* make_matrix(std::int64_t num_out, std::int64_t num_in, int format,
                                    int order, int isa) {
  constexpr std::int64_t kRows = 64;
  auto* const matrix = new PackedMatrix(num_out, num_in, static_cast<WeightFormat>(format),
                                        static_cast<RowOrder>(order), static_cast<Isa>(isa));
  const std::vector<std::uint16_t> rows = random_halves(kRows * num_in);
  for (std::int64_t row = 0; row < num_out; row += kRows) {
    matrix->pack_bf16(row, num_out - row < kRows ? num_out - row : kRows, rows.data());
  }
  return matrix;
}

BENCH_API void free_matrix(PackedMatrix* matrix) { delete matrix; }

BENCH_API std::int64_t matrix_bytes(const PackedMatrix* matrix) {
  return static_cast<std::int64_t>(matrix->num_bytes());
}

// Multiplies `num_rows` rows with each of the matrices, one after the other. Returns the seconds of
// processor time that this thread took, and those that went by in `wall`.
BENCH_API double multiply(const PackedMatrix* const* matrices, std::int64_t num_matrices,
                          std::int64_t num_rows, double* wall) {
  ThreadTeam team(1, false);
  std::int64_t widest_in = 0;
  std::int64_t widest_out = 0;
  for (std::int64_t i = 0; i < num_matrices; ++i) {
    widest_in = std::max(widest_in, matrices[i]->num_in());
    widest_out = std::max(widest_out, matrices[i]->num_out());
  }
  const std::vector<std::uint16_t> values = random_halves(num_rows * widest_in);
  // Aligned, as a program's buffers are.
  const MappedBytes halves = map_zeros(values.size() * sizeof(std::uint16_t));
  const MappedBytes floats = map_zeros(values.size() * sizeof(float));
  std::memcpy(halves.get(), values.data(), values.size() * sizeof(std::uint16_t));
  for (std::size_t i = 0; i < values.size(); ++i) {
    reinterpret_cast<float*>(floats.get())[i] = from_bf16(values[i]);
  }
  std::vector<float> out(static_cast<std::size_t>(num_rows * widest_out));
  double taken = 0;
  for (const bool timed : {false, true}) {
    const std::int64_t count = timed ? num_matrices : std::min<std::int64_t>(num_matrices, 2);
    const double wall_before = seconds(CLOCK_MONOTONIC);
    const double before = seconds(CLOCK_THREAD_CPUTIME_ID);
    for (std::int64_t i = 0; i < count; ++i) {
      const PackedMatrix& matrix = *matrices[i];
      const bool gated = matrix.order() == RowOrder::kGateUp;
      const bool wide = matrix.input_type() == Type::kF32;
      const Rows in = {wide ? floats.get() : halves.get(), matrix.input_type(), num_rows,
                       matrix.num_in()};
      const RowsOut to = {out.data(), gated ? matrix.input_type() : Type::kF32,
                          gated ? matrix.num_out() / 2 : matrix.num_out()};
      TaskCursor cursor;
      team.run([&](Worker& worker) {
        linear(worker, cursor, matrix, in, nullptr, gated ? Epilogue::kSiluMul : Epilogue::kStore,
               to);
      });
    }
    taken = seconds(CLOCK_THREAD_CPUTIME_ID) - before;
    *wall = seconds(CLOCK_MONOTONIC) - wall_before;
  }
  return taken;
}

// Seconds of processor time to read so many bytes that are in no cache.
BENCH_API double read_memory(std::int64_t num_bytes, double* wall) {
  static const MappedBytes bytes = [&] {
    MappedBytes mapped = map_zeros(static_cast<std::size_t>(num_bytes));
    std::memset(mapped.get(), 1, static_cast<std::size_t>(num_bytes));
    return mapped;
  }();
  const auto* const words = reinterpret_cast<const std::uint64_t*>(bytes.get());
  const double wall_before = seconds(CLOCK_MONOTONIC);
  const double before = seconds(CLOCK_THREAD_CPUTIME_ID);
  std::uint64_t sums[16] = {};
  for (std::int64_t i = 0; i < num_bytes / 8; i += 16) {
    for (int lane = 0; lane < 16; ++lane) {
      sums[lane] += words[i + lane];
    }
  }
  for (const std::uint64_t sum : sums) {
    __asm__ volatile("" : : "r"(sum));
  }
  *wall = seconds(CLOCK_MONOTONIC) - wall_before;
  return seconds(CLOCK_THREAD_CPUTIME_ID) - before;
}
}
