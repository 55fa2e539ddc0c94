// What attention in bf16 needs whether dot products or tiles multiply. Both take operands in pairs:
// of keys two dimensions lie together, of values two keys.
#pragma once

#include <cstdint>

#include "../attention_kernels.h"

namespace antiphon::kernels::avx512_bf16 {

void pack_query_rows(const AttentionTile& tile, const QueryRows& rows);
void pack_key_pairs(const AttentionTile& tile, const CacheRows& rows);
void pack_value_pairs(const AttentionTile& tile, const CacheRows& rows);
void weigh_pairs(const AttentionTile& tile, std::int64_t block_start);
void merge_parts(const AttentionTile& tile, const PartialResult& part, const PartialResult& total);
void finish_rows(const AttentionTile& tile, const PartialResult& total, const OutputRows& out);

}  // namespace antiphon::kernels::avx512_bf16
