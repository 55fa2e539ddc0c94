// Measures attention at the default model's shape, on one thread, by its CPU time: decoded tokens
// beside a plain read of the same keys and values, and chunks of prompts. `ISA` as an argument
// ("amx", "avx512" …) measures another instruction set than the best.
#include "antiphon/kernels/attention.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "bfloat16.h"

namespace antiphon::kernels {
namespace {

constexpr int kHeads = 14;
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 64;
constexpr int kBlockTokens = 16;
constexpr std::int64_t kTokenSize = kKvHeads * kHeadDim;
constexpr std::int64_t kQuerySize = kHeads * kHeadDim;
constexpr std::int64_t kCacheBytes = 96 << 20;  // so that layers push each other out of L2
constexpr int kMaxLayers = 24;
constexpr double kMeasuredSeconds = 0.05;
constexpr int kRounds = 3;

double cpu_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Rows of one size, and the caches of some layers in random blocks.
class Load {
 public:
  Load(int num_rows, int num_tokens, int context)
      : num_tokens_(num_rows * num_tokens),
        num_keys_(std::int64_t{num_rows} * (context + num_tokens)),
        q_len_(num_rows, num_tokens),
        ctx_len_(num_rows, context),
        stride_((context + num_tokens + kBlockTokens - 1) / kBlockTokens),
        slots_(num_rows),
        table_(num_rows * stride_) {
    for (int row = 0; row < num_rows; ++row) {
      cu_q_.push_back(row * num_tokens);
    }
    std::mt19937 random(1);
    std::iota(slots_.begin(), slots_.end(), 0);
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), random);
    const std::int64_t layer_size = std::ssize(table_) * kBlockTokens * kTokenSize;
    num_layers_ =
        static_cast<int>(std::clamp<std::int64_t>(kCacheBytes / (layer_size * 4), 1, kMaxLayers));
    const auto fill = [&random](std::vector<std::uint16_t>& values, std::int64_t size) {
      values.resize(size);
      std::normal_distribution<float> normal;
      const std::int64_t num_fresh = std::min<std::int64_t>(size, 1 << 16);
      for (std::int64_t i = 0; i < size; ++i) {
        values[i] = i < num_fresh ? to_bf16(normal(random)) : values[i - num_fresh];
      }
    };
    fill(keys_, layer_size * num_layers_);
    fill(values_, layer_size * num_layers_);
    fill(queries_, num_tokens_ * kQuerySize);
    out_.resize(num_tokens_ * kQuerySize);
  }

  // CPU seconds of one layer's attention.
  double attend(ThreadTeam& team, AttentionWorkspace& workspace, Isa isa) {
    const AttentionStep step{.num_rows = std::ssize(q_len_),
                             .q_len = q_len_.data(),
                             .cu_q = cu_q_.data(),
                             .ctx_len = ctx_len_.data(),
                             .slots = slots_.data(),
                             .block_table = table_.data(),
                             .table_stride = stride_};
    return time_per_layer([&](int layer) {
      const AttentionLayer shape{.num_heads = kHeads,
                                 .num_kv_heads = kKvHeads,
                                 .head_dim = kHeadDim,
                                 .block_tokens = kBlockTokens,
                                 .scale = 0.125F,
                                 .sliding_window = 0,
                                 .k_pool = keys_.data() + layer_offset(layer),
                                 .v_pool = values_.data() + layer_offset(layer),
                                 .kv_type = Type::kBf16};
      TaskCursor cursor;
      team.run([&](Worker& worker) {
        attention(worker, cursor, workspace, step, shape,
                  {queries_.data(), Type::kBf16, num_tokens_, kQuerySize},
                  {out_.data(), Type::kBf16, kQuerySize}, isa);
      });
    });
  }

  // CPU seconds of reading one layer's keys and values in the order in which they lie.
  double read() {
    std::uint64_t sum = 0;
    const double seconds = time_per_layer([&](int layer) {
      for (const auto* pool : {&keys_, &values_}) {
        const std::uint16_t* from = pool->data() + layer_offset(layer);
        std::uint64_t sums[8] = {};
        for (std::int64_t i = 0; i < layer_offset(1); i += 32) {
          std::uint64_t words[8];
          std::memcpy(words, from + i, sizeof(words));
          for (int j = 0; j < 8; ++j) {
            sums[j] ^= words[j];
          }
        }
        sum ^= std::accumulate(sums, sums + 8, std::uint64_t{0});
      }
    });
    asm volatile("" : : "r"(sum));
    return seconds;
  }

  double bytes() const { return static_cast<double>(num_keys_ * kTokenSize * 4); }

 private:
  std::int64_t layer_offset(int layer) const {
    return layer * std::ssize(table_) * kBlockTokens * kTokenSize;
  }

  // The least of many: what others on the machine take and evict is not what is measured.
  template <class Body>
  double time_per_layer(Body body) const {
    double least = 1e9;
    const double start = cpu_seconds();
    double now = start;
    for (int layer = 0; now - start < kMeasuredSeconds; layer = (layer + 1) % num_layers_) {
      const double before = now;
      body(layer);
      now = cpu_seconds();
      least = std::min(least, now - before);
    }
    return least;
  }

  std::int64_t num_tokens_;
  std::int64_t num_keys_;
  std::vector<std::int32_t> q_len_;
  std::vector<std::int32_t> ctx_len_;
  std::vector<std::int32_t> cu_q_;
  std::int64_t stride_;
  std::vector<std::int32_t> slots_;
  std::vector<std::int32_t> table_;
  int num_layers_ = 0;
  std::vector<std::uint16_t> keys_;
  std::vector<std::uint16_t> values_;
  std::vector<std::uint16_t> queries_;
  std::vector<std::uint16_t> out_;
};

void measure_decode(Isa isa) {
  ThreadTeam team(1);
  AttentionWorkspace workspace(1);
  std::printf("%-8s %5s %12s %8s %12s %8s\n", "context", "rows", "us a layer", "GB/s", "plain read",
              "share");
  for (const int context : {64, 1000, 8000}) {
    for (const int rows : {1, 4, 16, 64}) {
      Load load(rows, 1, context - 1);
      double attend = 1e9;
      double read = 1e9;
      for (int round = 0; round < kRounds; ++round) {
        attend = std::min(attend, load.attend(team, workspace, isa));
        read = std::min(read, load.read());
      }
      std::printf("%-8d %5d %12.2f %8.1f %12.1f %7.0f%%\n", context, rows, attend * 1e6,
                  load.bytes() / attend * 1e-9, load.bytes() / read * 1e-9, read / attend * 100);
    }
  }
}

void measure_chunks(Isa isa) {
  ThreadTeam team(1);
  AttentionWorkspace workspace(1);
  std::printf("\n%-8s %6s %12s %9s\n", "context", "tokens", "us a layer", "GFLOP/s");
  for (const auto& [context, tokens] : {std::pair{0, 512}, {7500, 512}, {0, 64}, {1000, 32}}) {
    Load load(1, tokens, context);
    double attend = 1e9;
    for (int round = 0; round < kRounds; ++round) {
      attend = std::min(attend, load.attend(team, workspace, isa));
    }
    const double num_scores = tokens * (context + (tokens + 1) / 2.0);
    std::printf("%-8d %6d %12.1f %9.0f\n", context, tokens, attend * 1e6,
                4.0 * kHeads * kHeadDim * num_scores / attend * 1e-9);
  }
}

}  // namespace
}  // namespace antiphon::kernels

int main(int count, char** arguments) {
  using antiphon::kernels::Isa;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Isa isa = antiphon::kernels::best_isa();
  for (const Isa other : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    if (count > 1 && std::string_view(arguments[1]) == antiphon::kernels::name(other)) {
      isa = other;
    }
  }
  std::printf("attention on %s, %d heads over %d of %d, bf16\n", antiphon::kernels::name(isa),
              antiphon::kernels::kHeads, antiphon::kernels::kKvHeads, antiphon::kernels::kHeadDim);
  antiphon::kernels::measure_decode(isa);
  antiphon::kernels::measure_chunks(isa);
}
