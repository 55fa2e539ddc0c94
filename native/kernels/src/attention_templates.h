// Attention with products in f32, whatever the types of queries and cache, for the vectors of any
// instruction set.
#pragma once

#include <cstdint>

#include "attention_kernels.h"
#include "attention_softmax.h"

namespace antiphon::kernels::attention_templates {

// The first `count` elements from element `place` on of a row of either type.
template <class Vector>
Vector load_elements(const void* row, Type type, std::int64_t place, std::int64_t count) {
  return type == Type::kF32
             ? Vector::load_first(static_cast<const float*>(row) + place, count)
             : Vector::load_bf16_first(static_cast<const std::uint16_t*>(row) + place, count);
}

template <class Vector>
std::int64_t lanes_left(int size, int place) {
  const int left = size - place;
  return left < 0 ? 0 : (left < Vector::kLanes ? left : Vector::kLanes);
}

template <class Vector>
void pack_queries(const AttentionTile& tile, const QueryRows& rows) {
  auto* queries = static_cast<float*>(tile.queries);
  for (int query = 0; query < tile.num_queries; ++query) {
    const std::int64_t start =
        query / tile.group * rows.stride + std::int64_t{query % tile.group} * tile.head_dim;
    for (int i = 0; i < tile.head_dim; i += Vector::kLanes) {
      load_elements<Vector>(rows.data, rows.type, start + i, lanes_left<Vector>(tile.head_dim, i))
          .store(queries + std::int64_t{query} * tile.padded_dim + i);
    }
  }
}

// Dimension by dimension, each of all keys.
template <class Vector>
void pack_keys(const AttentionTile& tile, const CacheRows& rows) {
  constexpr int kLanes = Vector::kLanes;
  auto* keys = static_cast<float*>(tile.keys);
  for (int key = 0; key < rows.count; key += kLanes) {
    for (int i = 0; i < tile.head_dim; i += kLanes) {
      Vector square[kLanes];
      for (int j = 0; j < kLanes; ++j) {
        square[j] = load_elements<Vector>(rows.rows[key + j], rows.type, i,
                                          lanes_left<Vector>(tile.head_dim, i));
      }
      Vector::transpose(square);
      for (int j = 0; j < kLanes; ++j) {
        square[j].store(keys + std::int64_t{i + j} * kKeyBlock + key);
      }
    }
  }
}

template <class Vector>
void pack_values(const AttentionTile& tile, const CacheRows& rows) {
  auto* values = static_cast<float*>(tile.values);
  for (int key = 0; key < rows.count; ++key) {
    for (int i = 0; i < tile.padded_dim; i += Vector::kLanes) {
      load_elements<Vector>(rows.rows[key], rows.type, i, lanes_left<Vector>(tile.head_dim, i))
          .store(values + std::int64_t{key} * tile.padded_dim + i);
    }
  }
}

struct Operand {
  const float* data;
  std::int64_t stride;
};

// c[kRows, kVectors * kLanes] = (kAdd ? c : 0) + a[kRows, depth] * b[depth, …], one term after the
// other.
template <class Vector, int kRows, int kVectors, bool kAdd>
void multiply_tile(Operand a, Operand b, float* c, std::int64_t c_stride, int depth) {
  Vector sums[kRows][kVectors];
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < kVectors; ++i) {
      sums[row][i] =
          kAdd ? Vector::load(c + row * c_stride + i * Vector::kLanes) : Vector::set(0.0F);
    }
  }
  for (int k = 0; k < depth; ++k) {
    Vector columns[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      columns[i] = Vector::load(b.data + k * b.stride + i * Vector::kLanes);
    }
    for (int row = 0; row < kRows; ++row) {
      const Vector factor = Vector::set(a.data[row * a.stride + k]);
      for (int i = 0; i < kVectors; ++i) {
        sums[row][i] = Vector::fma(factor, columns[i], sums[row][i]);
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < kVectors; ++i) {
      sums[row][i].store(c + row * c_stride + i * Vector::kLanes);
    }
  }
}

// The same of `num_rows` up to kRows.
template <class Vector, int kRows, int kVectors, bool kAdd>
void multiply_rows(int num_rows, Operand a, Operand b, float* c, std::int64_t c_stride, int depth) {
  if (num_rows == kRows) {
    multiply_tile<Vector, kRows, kVectors, kAdd>(a, b, c, c_stride, depth);
  } else if constexpr (kRows > 1) {
    multiply_rows<Vector, kRows - 1, kVectors, kAdd>(num_rows, a, b, c, c_stride, depth);
  }
}

// The same of any number of rows, and of `width` columns, a multiple of 32.
template <class Vector, bool kAdd>
void multiply(int num_rows, int width, Operand a, Operand b, float* c, std::int64_t c_stride,
              int depth) {
  constexpr int kVectors = Vector::kTileVectors;
  constexpr int kNarrowVectors = 32 / Vector::kLanes < kVectors ? 32 / Vector::kLanes : kVectors;
  for (int row = 0; row < num_rows; row += Vector::kTileRows) {
    const int left = num_rows - row;
    const int count = left < Vector::kTileRows ? left : Vector::kTileRows;
    const Operand rows = {a.data + row * a.stride, a.stride};
    int column = 0;
    for (; column + kVectors * Vector::kLanes <= width; column += kVectors * Vector::kLanes) {
      multiply_rows<Vector, Vector::kTileRows, kVectors, kAdd>(
          count, rows, {b.data + column, b.stride}, c + row * c_stride + column, c_stride, depth);
    }
    for (; column < width; column += kNarrowVectors * Vector::kLanes) {
      multiply_rows<Vector, Vector::kTileRows, kNarrowVectors, kAdd>(
          count, rows, {b.data + column, b.stride}, c + row * c_stride + column, c_stride, depth);
    }
  }
}

struct FloatWeights {
  template <class Vector>
  static void store(const AttentionTile& tile, int row, const Vector* weights) {
    for (int i = 0; i < kKeyVectors<Vector>; ++i) {
      weights[i].store(static_cast<float*>(tile.weights) + std::int64_t{row} * kKeyBlock +
                       i * Vector::kLanes);
    }
  }
};

template <class Vector>
struct FloatProducts {
  static void pack_keys(const AttentionTile& tile, const CacheRows& rows) {
    attention_templates::pack_keys<Vector>(tile, rows);
  }
  static void pack_values(const AttentionTile& tile, const CacheRows& rows) {
    attention_templates::pack_values<Vector>(tile, rows);
  }
  static void score(const AttentionTile& tile, int first, int count) {
    const float* queries = static_cast<const float*>(tile.queries);
    multiply<Vector, false>(
        count, kKeyBlock, {queries + std::int64_t{first} * tile.padded_dim, tile.padded_dim},
        {static_cast<const float*>(tile.keys), kKeyBlock}, tile.scores, kKeyBlock, tile.head_dim);
  }
  static void weigh(const AttentionTile& tile, int first, int count, std::int64_t start) {
    attention_templates::weigh<Vector, FloatWeights>(tile, first, count, start);
  }
  static void accumulate(const AttentionTile& tile, int first, int count, int num_keys) {
    multiply<Vector, true>(
        count, tile.padded_dim, {static_cast<const float*>(tile.weights), kKeyBlock},
        {static_cast<const float*>(tile.values), tile.padded_dim},
        tile.part.outputs + std::int64_t{first} * tile.padded_dim, tile.padded_dim, num_keys);
  }
};

inline void begin_nothing() {}
inline void end_nothing() {}

template <class Vector>
constexpr AttentionKernels kKernels = {
    begin_nothing,        end_nothing,
    pack_queries<Vector>, attend<FloatProducts<Vector>>,
    merge<Vector>,        finish<Vector, PlainColumns>,
};

}  // namespace antiphon::kernels::attention_templates
