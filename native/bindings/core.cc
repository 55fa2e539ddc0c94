#include <pybind11/stl.h>

#include <map>
#include <span>
#include <string>
#include <utility>

#include "bindings.h"

namespace py = pybind11;
using py::literals::operator""_a;

namespace antiphon::bindings {

namespace {

using TokenArray = py::array_t<TokenId, py::array::c_style>;

// REQUIRES: the array outlives the span
std::span<const TokenId> ToSpan(const TokenArray& array, const char* name) {
  if (array.ndim() != 1) {
    throw std::invalid_argument(std::string(name) + " must have one dimension");
  }
  return {array.data(), static_cast<std::size_t>(array.size())};
}

// The core with the arrays that it writes to.
class PyEngineCore {
 public:
  explicit PyEngineCore(const CoreConfig& config)
      : core_(config), owners_(static_cast<std::size_t>(config.num_buffer_sets)) {}

  void RegisterBuffers(std::int32_t set_index, const py::kwargs& arrays) {
    RegisteredBuffers registered = ReadBuffers(arrays, core_.config());
    core_.RegisterBuffers(set_index, registered.buffers);
    owners_[static_cast<std::size_t>(set_index)] = std::move(registered.owners);
  }

  EngineCore& core() { return core_; }

 private:
  EngineCore core_;
  std::vector<std::vector<py::array>> owners_;
};

std::map<std::string, std::int64_t> StatsDict(const CoreStats& stats) {
  return {
      {"step", stats.step},
      {"num_running", stats.num_running},
      {"num_waiting", stats.num_waiting},
      {"num_paused", stats.num_paused},
      {"num_blocks", stats.num_blocks},
      {"num_blocks_used", stats.num_blocks_used},
      {"num_blocks_cached", stats.num_blocks_cached},
      {"num_blocks_free", stats.num_blocks_free},
      {"num_prefilled_tokens_total", stats.num_prefilled_tokens_total},
      {"num_reused_tokens_total", stats.num_reused_tokens_total},
      {"num_generated_tokens_total", stats.num_generated_tokens_total},
      {"num_preemptions_total", stats.num_preemptions_total},
      {"num_evictions_total", stats.num_evictions_total},
  };
}

void BindConstants(py::module_& module) {
  const std::pair<const char*, std::int64_t> constants[] = {
      {"FLAG_PREFILL", kFlagPrefill},
      {"FLAG_SAMPLE", kFlagSample},
      {"FLAG_FIRST", kFlagFirst},
      {"FLAG_LOGPROBS", kFlagLogprobs},
      {"FLAG_PENALTIES", kFlagPenalties},
      {"FLAG_BIAS", kFlagBias},
      {"FLAG_MIN_TOKENS", kFlagMinTokens},
      {"FLAG_GUIDED", kFlagGuided},
      {"HEADER_NUM_ROWS", kHeaderNumRows},
      {"HEADER_NUM_TOKENS", kHeaderNumTokens},
      {"HEADER_NUM_TABLE_DELTAS", kHeaderNumTableDeltas},
      {"HEADER_NUM_COPIES", kHeaderNumCopies},
      {"HEADER_NUM_PREFILL_ROWS", kHeaderNumPrefillRows},
      {"HEADER_NUM_DECODE_ROWS", kHeaderNumDecodeRows},
      {"HEADER_NUM_SAMPLES", kHeaderNumSamples},
      {"HEADER_NUM_SLOT_INITS", kHeaderNumSlotInits},
      {"HEADER_STEP_ID", kHeaderStepId},
      {"FINISH_NONE", static_cast<std::int64_t>(FinishReason::kNone)},
      {"FINISH_END_ID", static_cast<std::int64_t>(FinishReason::kEndId)},
      {"FINISH_STOP_ID", static_cast<std::int64_t>(FinishReason::kStopId)},
      {"FINISH_MAX_OUTPUT_TOKENS", static_cast<std::int64_t>(FinishReason::kMaxOutputTokens)},
      {"FINISH_CONTEXT_FULL", static_cast<std::int64_t>(FinishReason::kContextFull)},
  };
  for (const auto& [name, value] : constants) {
    module.attr(name) = value;
  }
}

void BindSubmission(py::class_<PyEngineCore>& core) {
  core.def(
      "intern_scope",
      [](PyEngineCore& self, std::string tenant, std::string cache_scope, std::string adapter,
         std::string weights) {
        return self.core().InternScope({.tenant = std::move(tenant),
                                        .cache_scope = std::move(cache_scope),
                                        .adapter = std::move(adapter),
                                        .weights = std::move(weights)});
      },
      py::kw_only(), "tenant"_a, "cache_scope"_a, "adapter"_a, "weights"_a);
  core.def(
      "submit",
      [](PyEngineCore& self, const TokenArray& prompt, ScopeId scope,
         std::int32_t max_output_tokens, const TokenArray& end_ids, const TokenArray& stop_ids,
         std::uint64_t seed, std::int32_t output_index, std::int32_t priority, std::uint32_t flags,
         std::int32_t adapter, Handle leader) {
        return self.core().Submit({.prompt = ToSpan(prompt, "prompt"),
                                   .scope = scope,
                                   .max_output_tokens = max_output_tokens,
                                   .end_ids = ToSpan(end_ids, "end_ids"),
                                   .stop_ids = ToSpan(stop_ids, "stop_ids"),
                                   .seed = seed,
                                   .output_index = output_index,
                                   .priority = priority,
                                   .flags = flags,
                                   .adapter = adapter,
                                   .leader = leader});
      },
      py::arg("prompt").noconvert(), py::kw_only(), "scope"_a, "max_output_tokens"_a,
      py::arg("end_ids").noconvert(), py::arg("stop_ids").noconvert(), "seed"_a,
      "output_index"_a = 0, "priority"_a = 50, "flags"_a = 0, "adapter"_a = 0, "leader"_a = 0);
  core.def(
      "abort", [](PyEngineCore& self, Handle handle) { return self.core().Abort(handle); },
      "handle"_a);
  core.def(
      "finish",
      [](PyEngineCore& self, Handle handle, std::int32_t keep_output_tokens) {
        return self.core().Finish(handle, keep_output_tokens);
      },
      "handle"_a, "keep_output_tokens"_a);
}

void BindSteps(py::class_<PyEngineCore>& core) {
  core.def("register_buffers", &PyEngineCore::RegisterBuffers, "set_index"_a);
  core.def(
      "plan",
      [](PyEngineCore& self, std::int32_t set_index) { return self.core().Plan(set_index); },
      "set_index"_a, py::call_guard<py::gil_scoped_release>());
  core.def(
      "commit", [](PyEngineCore& self, StepId step_id) { self.core().Commit(step_id); },
      "step_id"_a, py::call_guard<py::gil_scoped_release>());
}

void BindInspection(py::class_<PyEngineCore>& core) {
  core.def(
      "match_prefix",
      [](PyEngineCore& self, ScopeId scope, const TokenArray& tokens) {
        return self.core().MatchPrefix(scope, ToSpan(tokens, "tokens"));
      },
      "scope"_a, py::arg("tokens").noconvert());
  core.def("flush_prefix_cache", [](PyEngineCore& self) { return self.core().FlushPrefixCache(); });
  core.def("stats", [](PyEngineCore& self) { return StatsDict(self.core().stats()); });
  core.def("check_invariants", [](PyEngineCore& self) { self.core().CheckInvariants(); });
  core.def("dump_state", [](PyEngineCore& self) { return self.core().DumpState(); });
}

}  // namespace

void BindCore(py::module_& module) {
  BindConstants(module);
  py::class_<PyEngineCore> core(module, "EngineCore");
  core.def(
      py::init([](std::int32_t num_blocks, std::int32_t block_tokens, std::int32_t max_rows,
                  std::int32_t max_step_tokens, std::int32_t max_context_tokens,
                  std::int32_t max_requests, std::int32_t chunk_tokens,
                  std::int32_t num_buffer_sets, bool prefix_reuse) {
        return std::make_unique<PyEngineCore>(CoreConfig{.num_blocks = num_blocks,
                                                         .block_tokens = block_tokens,
                                                         .max_rows = max_rows,
                                                         .max_step_tokens = max_step_tokens,
                                                         .max_context_tokens = max_context_tokens,
                                                         .max_requests = max_requests,
                                                         .chunk_tokens = chunk_tokens,
                                                         .num_buffer_sets = num_buffer_sets,
                                                         .prefix_reuse = prefix_reuse});
      }),
      py::kw_only(), "num_blocks"_a, "block_tokens"_a, "max_rows"_a, "max_step_tokens"_a,
      "max_context_tokens"_a, "max_requests"_a, "chunk_tokens"_a = 0, "num_buffer_sets"_a = 2,
      "prefix_reuse"_a = true);
  BindSubmission(core);
  BindSteps(core);
  BindInspection(core);
}

}  // namespace antiphon::bindings
