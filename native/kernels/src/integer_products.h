// Products of integers, for the vectors of any instruction set that multiplies bytes.
//
// Weights are levels from 0 up, rows integers with a sign. Of a slice, sums of their products are
// exact; behind it they are scaled and added to the row's sum in float32, slice after slice. So a
// result depends on nothing but its row and the weights, whatever vectors there are.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "integer_rows.h"
#include "prefetching.h"

namespace antiphon::kernels::integer_products {

constexpr int kQuadsOfSlice = kSlice / 4;

template <class F, int... numbers>
__attribute__((always_inline)) inline void unrolled(std::integer_sequence<int, numbers...>, F f) {
  (f(std::integral_constant<int, numbers>{}), ...);
}

// Inputs 4 j … 4 j + 3 of a vector's outputs, where `tile` begins.
template <class Vector, WeightFormat format, int j>
__attribute__((always_inline)) inline auto quad(const std::byte* tile) {
  const auto word = [&](int index) { return Vector::load(tile + index * 64); };
  if constexpr (format == WeightFormat::kInt8) {
    return word(j);
  } else {
    const auto low = Vector::template moved<j % 2 * -4>(word(j / 2), 0x0F0F0F0F);
    if constexpr (format == WeightFormat::kInt5) {
      return Vector::merged(low, Vector::template moved<4 - j>(word(4), 0x10101010));
    } else if constexpr (format == WeightFormat::kInt6) {
      return Vector::merged(low,
                            Vector::template moved<4 - j % 4 * 2>(word(4 + j / 4), 0x30303030));
    } else {
      return low;
    }
  }
}

// How much too high levels are stored that lie around 0.
constexpr int raise_of(WeightFormat format) {
  return format == WeightFormat::kInt8 ? 128 : format == WeightFormat::kInt6 ? 32 : 0;
}

// Where the outputs of a task of registers lie: `vectors` vectors from `first` of a pair's 32 on.
template <class Vector>
struct Lanes {
  int first;

  int half(int v) const { return (first + v * Vector::kLanes) / kPanel; }
  int lane(int v) const { return (first + v * Vector::kLanes) % kPanel; }
};

template <class Vector, WeightFormat format, int count, int vectors>
class Registers {
 public:
  Registers(const Unpacking& work, const Product& product, const IntegerInputs* rows, float* sums,
            Lanes<Vector> lanes)
      : work_(work), product_(product), rows_(rows), sums_(sums), lanes_(lanes) {}

  __attribute__((always_inline)) inline void multiply(Prefetching& prefetching) {
    for (int r = 0; r < count; ++r) {
      for (int v = 0; v < vectors; ++v) {
        totals_[r][v] = product_.continues ? Vector::load_floats(sums_at(r, v)) : Vector::zeros();
      }
    }
    const std::byte* block = work_.blocks;
    for (std::int64_t slice = 0; slice < work_.num_slices; ++slice) {
      prefetching.step();
      if constexpr (format == WeightFormat::kInt6) {
        add_quads<0, kQuadsOfSlice / 2>(block);
        add_quads<kQuadsOfSlice / 2, kQuadsOfSlice / 2>(block);
      } else {
        add_quads<0, kQuadsOfSlice>(block);
      }
      block += block_bytes(format);
      ++rows_;
    }
    for (int r = 0; r < count; ++r) {
      for (int v = 0; v < vectors; ++v) {
        Vector::store_floats(sums_at(r, v), totals_[r][v]);
      }
    }
  }

 private:
  using Integers = typename Vector::Integers;
  using Floats = typename Vector::Floats;

  float* sums_at(int r, int v) const {
    return sums_ + r * kPair + lanes_.first + v * Vector::kLanes;
  }

  const IntegerInputs& row(int r) const { return rows_[r * product_.row_stride]; }

  // Of quads that share a scale, all of a slice or half of it.
  template <int first, int num>
  __attribute__((always_inline)) inline void add_quads(const std::byte* block) {
    Integers products[count][vectors];
    for (int r = 0; r < count; ++r) {
      const Integers start = start_of<first, num>(row(r));
      for (int v = 0; v < vectors; ++v) {
        products[r][v] = start;
      }
    }
    unrolled(std::make_integer_sequence<int, num>{}, [&](auto i) __attribute__((always_inline)) {
      constexpr int j = first + i;
      Integers weights[vectors];
      for (int v = 0; v < vectors; ++v) {
        weights[v] = quad<Vector, format, j>(tile_weights(block, format, lanes_.half(v)) +
                                             lanes_.lane(v) * 4);
      }
      for (int r = 0; r < count; ++r) {
        const Integers inputs = Vector::set_quad(row(r).values + 4 * j);
        for (int v = 0; v < vectors; ++v) {
          products[r][v] = Vector::dot(products[r][v], weights[v], inputs);
        }
      }
    });
    for (int v = 0; v < vectors; ++v) {
      add_scaled<first>(block, v, products);
    }
  }

  // What is taken away from a row's sums because of how levels are stored.
  template <int first, int num>
  __attribute__((always_inline)) static Integers start_of(const IntegerInputs& inputs) {
    if constexpr (raise_of(format) == 0) {
      return Vector::set(0);
    } else {
      std::int32_t excess = inputs.excess;
      if constexpr (num < kQuadsOfSlice) {
        excess = first == 0 ? excess - inputs.excess_of_second_half : inputs.excess_of_second_half;
      }
      return Vector::set(-raise_of(format) * excess);
    }
  }

  template <int first>
  __attribute__((always_inline)) inline void add_scaled(
      const std::byte* block, int v, const Integers (&products)[count][vectors]) {
    const std::byte* const scales = tile_scales(block, format, lanes_.half(v)) + lanes_.lane(v) * 2;
    const Floats row_scales =
        Vector::load_floats(work_.row_scales + lanes_.first + v * Vector::kLanes);
    const Floats scale =
        Vector::multiplied(Vector::load_halves(scales + (first > 0 ? 32 : 0)), row_scales);
    for (int r = 0; r < count; ++r) {
      const Floats scaled =
          Vector::multiplied(Vector::to_floats(products[r][v]), Vector::set_float(row(r).scale));
      totals_[r][v] = Vector::fma(scaled, scale, totals_[r][v]);
    }
    if constexpr (raise_of(format) == 0) {
      const Floats offset = Vector::multiplied(Vector::load_halves(scales + 32), row_scales);
      for (int r = 0; r < count; ++r) {
        totals_[r][v] = Vector::fma(Vector::set_float(row(r).sum), offset, totals_[r][v]);
      }
    }
  }

  const Unpacking& work_;
  const Product& product_;
  const IntegerInputs* rows_;
  float* const sums_;
  const Lanes<Vector> lanes_;
  Floats totals_[count][vectors];
};

// Blocks of `count` rows, then of fewer.
template <class Vector, WeightFormat format, int count, int vectors>
void multiply_blocks(const Unpacking& work, const Product& product, std::int64_t first,
                     Prefetching& prefetching) {
  const auto* const rows = static_cast<const IntegerInputs*>(product.rows);
  for (; first + count <= product.num_rows; first += count) {
    for (int lane = 0; lane < kPair; lane += vectors * Vector::kLanes) {
      Registers<Vector, format, count, vectors>(work, product, rows + first * product.row_stride,
                                                product.sums + first * kPair, {lane})
          .multiply(prefetching);
    }
  }
  if constexpr (count > 1) {
    multiply_blocks<Vector, format, count / 3 + (count == 2), vectors>(work, product, first,
                                                                       prefetching);
  }
}

// `Vector::kRows` rows by two vectors are as many sums as fit the registers.
template <class Vector, WeightFormat format>
void multiply(const Unpacking& work, const Product& product) {
  constexpr int kVectors = 2;
  Prefetching prefetching(product.upcoming, product.num_slices *
                                                divide_up(product.num_rows, Vector::kRows) *
                                                (kPair / (kVectors * Vector::kLanes)));
  multiply_blocks<Vector, format, Vector::kRows, kVectors>(work, product, 0, prefetching);
}

// `finish` and `arrange` are those of the source's instruction set.
template <class Vector>
constexpr ProductKernels kernels(Type input_type, void (*finish)(const Finish&),
                                 void (*arrange)(const Arranging&)) {
  ProductKernels found = {};
  found.input_type = input_type;
  found.finish = finish;
  found.begin = [](std::int64_t) {};
  found.end = [] {};
  found.layout = IntegerLayout::kQuads;
  found.unpack_and_multiply = {nullptr,
                               nullptr,
                               multiply<Vector, WeightFormat::kInt8>,
                               multiply<Vector, WeightFormat::kInt6>,
                               multiply<Vector, WeightFormat::kInt5>,
                               multiply<Vector, WeightFormat::kInt4>};
  found.most_rows_at_once = std::numeric_limits<std::int64_t>::max();
  found.arrange = arrange;
  found.arranged_bytes = sizeof(IntegerInputs);
  found.arranges_any_type = true;
  return found;
}

}  // namespace antiphon::kernels::integer_products
