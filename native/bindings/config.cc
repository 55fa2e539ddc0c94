// The constructor's keyword arguments, from one table.
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "bindings.h"

namespace py = pybind11;

namespace antiphon::bindings {

namespace {

struct IntegerField {
  const char* name;
  std::int32_t& value;
  bool is_required = false;
};

std::vector<IntegerField> IntegerFields(CoreConfig& config) {
  return {
      {"num_blocks", config.num_blocks, true},
      {"block_tokens", config.block_tokens, true},
      {"max_rows", config.max_rows, true},
      {"max_step_tokens", config.max_step_tokens, true},
      {"max_context_tokens", config.max_context_tokens, true},
      {"max_requests", config.max_requests, true},
      {"chunk_tokens", config.chunk_tokens},
      {"num_buffer_sets", config.num_buffer_sets},
      {"run_ahead", config.run_ahead},
      {"watermark_blocks", config.watermark_blocks},
      {"cooldown_steps", config.cooldown_steps},
      {"bypass_requests", config.bypass_requests},
      {"bypass_steps", config.bypass_steps},
      {"num_host_blocks", config.num_host_blocks},
      {"max_step_copies", config.max_step_copies},
      {"offload_min_priority", config.offload_min_priority},
      {"offload_min_hits", config.offload_min_hits},
      {"onload_cost_tokens", config.onload_cost_tokens},
      {"onload_block_cost_tokens", config.onload_block_cost_tokens},
      {"num_kv_events", config.num_kv_events},
      {"max_sessions", config.max_sessions},
      {"stall_passes", config.stall_passes},
      {"pause_every", config.faults.pause_every},
      {"miss_every", config.faults.miss_every},
      {"fail_host_allocation_every", config.faults.fail_host_allocation_every},
      {"max_admissions", config.faults.max_admissions},
  };
}

std::map<std::string, bool*> BooleanFields(CoreConfig& config) {
  return {{"prefix_reuse", &config.prefix_reuse},
          {"partial_reuse", &config.partial_reuse},
          {"prefix_deferral", &config.prefix_deferral}};
}

// Takes the policy of a kind that has the given name.
template <typename Policy, std::size_t N>
void ReadPolicy(const py::kwargs& arguments, const char* name, const Policy (&policies)[N],
                Policy& value) {
  if (!arguments.contains(name)) {
    return;
  }
  const auto given = arguments[name].cast<std::string>();
  std::string known;
  for (const Policy policy : policies) {
    if (given == PolicyName(policy)) {
      value = policy;
      return;
    }
    known += (known.empty() ? "" : ", ") + std::string(PolicyName(policy));
  }
  throw std::invalid_argument(std::string(name) + " must be one of " + known + ", not " + given);
}

template <typename Policy, std::size_t N>
py::tuple PolicyNames(const Policy (&policies)[N]) {
  py::tuple names(N);
  for (std::size_t i = 0; i < N; ++i) {
    names[i] = PolicyName(policies[i]);
  }
  return names;
}

constexpr CapacityPolicy kCapacityPolicies[] = {CapacityPolicy::kGuaranteedNoEvict,
                                                CapacityPolicy::kMaxUtilization,
                                                CapacityPolicy::kStaticBatch};
constexpr ChunkPolicy kChunkPolicies[] = {ChunkPolicy::kFirstComeFirstServed,
                                          ChunkPolicy::kEqualProgress};

}  // namespace

CoreConfig ReadConfig(const py::kwargs& arguments) {
  CoreConfig config;
  std::set<std::string> known = {"capacity_policy", "chunk_policy"};
  for (const IntegerField& field : IntegerFields(config)) {
    known.insert(field.name);
    if (arguments.contains(field.name)) {
      field.value = arguments[field.name].cast<std::int32_t>();
    } else if (field.is_required) {
      throw py::type_error(std::string("EngineCore needs the argument ") + field.name);
    }
  }
  for (const auto& [name, value] : BooleanFields(config)) {
    known.insert(name);
    if (arguments.contains(name)) {
      *value = arguments[name.c_str()].cast<bool>();
    }
  }
  ReadPolicy(arguments, "capacity_policy", kCapacityPolicies, config.capacity_policy);
  ReadPolicy(arguments, "chunk_policy", kChunkPolicies, config.chunk_policy);
  for (const auto& argument : arguments) {
    const auto name = argument.first.cast<std::string>();
    if (!known.contains(name)) {
      throw py::type_error("EngineCore does not know the argument " + name);
    }
  }
  return config;
}

void BindPolicies(py::module_& module) {
  module.attr("CAPACITY_POLICIES") = PolicyNames(kCapacityPolicies);
  module.attr("CHUNK_POLICIES") = PolicyNames(kChunkPolicies);
}

}  // namespace antiphon::bindings
