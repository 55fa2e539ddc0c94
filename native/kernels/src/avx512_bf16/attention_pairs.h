// What attention in bf16 needs whether dot products or tiles multiply. Both take operands in pairs:
// of keys two dimensions lie together, of values two keys.
#pragma once

#include <cstdint>

#include "../attention_kernels.h"

namespace antiphon::kernels::avx512_bf16 {

void pack_query_rows(const AttentionTile& tile, const QueryRows& rows);
void pack_key_pairs(const AttentionTile& tile, const CacheRows& rows);
// Row by row the pairs of 16 rows: [padded_dim / 2, 16], `stride` pairs from one to the next.
void transpose_pairs(const void* const* rows, int head_dim, int padded_dim, std::uint32_t* to,
                     std::int64_t stride);
void pack_value_pairs(const AttentionTile& tile, const CacheRows& rows);
void weigh_pairs(const AttentionTile& tile, int first, int count, std::int64_t start);
void merge_parts(const AttentionTile& tile, const PartialResult& part, const PartialResult& total);
void finish_rows(const AttentionTile& tile, const PartialResult& total, const OutputRows& out);

}  // namespace antiphon::kernels::avx512_bf16
