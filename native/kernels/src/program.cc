#include "antiphon/kernels/program.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "huge_pages.h"
#include "program_parts.h"

namespace antiphon::kernels {

namespace {

constexpr std::int64_t kMaxTokens = 1 << 20;
constexpr std::int64_t kMaxWidth = 1 << 24;

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

void check_equal(const char* what, std::int64_t found, std::int64_t expected) {
  if (found != expected) {
    refuse(std::string(what) + " is " + std::to_string(found) + ", expected " +
           std::to_string(expected));
  }
}

void check_float32(const char* what, Type type) {
  if (type != Type::kF32) {
    refuse(std::string(what) + " must be float32");
  }
}

void check_size(const char* what, std::size_t found, std::int64_t expected) {
  check_equal(what, static_cast<std::int64_t>(found), expected);
}

}  // namespace

Program::Program(std::shared_ptr<ThreadTeam> team, std::int64_t max_tokens, Isa isa)
    : team_(std::move(team)), max_tokens_(max_tokens), isa_(isa) {
  if (team_ == nullptr) {
    refuse("a program needs a team");
  }
  if (max_tokens < 1 || max_tokens > kMaxTokens) {
    refuse("max_tokens is " + std::to_string(max_tokens) + ", expected 1 to " +
           std::to_string(kMaxTokens));
  }
  if (!has(isa)) {
    refuse(std::string("this machine lacks ") + name(isa));
  }
  run_ = std::make_unique<Run>();
}

Program::~Program() = default;

BufferId Program::add_buffer(std::int64_t width, Type type) {
  if (width < 1 || width > kMaxWidth) {
    refuse("a buffer's width is " + std::to_string(width) + ", expected 1 to " +
           std::to_string(kMaxWidth));
  }
  Buffer added;
  added.width = width;
  added.type = type;
  // Tiles of bfloat16 are loaded a cache line a row.
  constexpr std::int64_t kLineValues = kCacheLine / sizeof(std::uint16_t);
  added.stride =
      type == Type::kBf16 ? (width + kLineValues - 1) / kLineValues * kLineValues : width;
  const auto num_bytes = static_cast<std::size_t>(max_tokens_) *
                         static_cast<std::size_t>(added.stride * element_bytes(type));
  // Pages of a large one come when they are written first, and are zeros.
  std::size_t room = num_bytes + kCacheLine;
  added.memory.reset(std::calloc(room, 1));
  void* aligned = added.memory.get();
  if (aligned == nullptr || std::align(kCacheLine, num_bytes, aligned, room) == nullptr) {
    throw std::bad_alloc();
  }
  added.data = static_cast<std::byte*>(aligned);
  buffers_.push_back(std::move(added));
  return static_cast<BufferId>(buffers_.size() - 1);
}

void Program::add_embedding(std::shared_ptr<const PackedMatrix> table, BufferId out) {
  check_equal("the embedding's width", table->num_in(), buffer(out).width);
  check_float32("what embeddings are written to", buffer(out).type);
  const std::int64_t num_ids = table->num_out();
  append({EmbeddingOperation{std::move(table), out}, {{out, true}}});
  run_->vocabulary_size =
      run_->vocabulary_size == 0 ? num_ids : std::min(run_->vocabulary_size, num_ids);
}

void Program::add_rope_angles(std::vector<float> inverse_frequencies, float scale) {
  if (run_->has_angles) {
    refuse("a program has one table of angles");
  }
  if (inverse_frequencies.empty()) {
    refuse("there are no frequencies");
  }
  const auto size = static_cast<std::size_t>(max_tokens_) * inverse_frequencies.size();
  run_->cosines.resize(size);
  run_->sines.resize(size);
  append({AnglesOperation{std::move(inverse_frequencies), scale}, {{Access::kAngles, true}}});
  run_->has_angles = true;
}

void Program::add_rms_norm(BufferId in, std::vector<float> weight, float epsilon, BufferId out) {
  check_size("the norm's weight", weight.size(), buffer(in).width);
  check_float32("what is normalised", buffer(in).type);
  check_equal("the width of what the norm writes", buffer(out).width, buffer(in).width);
  append({NormOperation{in, std::move(weight), epsilon, out}, {{in, false}, {out, true}}});
}

void Program::add_linear(BufferId in, std::shared_ptr<const PackedMatrix> matrix,
                         std::vector<float> bias, Epilogue epilogue, BufferId out,
                         std::int64_t out_column) {
  check_equal("the matrix's num_in", matrix->num_in(), buffer(in).width);
  if (!bias.empty()) {
    check_size("the bias's length", bias.size(), matrix->num_out());
  }
  const bool pairs = epilogue == Epilogue::kSiluMul;
  if (pairs != (matrix->order() == RowOrder::kGateUp)) {
    refuse("matrices of gates, and they alone, have the epilogue silu_mul");
  }
  if (epilogue == Epilogue::kAdd) {
    check_float32("what products are added to", buffer(out).type);
  }
  const std::int64_t columns = pairs ? matrix->num_out() / 2 : matrix->num_out();
  const std::int64_t end = out_column + columns;
  if (out_column < 0 || end > buffer(out).width) {
    refuse("the product's columns end at " + std::to_string(end) + ", but the buffer has " +
           std::to_string(buffer(out).width));
  }
  if (in == out) {
    refuse("a product can't be written over what it reads");
  }
  append({LinearOperation{in, std::move(matrix), std::move(bias), epilogue, out, out_column},
          {{in, false}, {out, true, out_column, end}}});
}

void Program::add_rope_store(std::int64_t layer, const AttentionShape& shape, BufferId qkv,
                             std::vector<float> q_norm, std::vector<float> k_norm, float epsilon,
                             BufferId q) {
  check_heads(shape);
  if (!run_->has_angles) {
    refuse("angles must be there before what rotates");
  }
  check_size("the number of angles", 2 * run_->cosines.size() / max_tokens_, shape.head_dim);
  check_equal("the width of queries, keys and values", buffer(qkv).width,
              (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim);
  check_float32("what holds queries, keys and values", buffer(qkv).type);
  check_equal("the queries' width", buffer(q).width, shape.num_heads * shape.head_dim);
  for (const std::vector<float>* norm : {&q_norm, &k_norm}) {
    if (!norm->empty()) {
      check_size("the weight of a heads' norm", norm->size(), shape.head_dim);
    }
  }
  check_equal("the layer", layer, run_->num_layers);
  append(
      {RopeStoreOperation{layer, shape, qkv, std::move(q_norm), std::move(k_norm), epsilon, q},
       {{Access::kAngles, false}, {qkv, false}, {q, true}, {Access::kFirstLayer - layer, true}}});
  run_->num_layers = layer + 1;
  run_->shape = shape;
}

void Program::add_attention(std::int64_t layer, const AttentionShape& shape, BufferId q,
                            std::int64_t sliding_window, BufferId out) {
  check_heads(shape);
  check_equal("the layer", layer, run_->num_layers - 1);
  check_equal("the queries' width", buffer(q).width, shape.num_heads * shape.head_dim);
  check_equal("the width of what attention writes", buffer(out).width, buffer(q).width);
  if (sliding_window < 0 || sliding_window > std::numeric_limits<std::int32_t>::max()) {
    refuse("sliding_window is " + std::to_string(sliding_window) + ", expected 0 or more");
  }
  if (q == out) {
    refuse("attention can't be written over its queries");
  }
  if (run_->workspace == nullptr) {
    run_->workspace = std::make_unique<AttentionWorkspace>(team_->num_threads());
  }
  append({AttentionOperation{layer, shape, q, sliding_window, out},
          {{q, false}, {out, true}, {Access::kFirstLayer - layer, false}}});
}

void Program::add_likeliest(BufferId in) {
  check_float32("what the likeliest are looked for in", buffer(in).type);
  if (run_->largest != nullptr) {
    refuse("a program looks for the likeliest once");
  }
  run_->largest = std::make_unique<LikeliestWorkspace>(max_tokens_, buffer(in).width);
  run_->likeliest.resize(static_cast<std::size_t>(max_tokens_));
  append({LikeliestOperation{in}, {{in, false}, {Access::kLikeliest, true}}});
}

void Program::bind_cache(const KvForm& form, std::vector<KvPools> layers) {
  check_size("the number of the cache's layers", layers.size(), run_->num_layers);
  check_equal("the cache's key-value heads", form.num_kv_heads, run_->shape.num_kv_heads);
  check_equal("the cache's head dimension", form.head_dim, run_->shape.head_dim);
  const auto pool_bytes =
      static_cast<std::size_t>(form.num_blocks * form.block_tokens * form.num_kv_heads *
                               form.head_dim * element_bytes(form.type));
  for (const KvPools& pools : layers) {
    prefer_huge_pages(pools.keys, pool_bytes);
    prefer_huge_pages(pools.values, pool_bytes);
  }
  run_->form = form;
  run_->pools = std::move(layers);
}

void* Program::data(BufferId id) { return buffer(id).data; }

Type Program::type(BufferId id) const { return buffer(id).type; }

std::int64_t Program::width(BufferId id) const { return buffer(id).width; }

std::int64_t Program::stride(BufferId id) const { return buffer(id).stride; }

std::span<const std::int32_t> Program::likeliest() const { return run_->likeliest; }

std::int64_t Program::num_operations() const {
  return static_cast<std::int64_t>(operations_.size());
}

std::int64_t Program::num_barriers() const {
  return std::count_if(operations_.begin(), operations_.end(),
                       [](const Operation& operation) { return operation.behind_barrier; });
}

const Program::Buffer& Program::buffer(BufferId id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= buffers_.size()) {
    refuse("there is no buffer " + std::to_string(id));
  }
  return buffers_[static_cast<std::size_t>(id)];
}

void Program::check_heads(const AttentionShape& shape) const {
  if (shape.num_kv_heads < 1 || shape.num_heads < 1 || shape.num_heads % shape.num_kv_heads != 0) {
    refuse(std::to_string(shape.num_heads) + " heads don't share " +
           std::to_string(shape.num_kv_heads) + " key-value heads evenly");
  }
  if (shape.head_dim < 2 || shape.head_dim % 2 != 0) {
    refuse("head_dim is " + std::to_string(shape.head_dim) + ", expected an even number");
  }
  if (run_->num_layers > 0) {
    check_equal("a layer's key-value heads", shape.num_kv_heads, run_->shape.num_kv_heads);
    check_equal("a layer's head dimension", shape.head_dim, run_->shape.head_dim);
  }
}

void Program::append(Operation operation) {
  for (const Access& access : operation.accesses) {
    operation.behind_barrier |=
        std::any_of(since_barrier_.begin(), since_barrier_.end(),
                    [&](const Access& earlier) { return access.collides(earlier); });
  }
  auto cursors = std::make_unique<TaskCursor[]>(operations_.size() + 1);
  std::vector<Access> accesses = operation.accesses;
  operations_.push_back(std::move(operation));
  cursors_ = std::move(cursors);
  if (operations_.back().behind_barrier) {
    since_barrier_.clear();
  }
  since_barrier_.insert(since_barrier_.end(), accesses.begin(), accesses.end());
}

}  // namespace antiphon::kernels
