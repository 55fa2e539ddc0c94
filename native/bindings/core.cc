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

std::map<std::string, std::int64_t> StatsDict(const CoreStats& stats) {
  return {
      {"step", stats.step},
      {"num_running", stats.num_running},
      {"num_waiting", stats.num_waiting},
      {"num_paused", stats.num_paused},
      {"num_held", stats.num_held},
      {"num_blocks", stats.num_blocks},
      {"num_blocks_used", stats.num_blocks_used},
      {"num_blocks_cached", stats.num_blocks_cached},
      {"num_blocks_free", stats.num_blocks_free},
      {"num_host_blocks", stats.num_host_blocks},
      {"num_host_blocks_used", stats.num_host_blocks_used},
      {"num_prefilled_tokens_total", stats.num_prefilled_tokens_total},
      {"num_recomputed_tokens_total", stats.num_recomputed_tokens_total},
      {"num_reused_tokens_total", stats.num_reused_tokens_total},
      {"num_generated_tokens_total", stats.num_generated_tokens_total},
      {"num_preemptions_total", stats.num_preemptions_total},
      {"num_evictions_total", stats.num_evictions_total},
      {"num_offloads_total", stats.num_offloads_total},
      {"num_onloads_total", stats.num_onloads_total},
      {"num_copies_on_write_total", stats.num_copies_on_write_total},
      {"num_deferrals_total", stats.num_deferrals_total},
      {"num_bypasses_total", stats.num_bypasses_total},
  };
}

void BindConstants(py::module_& module) {
  const std::pair<const char*, std::int64_t> constants[] = {
      {"FLAG_PREFILL", kFlagPrefill},
      {"FLAG_SAMPLE", kFlagSample},
      {"FLAG_FIRST", kFlagFirst},
      {"FLAG_RESUMED", kFlagResumed},
      {"FLAG_LOGPROBS", kFlagLogprobs},
      {"FLAG_PENALTIES", kFlagPenalties},
      {"FLAG_BIAS", kFlagBias},
      {"FLAG_MIN_TOKENS", kFlagMinTokens},
      {"FLAG_GUIDED", kFlagGuided},
      {"FLAG_PROMPT_LOGPROBS", kFlagPromptLogprobs},
      {"HEADER_NUM_ROWS", kHeaderNumRows},
      {"HEADER_NUM_TOKENS", kHeaderNumTokens},
      {"HEADER_NUM_TABLE_DELTAS", kHeaderNumTableDeltas},
      {"HEADER_NUM_COPIES", kHeaderNumCopies},
      {"HEADER_NUM_PREFILL_ROWS", kHeaderNumPrefillRows},
      {"HEADER_NUM_DECODE_ROWS", kHeaderNumDecodeRows},
      {"HEADER_NUM_SAMPLES", kHeaderNumSamples},
      {"HEADER_NUM_SLOT_INITS", kHeaderNumSlotInits},
      {"HEADER_STEP_ID", kHeaderStepId},
      {"COPY_OFFLOAD", static_cast<std::int64_t>(CopyKind::kOffload)},
      {"COPY_ONLOAD", static_cast<std::int64_t>(CopyKind::kOnload)},
      {"COPY_ON_WRITE", static_cast<std::int64_t>(CopyKind::kOnWrite)},
      {"TIER_DEVICE", static_cast<std::int64_t>(Tier::kDevice)},
      {"TIER_HOST", static_cast<std::int64_t>(Tier::kHost)},
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
         std::int32_t adapter, Handle leader, std::uint64_t session,
         std::int32_t retention_priority, std::int64_t retention_us, std::int64_t arrival_ns,
         std::int32_t num_reusable) {
        return self.core().Submit(
            {.prompt = ToSpan(prompt, "prompt"),
             .scope = scope,
             .max_output_tokens = max_output_tokens,
             .end_ids = ToSpan(end_ids, "end_ids"),
             .stop_ids = ToSpan(stop_ids, "stop_ids"),
             .seed = seed,
             .output_index = output_index,
             .priority = priority,
             .flags = flags,
             .adapter = adapter,
             .leader = leader,
             .session = session,
             .retention = {.priority = retention_priority, .duration_us = retention_us},
             .arrival_ns = arrival_ns,
             .num_reusable = num_reusable});
      },
      py::arg("prompt").noconvert(), py::kw_only(), "scope"_a, "max_output_tokens"_a,
      py::arg("end_ids").noconvert(), py::arg("stop_ids").noconvert(), "seed"_a,
      "output_index"_a = 0, "priority"_a = 50, "flags"_a = 0, "adapter"_a = 0, "leader"_a = 0,
      "session"_a = 0, "retention_priority"_a = Retention::kDefaultPriority, "retention_us"_a = 0,
      "arrival_ns"_a = 0, "num_reusable"_a = kAllTokens);
  core.def(
      "abort", [](PyEngineCore& self, Handle handle) { return self.core().Abort(handle); },
      "handle"_a);
  core.def(
      "finish",
      [](PyEngineCore& self, Handle handle, std::int32_t keep_output_tokens) {
        return self.core().Finish(handle, keep_output_tokens);
      },
      "handle"_a, "keep_output_tokens"_a);
  core.def(
      "hold", [](PyEngineCore& self, Handle handle) { return self.core().Hold(handle); },
      "handle"_a);
  core.def(
      "release", [](PyEngineCore& self, Handle handle) { return self.core().Release(handle); },
      "handle"_a);
  core.def(
      "sit_out", [](PyEngineCore& self, Handle handle) { return self.core().SitOut(handle); },
      "handle"_a);
  core.def(
      "rejoin", [](PyEngineCore& self, Handle handle) { return self.core().Rejoin(handle); },
      "handle"_a);
}

void BindSteps(py::class_<PyEngineCore>& core) {
  core.def("register_buffers", &PyEngineCore::RegisterBuffers, "set_index"_a);
  core.def(
      "plan",
      [](PyEngineCore& self, std::int32_t set_index, std::int64_t now_ns) {
        return self.core().Plan(set_index, now_ns);
      },
      "set_index"_a, "now_ns"_a = 0, py::call_guard<py::gil_scoped_release>());
  core.def(
      "commit",
      [](PyEngineCore& self, StepId step_id, std::int64_t now_ns) {
        self.core().Commit(step_id, now_ns);
      },
      "step_id"_a, "now_ns"_a = 0, py::call_guard<py::gil_scoped_release>());
}

void BindInspection(py::class_<PyEngineCore>& core) {
  core.def(
      "match_prefix",
      [](PyEngineCore& self, ScopeId scope, const TokenArray& tokens) {
        return self.core().MatchPrefix(scope, ToSpan(tokens, "tokens"));
      },
      "scope"_a, py::arg("tokens").noconvert());
  core.def(
      "tokens",
      [](PyEngineCore& self, Handle handle) {
        const std::span<const TokenId> tokens = self.core().Tokens(handle);
        return TokenArray(static_cast<py::ssize_t>(tokens.size()), tokens.data());
      },
      "handle"_a);
  core.def("flush_prefix_cache", [](PyEngineCore& self) { return self.core().FlushPrefixCache(); });
  core.def("stats", [](PyEngineCore& self) { return StatsDict(self.core().stats()); });
  core.def("check_invariants", [](PyEngineCore& self) { self.core().CheckInvariants(); });
  core.def("dump_state", [](PyEngineCore& self) { return self.core().DumpState(); });
}

}  // namespace

void PyEngineCore::RegisterBuffers(std::int32_t set_index, const py::kwargs& arrays) {
  RegisteredBuffers registered = ReadBuffers(arrays, core_.config());
  core_.RegisterBuffers(set_index, registered.buffers);
  owners_[static_cast<std::size_t>(set_index)] = std::move(registered.owners);
}

std::span<const TokenId> ToSpan(const TokenArray& array, const char* name) {
  if (array.ndim() != 1) {
    throw std::invalid_argument(std::string(name) + " must have one dimension");
  }
  return {array.data(), static_cast<std::size_t>(array.size())};
}

void BindCore(py::module_& module) {
  BindConstants(module);
  BindPolicies(module);
  py::class_<PyEngineCore> core(module, "EngineCore");
  core.def(py::init([](const py::kwargs& arguments) {
    return std::make_unique<PyEngineCore>(ReadConfig(arguments));
  }));
  BindSubmission(core);
  BindSteps(core);
  BindInspection(core);
  BindTimes(core);
  BindCacheMethods(core);
}

}  // namespace antiphon::bindings
