// Products of a step's rows with packed weights.
#pragma once

#include <cstdint>

#include "antiphon/kernels/activations.h"
#include "antiphon/kernels/packed_matrix.h"

namespace antiphon::kernels {

class TaskCursor;
class Worker;

// What becomes of a product y = weights · row + bias.
enum class Epilogue : int {
  kStore = 0,    // out = y
  kAdd = 1,      // out += y; float32 only
  kSiluMul = 2,  // out = silu(y_gate) * y_up, of a matrix in kGateUp order: num_out / 2 columns
};

// Writes columns out_column … of `out`, for all rows of `in`, which are num_in wide. `bias` has
// num_out values in the order of the matrix's rows, or is null. Sums are float32.
//
// A row's results depend on that row and on the matrix alone, bit for bit: not on the rows beside
// it, its place or the number of workers. Infinities and NaN stay in their rows.
//
// Every worker of a region calls it with the same arguments and one cursor, reset before. There is
// no barrier inside: results are whole behind the next one. `in` and `out` must not overlap.
// Throws std::invalid_argument where kAdd meets another type than float32, or kSiluMul another
// order than kGateUp.
void linear(Worker& worker, TaskCursor& cursor, const PackedMatrix& weights, const Rows& in,
            const float* bias, Epilogue epilogue, const RowsOut& out, std::int64_t out_column = 0);

}  // namespace antiphon::kernels
