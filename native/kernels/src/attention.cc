#include "antiphon/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <stdexcept>

#include "attention_kernels.h"
#include "attention_units.h"
#include "rounding.h"
#include "row_tasks.h"

namespace antiphon::kernels {

namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr std::int64_t kUnitsPerWorker = 2;          // with fewer, contexts are shared out
constexpr std::int64_t kPartFloats = 1 + kSumLanes;  // of a query, and its outputs

std::int64_t padded_dim(const AttentionLayer& layer) { return round_up(layer.head_dim, 32); }

std::int64_t part_floats(std::int64_t num_queries, std::int64_t dim) {
  return round_up(num_queries, 16) * (kPartFloats + dim);
}

PartialResult part_at(float* floats, std::int64_t num_queries) {
  const std::int64_t padded = round_up(num_queries, 16);
  return {.largest = floats, .sums = floats + padded, .outputs = floats + padded * kPartFloats};
}

// One worker's share of an op.
class AttentionWork {
 public:
  AttentionWork(Worker& worker, AttentionWorkspace& workspace, const AttentionStep& step,
                const AttentionLayer& layer, const Rows& q, const RowsOut& out, Isa isa)
      : workspace_(workspace),
        step_(step),
        layer_(layer),
        q_(q),
        out_(out),
        kernels_(attention_kernels(isa, q.type, layer.kv_type)),
        units_(step, layer),
        group_(layer.num_heads / layer.num_kv_heads),
        dim_(padded_dim(layer)) {
    const std::int64_t num_queries = round_up(std::int64_t{units_.unit_tokens()} * group_, 16);
    const std::int64_t floats = (num_queries + 17) * dim_ + 2 * kStripQueries * kKeyBlock +
                                2 * dim_ * kKeyBlock + 2 * part_floats(num_queries, dim_);
    scratch_ =
        reinterpret_cast<float*>(worker.scratch(static_cast<std::size_t>(floats) * sizeof(float)));
    kernels_.begin();
  }
  ~AttentionWork() { kernels_.end(); }
  AttentionWork(const AttentionWork&) = delete;
  AttentionWork& operator=(const AttentionWork&) = delete;

  // Takes whole units.
  void take_units(TaskCursor& cursor) {
    AttentionUnitWalk walk(units_, step_.num_rows);
    AttentionUnit unit;
    while (walk.find(cursor.next(), unit)) {
      begin(unit);
      clear(total_);
      for (std::int64_t i = 0; i < unit.num_splits(); ++i) {
        compute_split(unit, unit.first_split() + i);
        kernels_.merge(tile_, tile_.part, total_);
      }
      finish(unit);
    }
  }

  // Takes splits of units one by one; whoever completes a unit puts it together.
  void take_splits(TaskCursor& cursor) {
    AttentionUnitWalk walk(units_, step_.num_rows);
    AttentionUnit unit;
    std::int64_t first = 0;  // number of the unit's first split among all
    float* parts = workspace_.parts();
    std::int64_t task = cursor.next();
    for (std::int64_t index = 0; walk.find(index, unit); ++index) {
      const std::int64_t end = first + unit.num_splits();
      const std::int64_t part_size = part_floats(unit.num_tokens * group_, dim_);
      for (; task < end; task = cursor.next()) {
        begin(unit);
        tile_.part = part_at(parts + (task - first) * part_size, tile_.num_queries);
        compute_split(unit, unit.first_split() + task - first);
        if (workspace_.num_complete(index).fetch_add(1, std::memory_order_acq_rel) + 1 ==
            unit.num_splits()) {
          workspace_.num_complete(index).store(0, std::memory_order_relaxed);
          combine(unit, parts, part_size);
        }
      }
      parts += unit.num_splits() * part_size;
      first = end;
    }
  }

  // Whether there are few units with long contexts.
  bool shares_out(int num_workers) const {
    const std::int64_t limit = std::min(kUnitsPerWorker * num_workers, workspace_.max_units());
    const std::int64_t num_units = units_.count(limit);
    if (num_workers == 1 || num_units > limit) {
      return false;
    }
    std::int64_t floats = 0;
    std::int64_t num_splits = 0;
    AttentionUnitWalk walk(units_, step_.num_rows);
    AttentionUnit unit;
    for (std::int64_t index = 0; walk.find(index, unit); ++index) {
      num_splits += unit.num_splits();
      floats += unit.num_splits() * part_floats(unit.num_tokens * group_, dim_);
    }
    return num_splits > num_units && floats <= workspace_.num_floats();
  }

 private:
  // Lays the scratch out for a unit, and packs its queries.
  void begin(const AttentionUnit& unit) {
    tile_.head_dim = layer_.head_dim;
    tile_.padded_dim = static_cast<int>(dim_);
    tile_.group = group_;
    tile_.num_tokens = unit.num_tokens;
    tile_.num_queries = unit.num_tokens * group_;
    tile_.padded_queries = static_cast<int>(round_up(tile_.num_queries, 16));
    tile_.first_position = unit.first_position;
    tile_.window = AttentionUnits::window(layer_);
    tile_.exponent_scale = static_cast<float>(layer_.scale * kLog2E);
    float* next = scratch_;
    const auto take = [&next](std::int64_t num_floats) {
      float* taken = next;
      next += num_floats;
      return taken;
    };
    tile_.queries = take(tile_.padded_queries * dim_);
    tile_.few = take(16 * dim_);
    tile_.keys = take(dim_ * kKeyBlock);
    tile_.values = take(kKeyBlock * dim_);
    tile_.scores = take(kStripQueries * kKeyBlock);
    tile_.weights = take(kStripQueries * kKeyBlock);
    tile_.zeros = take(dim_);
    std::fill_n(tile_.zeros, dim_, 0.0F);
    tile_.part = part_at(take(part_floats(tile_.num_queries, dim_)), tile_.num_queries);
    total_ = part_at(take(part_floats(tile_.num_queries, dim_)), tile_.num_queries);
    const std::int64_t token = step_.cu_q[unit.row] + std::int64_t{unit.first_token};
    const std::int64_t head = std::int64_t{unit.kv_head} * group_ * layer_.head_dim;
    kernels_.pack_queries(
        tile_, {element(q_.data, q_.type, token * q_.stride + head), q_.type, q_.stride});
  }

  void clear(const PartialResult& part) const {
    std::fill_n(part.largest, tile_.padded_queries, std::numeric_limits<float>::lowest());
    std::fill_n(part.sums, std::int64_t{tile_.padded_queries} * kSumLanes, 0.0F);
    std::fill_n(part.outputs, tile_.padded_queries * dim_, 0.0F);
  }

  // Makes tile_.part of the keys of one split.
  void compute_split(const AttentionUnit& unit, std::int64_t split) {
    clear(tile_.part);
    const std::int64_t first_block = std::max(split * kSplitTokens, unit.first_key) / kKeyBlock;
    const std::int64_t end_key = std::min((split + 1) * kSplitTokens, unit.end_key);
    const auto end_of = [end_key](std::int64_t start) {
      return std::min(start + kKeyBlock, end_key);
    };
    KeyBlock blocks[2];
    std::int64_t start = first_block * kKeyBlock;
    locate(unit, start, end_of(start), blocks[0]);
    for (int i = 0; start < end_key; start += kKeyBlock, i = 1 - i) {
      const std::int64_t next = start + kKeyBlock;
      blocks[i].next = nullptr;
      if (next < end_key) {
        locate(unit, next, end_of(next), blocks[1 - i]);
        blocks[i].next = &blocks[1 - i];
      }
      kernels_.attend(tile_, blocks[i]);
    }
  }

  // Finds where the keys and values of a block lie.
  void locate(const AttentionUnit& unit, std::int64_t start, std::int64_t end,
              KeyBlock& found) const {
    auto& [keys, values, found_start, next] = found;
    found_start = start;
    const std::int32_t* table = step_.block_table + step_.slots[unit.row] * step_.table_stride;
    const std::int64_t token_size = std::int64_t{layer_.num_kv_heads} * layer_.head_dim;
    const std::int64_t head = std::int64_t{unit.kv_head} * layer_.head_dim;
    std::int64_t block = start / layer_.block_tokens;
    std::int64_t place = start % layer_.block_tokens;
    const auto count = static_cast<int>(end - start);
    for (int i = 0; i < count; ++i) {
      const std::int64_t slot = std::int64_t{table[block]} * layer_.block_tokens + place;
      const std::int64_t offset = slot * token_size + head;
      keys.rows[i] = element(layer_.k_pool, layer_.kv_type, offset);
      values.rows[i] = element(layer_.v_pool, layer_.kv_type, offset);
      if (++place == layer_.block_tokens) {
        place = 0;
        ++block;
      }
    }
    for (int i = count; i < kKeyBlock; ++i) {
      keys.rows[i] = keys.rows[count - 1];
      values.rows[i] = values.rows[count - 1];
    }
    keys.count = values.count = count;
    keys.type = values.type = layer_.kv_type;
    const bool is_even = layer_.block_tokens % kEvenRows == 0;
    keys.stride = values.stride = is_even ? token_size * element_bytes(layer_.kv_type) : 0;
  }

  void combine(const AttentionUnit& unit, float* parts, std::int64_t part_size) {
    clear(total_);
    for (std::int64_t i = 0; i < unit.num_splits(); ++i) {
      kernels_.merge(tile_, part_at(parts + i * part_size, tile_.num_queries), total_);
    }
    finish(unit);
  }

  void finish(const AttentionUnit& unit) {
    const std::int64_t token = step_.cu_q[unit.row] + std::int64_t{unit.first_token};
    const std::int64_t head = std::int64_t{unit.kv_head} * group_ * layer_.head_dim;
    kernels_.finish(
        tile_, total_,
        {element(out_.data, out_.type, token * out_.stride + head), out_.type, out_.stride});
  }

  AttentionWorkspace& workspace_;
  const AttentionStep& step_;
  const AttentionLayer& layer_;
  const Rows& q_;
  const RowsOut& out_;
  const AttentionKernels& kernels_;
  AttentionUnits units_;
  int group_;
  std::int64_t dim_;
  float* scratch_;
  AttentionTile tile_{};
  PartialResult total_{};
};

}  // namespace

AttentionWorkspace::AttentionWorkspace(int num_threads, std::size_t num_bytes)
    : max_units_(kUnitsPerWorker * num_threads),
      num_floats_(static_cast<std::int64_t>(num_bytes / sizeof(float))),
      num_complete_(
          std::make_unique<std::atomic<std::int32_t>[]>(static_cast<std::size_t>(max_units_))),
      parts_(static_cast<float*>(::operator new(num_bytes, std::align_val_t{kCacheLine}))) {}

AttentionWorkspace::~AttentionWorkspace() {
  ::operator delete(parts_, std::align_val_t{kCacheLine});
}

void AttentionWorkspace::reset() {
  for (std::int64_t unit = 0; unit < max_units_; ++unit) {
    num_complete_[unit].store(0, std::memory_order_relaxed);
  }
}

const AttentionKernels& attention_kernels(Isa isa, Type queries, Type cache) {
  isa = base_of(isa);
#if defined(ANTIPHON_KERNELS_X86)
  const bool is_bf16 = queries == Type::kBf16 && cache == Type::kBf16;
  if (isa >= Isa::kAmx && is_bf16) {
    return amx::kAttentionKernels;
  }
  if (isa >= Isa::kAvx512Bf16 && is_bf16) {
    return avx512_bf16::kAttentionKernels;
  }
  if (isa >= Isa::kAvx512) {
    return avx512::kAttentionKernels;
  }
  if (isa >= Isa::kAvx2) {
    return avx2::kAttentionKernels;
  }
#endif
  static_cast<void>(isa);
  static_cast<void>(queries);
  static_cast<void>(cache);
  return portable::kAttentionKernels;
}

void attention(Worker& worker, TaskCursor& cursor, AttentionWorkspace& workspace,
               const AttentionStep& step, const AttentionLayer& layer, const Rows& q,
               const RowsOut& out, Isa isa) {
  if (layer.num_kv_heads < 1 || layer.num_heads % layer.num_kv_heads != 0) {
    throw std::invalid_argument("attention needs query heads that key-value heads divide");
  }
  AttentionWork work(worker, workspace, step, layer, q, out, isa);
  if (work.shares_out(worker.count())) {
    work.take_splits(cursor);
  } else {
    work.take_units(cursor);
  }
}

}  // namespace antiphon::kernels
