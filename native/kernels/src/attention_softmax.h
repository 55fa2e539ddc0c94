// The part of attention that is the same in whichever type products are made, for the vectors of
// any instruction set. Vector::kLanes divides kSumLanes.
#pragma once

#include <cstdint>

#include "attention_kernels.h"

namespace antiphon::kernels::attention_templates {

template <class Vector>
inline constexpr int kKeyVectors = kKeyBlock / Vector::kLanes;

// row *= factor
template <class Vector>
void scale_row(float* row, int size, Vector factor) {
  for (int i = 0; i < size; i += Vector::kLanes) {
    (Vector::load(row + i) * factor).store(row + i);
  }
}

// Takes the weights of one query, which is `row` of its strip, from its scores, of which those from
// `first` to `last` - 1 are seen, brings `part` to the new largest score and adds to its sums.
// `Weights::store` writes weights.
template <class Vector, class Weights>
void weigh_row(const AttentionTile& tile, int query, int row, int first, int last) {
  constexpr int kVectors = kKeyVectors<Vector>;
  const float* scores = tile.scores + std::int64_t{row} * kKeyBlock;
  Vector x[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    x[i] = Vector::load(scores + i * Vector::kLanes);
  }
  if (first > 0 || last < kKeyBlock) {
    const Vector unseen = Vector::set(-__builtin_inff());
    for (int i = 0; i < kVectors; ++i) {
      const int lane = i * Vector::kLanes;
      x[i] = Vector::select(first - lane, last - lane, x[i], unseen);
    }
  }
  Vector largest = x[0];
  for (int i = 1; i < kVectors; ++i) {
    largest = Vector::max(largest, x[i]);
  }
  const float before = tile.part.largest[query];
  const float here = largest.largest();
  const float now = here > before ? here : before;
  const Vector scale = Vector::set(tile.exponent_scale);
  float* sums = tile.part.sums + std::int64_t{query} * kSumLanes;
  if (now != before) {
    tile.part.largest[query] = now;
    const Vector factor = exp2(Vector::set((before - now) * tile.exponent_scale));
    scale_row(sums, kSumLanes, factor);
    scale_row(tile.part.outputs + std::int64_t{query} * tile.padded_dim, tile.padded_dim, factor);
  }
  const Vector offset = Vector::set(-now * tile.exponent_scale);
  for (int i = 0; i < kVectors; ++i) {
    x[i] = exp2(Vector::fma(x[i], scale, offset));
  }
  constexpr int kSumVectors = kSumLanes / Vector::kLanes;
  for (int j = 0; j < kSumVectors; ++j) {
    Vector sum = Vector::load(sums + j * Vector::kLanes);
    for (int i = j; i < kVectors; i += kSumVectors) {
      sum = sum + x[i];
    }
    sum.store(sums + j * Vector::kLanes);
  }
  Weights::store(tile, row, x);
}

// The keys of a block that a query sees: from `first` to `last` - 1.
struct SeenKeys {
  int first;
  int last;
};

template <class Products>
SeenKeys seen_keys(const AttentionTile& tile, int query, std::int64_t start) {
  const std::int64_t end = tile.first_position + query / tile.group + 1 - start;
  const std::int64_t begin = end - tile.window;
  return {static_cast<int>(begin < 0 ? 0 : (begin < kKeyBlock ? begin : kKeyBlock)),
          static_cast<int>(end < kKeyBlock ? end : kKeyBlock)};
}

// Turns a strip's scores of the block that begins at position `start` into weights.
template <class Vector, class Weights>
void weigh(const AttentionTile& tile, int first_query, int num_queries, std::int64_t start) {
  for (int row = 0; row < num_queries; ++row) {
    const int query = first_query + row;
    const auto [first, last] = seen_keys<Weights>(tile, query, start);
    if (first < last) {
      weigh_row<Vector, Weights>(tile, query, row, first, last);
    } else {
      const Vector nothing[kKeyVectors<Vector>] = {};
      Weights::store(tile, row, nothing);
    }
  }
}

// Asks for one of four parts of what comes next. A little at a time: a processor waits for few
// lines at once. A template, so that no source for one instruction set gets the code of another's.
template <class Products>
void prefetch_quarter(const AttentionTile& tile, const KeyBlock& block, int quarter) {
  if (block.next == nullptr) {
    return;
  }
  const CacheRows& rows = quarter < 2 ? block.next->keys : block.next->values;
  const int row_bytes = tile.head_dim * (rows.type == Type::kF32 ? 4 : 2);
  const int first = quarter % 2 * kKeyBlock / 2;
  for (int i = first; i < first + kKeyBlock / 2; ++i) {
    const auto* row = static_cast<const char*>(rows.rows[i]);
    __builtin_prefetch(row);
    __builtin_prefetch(row + row_bytes - 1);
    for (int byte = 64; byte < row_bytes - 64; byte += 64) {
      __builtin_prefetch(row + byte);
    }
  }
}

// The keys of a block, a bit each, among whose values are some that are no finite numbers: those
// weigh nothing with queries that don't see them, and nothing times them is no number.
//
// Where every query sees all keys, it doesn't matter, and none is looked for.
template <class Products>
std::uint64_t unfinite_keys(const AttentionTile& tile, const KeyBlock& block) {
  const SeenKeys of_first = seen_keys<Products>(tile, 0, block.start);
  const SeenKeys of_last = seen_keys<Products>(tile, tile.num_queries - 1, block.start);
  const CacheRows& rows = block.values;
  if (of_first.last >= rows.count && of_last.first == 0) {
    return 0;
  }
  // Exponents of all ones, in whole numbers, which compilers make vectors of.
  std::uint64_t found = 0;
  for (int key = 0; key < rows.count; ++key) {
    std::uint32_t any = 0;
    if (rows.type == Type::kF32) {
      const auto* values = static_cast<const std::uint32_t*>(rows.rows[key]);
      for (int i = 0; i < tile.head_dim; ++i) {
        any |= static_cast<std::uint32_t>((values[i] & 0x7F800000U) == 0x7F800000U);
      }
    } else {
      const auto* values = static_cast<const std::uint16_t*>(rows.rows[key]);
      for (int i = 0; i < tile.head_dim; ++i) {
        any |= static_cast<std::uint32_t>((values[i] & 0x7F80U) == 0x7F80U);
      }
    }
    found |= std::uint64_t{any} << static_cast<unsigned>(key);
  }
  return found;
}

template <class Products>
CacheRows without_keys(const AttentionTile& tile, const CacheRows& rows, std::uint64_t keys) {
  CacheRows others = rows;
  for (int key = 0; key < kKeyBlock; ++key) {
    if ((keys >> static_cast<unsigned>(key < rows.count ? key : rows.count - 1) & 1U) != 0) {
      others.rows[key] = tile.zeros;
    }
  }
  return others;
}

// Makes the results of a strip's queries no numbers where they see one of these keys.
template <class Products>
void spoil(const AttentionTile& tile, int first_query, int num_queries, std::int64_t start,
           std::uint64_t keys) {
  for (int query = first_query; query < first_query + num_queries; ++query) {
    const auto [first, last] = seen_keys<Products>(tile, query, start);
    for (int key = first; key < last; ++key) {
      if ((keys >> static_cast<unsigned>(key) & 1U) != 0) {
        tile.part.sums[std::int64_t{query} * kSumLanes] = __builtin_nanf("");
      }
    }
  }
}

// A block's part in attention, strip by strip of queries. `Products` packs and multiplies.
template <class Products>
void attend(const AttentionTile& tile, const KeyBlock& block) {
  const std::uint64_t unfinite = unfinite_keys<Products>(tile, block);
  Products::pack_keys(tile, block.keys);
  prefetch_quarter<Products>(tile, block, 0);
  if (unfinite == 0) {
    Products::pack_values(tile, block.values);
  } else {
    Products::pack_values(tile, without_keys<Products>(tile, block.values, unfinite));
  }
  prefetch_quarter<Products>(tile, block, 1);
  for (int first = 0; first < tile.num_queries; first += kStripQueries) {
    const int left = tile.num_queries - first;
    const int count = left < kStripQueries ? left : kStripQueries;
    Products::score(tile, first, count);
    if (first == 0) {
      prefetch_quarter<Products>(tile, block, 2);
    }
    Products::weigh(tile, first, count, block.start);
    if (unfinite != 0) {
      spoil<Products>(tile, first, count, block.start, unfinite);
    }
    if (first == 0) {
      prefetch_quarter<Products>(tile, block, 3);
    }
    Products::accumulate(tile, first, count, block.values.count);
  }
}

template <class Vector>
void merge(const AttentionTile& tile, const PartialResult& part, const PartialResult& total) {
  for (int query = 0; query < tile.num_queries; ++query) {
    const float a = total.largest[query];
    const float b = part.largest[query];
    const float now = b > a ? b : a;
    total.largest[query] = now;
    const Vector of_total = exp2(Vector::set((a - now) * tile.exponent_scale));
    const Vector of_part = exp2(Vector::set((b - now) * tile.exponent_scale));
    const auto add = [&](const float* from, float* to, int size) {
      for (int i = 0; i < size; i += Vector::kLanes) {
        (Vector::load(to + i) * of_total + Vector::load(from + i) * of_part).store(to + i);
      }
    };
    add(part.sums + std::int64_t{query} * kSumLanes, total.sums + std::int64_t{query} * kSumLanes,
        kSumLanes);
    add(part.outputs + std::int64_t{query} * tile.padded_dim,
        total.outputs + std::int64_t{query} * tile.padded_dim, tile.padded_dim);
  }
}

// Outputs whose columns lie in the order of the dimensions.
struct PlainColumns {
  template <class Vector>
  static Vector load(const float* outputs, int column) {
    return Vector::load(outputs + column);
  }
};

// `Columns::load` gives the outputs of the dimensions from a multiple of Vector::kLanes on.
template <class Vector, class Columns>
void finish(const AttentionTile& tile, const PartialResult& total, const OutputRows& out) {
  for (int query = 0; query < tile.num_queries; ++query) {
    Vector sum = Vector::set(0.0F);
    for (int i = 0; i < kSumLanes; i += Vector::kLanes) {
      sum = sum + Vector::load(total.sums + std::int64_t{query} * kSumLanes + i);
    }
    const Vector factor = Vector::set(1.0F / sum.sum());
    const float* outputs = total.outputs + std::int64_t{query} * tile.padded_dim;
    const std::int64_t start =
        query / tile.group * out.stride + std::int64_t{query % tile.group} * tile.head_dim;
    for (int i = 0; i < tile.head_dim; i += Vector::kLanes) {
      const int left = tile.head_dim - i;
      const std::int64_t count = left < Vector::kLanes ? left : Vector::kLanes;
      const Vector value = Columns::template load<Vector>(outputs, i) * factor;
      if (out.type == Type::kF32) {
        value.store_first(static_cast<float*>(out.data) + start + i, count);
      } else {
        value.store_bf16_first(static_cast<std::uint16_t*>(out.data) + start + i, count);
      }
    }
  }
}

}  // namespace antiphon::kernels::attention_templates
