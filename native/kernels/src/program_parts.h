// What a program is made of. For the sources of `Program` alone.
#pragma once

#include <cstdlib>
#include <limits>
#include <memory>
#include <variant>
#include <vector>

#include "antiphon/kernels/attention.h"
#include "antiphon/kernels/embedding.h"
#include "antiphon/kernels/likeliest.h"
#include "antiphon/kernels/norm.h"
#include "antiphon/kernels/program.h"
#include "antiphon/kernels/rope_store.h"

namespace antiphon::kernels {

struct Program::Buffer {
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  std::int64_t width = 0;
  std::int64_t stride = 0;  // elements from row to row
  Type type = Type::kF32;
  std::unique_ptr<void, Free> memory;
  std::byte* data = nullptr;  // within `memory`, at a cache line's begin
};

// Columns that an operation reads or writes: of a buffer, or of what stands beside them.
struct Program::Access {
  static constexpr std::int64_t kAngles = -1;
  static constexpr std::int64_t kLikeliest = -2;
  static constexpr std::int64_t kFirstLayer = -3;  // the caches of layers 0, 1 … are -3, -4 …

  std::int64_t place = 0;
  bool writes = false;
  std::int64_t begin = 0;
  std::int64_t end = std::numeric_limits<std::int64_t>::max();

  // Whether one must be done before the other begins.
  bool collides(const Access& other) const {
    return place == other.place && (writes || other.writes) && begin < other.end &&
           other.begin < end;
  }
};

struct EmbeddingOperation {
  std::shared_ptr<const PackedMatrix> table;
  BufferId out;
};

struct AnglesOperation {
  std::vector<float> inverse_frequencies;
  float scale;
};

struct NormOperation {
  BufferId in;
  std::vector<float> weight;
  float epsilon;
  BufferId out;
};

struct LinearOperation {
  BufferId in;
  std::shared_ptr<const PackedMatrix> matrix;
  std::vector<float> bias;
  Epilogue epilogue;
  BufferId out;
  std::int64_t out_column;
};

struct RopeStoreOperation {
  std::int64_t layer;
  AttentionShape shape;
  BufferId qkv;
  std::vector<float> q_norm;
  std::vector<float> k_norm;
  float epsilon;
  BufferId q;
};

struct AttentionOperation {
  std::int64_t layer;
  AttentionShape shape;
  BufferId q;
  std::int64_t sliding_window;
  BufferId out;
};

struct LikeliestOperation {
  BufferId in;
};

struct Program::Operation {
  std::variant<EmbeddingOperation, AnglesOperation, NormOperation, LinearOperation,
               RopeStoreOperation, AttentionOperation, LikeliestOperation>
      what;
  std::vector<Access> accesses;
  bool behind_barrier = false;
};

struct Program::Run {
  std::int64_t vocabulary_size = 0;  // 0: nothing asks for ids
  std::int64_t num_layers = 0;       // 0: nothing asks for a cache
  AttentionShape shape;              // of the layers that ask
  bool has_angles = false;
  KvForm form;
  std::vector<KvPools> pools;
  std::vector<float> cosines;  // [max_tokens, frequencies]
  std::vector<float> sines;
  std::unique_ptr<AttentionWorkspace> workspace;  // where there is attention
  std::unique_ptr<LikeliestWorkspace> largest;    // where the likeliest are looked for
  std::vector<std::int32_t> likeliest;            // [max_tokens]
};

}  // namespace antiphon::kernels
