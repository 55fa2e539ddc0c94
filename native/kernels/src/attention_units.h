// How a step's attention is cut into units: the queries of one key-value head in a few consecutive
// tokens of a row.
#pragma once

#include <algorithm>
#include <cstdint>

#include "antiphon/kernels/attention.h"
#include "attention_kernels.h"
#include "rounding.h"

namespace antiphon::kernels {

struct AttentionUnit {
  std::int64_t row;
  int kv_head;
  int first_token;  // of the row's
  int num_tokens;
  std::int64_t first_position;  // of the first token
  std::int64_t first_key;       // positions that one of the tokens sees
  std::int64_t end_key;

  std::int64_t first_split() const { return first_key / kSplitTokens; }
  std::int64_t num_splits() const { return (end_key - 1) / kSplitTokens - first_split() + 1; }
};

class AttentionUnits {
 public:
  AttentionUnits(const AttentionStep& step, const AttentionLayer& layer)
      : step_(step),
        num_kv_heads_(layer.num_kv_heads),
        window_(window(layer)),
        unit_tokens_(std::max(1, kTileQueries / (layer.num_heads / layer.num_kv_heads))) {}

  static std::int64_t window(const AttentionLayer& layer) {
    return layer.sliding_window > 0 ? layer.sliding_window : std::int64_t{1} << 40U;
  }

  int unit_tokens() const { return unit_tokens_; }

  std::int64_t units_of(std::int64_t row) const {
    return divide_up(step_.q_len[row], unit_tokens_) * num_kv_heads_;
  }

  // Counts no further than past `limit`.
  std::int64_t count(std::int64_t limit) const {
    std::int64_t count = 0;
    for (std::int64_t row = 0; row < step_.num_rows && count <= limit; ++row) {
      count += units_of(row);
    }
    return count;
  }

  // Unit `index` of a row's. Later tokens, which see more, come first: what is left at the end of
  // an op is small.
  AttentionUnit unit(std::int64_t row, std::int64_t index) const {
    const auto num_pieces = static_cast<int>(units_of(row) / num_kv_heads_);
    AttentionUnit unit{};
    unit.row = row;
    unit.kv_head = static_cast<int>(index % num_kv_heads_);
    const int piece = num_pieces - 1 - static_cast<int>(index / num_kv_heads_);
    unit.first_token = piece * unit_tokens_;
    unit.num_tokens = std::min(unit_tokens_, step_.q_len[row] - unit.first_token);
    unit.first_position = std::int64_t{step_.ctx_len[row]} + unit.first_token;
    unit.first_key = std::max<std::int64_t>(0, unit.first_position + 1 - window_);
    unit.end_key = unit.first_position + unit.num_tokens;
    return unit;
  }

 private:
  const AttentionStep& step_;
  int num_kv_heads_;
  std::int64_t window_;
  int unit_tokens_;
};

// Finds units by their numbers, which only go up.
class AttentionUnitWalk {
 public:
  AttentionUnitWalk(const AttentionUnits& units, std::int64_t num_rows)
      : units_(units), num_rows_(num_rows) {}

  // Whether there is a unit `index`; then it is in `unit`.
  bool find(std::int64_t index, AttentionUnit& unit) {
    for (; row_ < num_rows_; ++row_) {
      const std::int64_t count = units_.units_of(row_);
      if (index < first_ + count) {
        unit = units_.unit(row_, index - first_);
        return true;
      }
      first_ += count;
    }
    return false;
  }

 private:
  const AttentionUnits& units_;
  std::int64_t num_rows_;
  std::int64_t row_ = 0;
  std::int64_t first_ = 0;  // number of the row's first unit
};

}  // namespace antiphon::kernels
