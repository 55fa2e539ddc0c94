// What attention does with one tile of queries and one block of keys, for each instruction set.
#pragma once

#include <cstdint>

#include "antiphon/kernels/activations.h"
#include "antiphon/kernels/cpu_features.h"

namespace antiphon::kernels {

inline constexpr int kKeyBlock = 64;               // keys that are taken at once
inline constexpr std::int64_t kSplitTokens = 512;  // keys whose weights are summed apart
inline constexpr int kTileQueries = 128;           // about as many queries make a tile
inline constexpr int kStripQueries = 32;           // of a tile are worked on in the first cache
inline constexpr int kSumLanes = 16;

// The heads of one key-value head in consecutive tokens. Query `token * group + i` is head i of
// `group` that lie one behind the other, `head_dim` elements each; tokens are `stride` elements
// apart.
template <class Pointer>
struct TokenRows {
  Pointer data;
  Type type;
  std::int64_t stride;
};
using QueryRows = TokenRows<const void*>;
using OutputRows = TokenRows<void*>;

// One head's keys, or values, of a block, wherever they lie in the cache.
struct CacheRows {
  const void* rows[kKeyBlock];  // behind `count` all are the last one
  Type type;
  int count;  // from 1
  // Bytes from row to row within each group of kEvenRows, where that is always the same; else 0.
  // What is behind `count` in a group can be read then, whatever it is.
  std::int64_t stride;
};
inline constexpr int kEvenRows = 16;

struct KeyBlock {
  CacheRows keys;
  CacheRows values;
  std::int64_t start;    // position of the first key
  const KeyBlock* next;  // what will be asked for next, or null
};

// What is known of a tile's queries from some of their keys: with m the largest score, the sum of
// e^(score - m) in lanes, and the values weighted by it.
struct PartialResult {
  float* largest;  // [padded_queries], scores not yet scaled
  float* sums;     // [padded_queries, kSumLanes]
  float* outputs;  // [padded_queries, padded_dim]
};

// A tile of queries and the memory to work on it. What is behind `num_queries` and `head_dim` is
// padding, whose results nobody reads.
struct AttentionTile {
  int head_dim;
  int padded_dim;  // a multiple of 32
  int group;       // query heads of a token
  int num_tokens;
  int num_queries;              // num_tokens * group
  int padded_queries;           // a multiple of 16
  std::int64_t first_position;  // of the first token
  std::int64_t window;          // tokens that a token sees, itself included
  float exponent_scale;         // from scores to exponents of 2
  // The types of these are the kernels' own; there is room for f32.
  void* queries;  // [padded_queries, padded_dim]
  void* few;      // [16, padded_dim]: queries in another order, where there are few
  void* keys;     // [padded_dim, kKeyBlock]
  void* values;   // [kKeyBlock, padded_dim]
  void* weights;  // [kStripQueries, kKeyBlock], of a strip of queries
  float* scores;  // [kStripQueries, kKeyBlock]
  float* zeros;   // [padded_dim]: what stands for values that are no numbers
  PartialResult part;
};

struct AttentionKernels {
  // Before a worker's first call of the others, and after its last one.
  void (*begin)();
  void (*end)();
  void (*pack_queries)(const AttentionTile& tile, const QueryRows& rows);
  // Adds what the queries see of a block's keys and values to `part`.
  void (*attend)(const AttentionTile& tile, const KeyBlock& block);
  // total += part. What it adds where a query sees none of part's keys changes no bit.
  void (*merge)(const AttentionTile& tile, const PartialResult& part, const PartialResult& total);
  void (*finish)(const AttentionTile& tile, const PartialResult& total, const OutputRows& out);
};

namespace portable {
extern const AttentionKernels kAttentionKernels;
}
namespace avx2 {
extern const AttentionKernels kAttentionKernels;
}
namespace avx512 {
extern const AttentionKernels kAttentionKernels;
}
// For queries and cache in bf16.
namespace avx512_bf16 {
extern const AttentionKernels kAttentionKernels;
}
namespace amx {
extern const AttentionKernels kAttentionKernels;
}

const AttentionKernels& attention_kernels(Isa isa, Type queries, Type cache);

}  // namespace antiphon::kernels
