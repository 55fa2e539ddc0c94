// The parts of the Python module. They convert arguments and errors; what happens is the core's.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <span>
#include <vector>

#include "antiphon/engine_core.h"

namespace antiphon::bindings {

// Registers the exception types and how C++ errors become Python ones.
void BindErrors(pybind11::module_& module);

// Registers EngineCore and the constants of its arrays.
void BindCore(pybind11::module_& module);

// Registers the names of the policies.
void BindPolicies(pybind11::module_& module);

// Reads the constructor's arguments.
// Throws type_error for one that is missing or unknown, std::invalid_argument for an unknown
// policy.
CoreConfig ReadConfig(const pybind11::kwargs& arguments);

// The core with the arrays that it writes to.
class PyEngineCore {
 public:
  explicit PyEngineCore(const CoreConfig& config)
      : core_(config), owners_(static_cast<std::size_t>(config.num_buffer_sets)) {}

  void RegisterBuffers(std::int32_t set_index, const pybind11::kwargs& arrays);

  EngineCore& core() { return core_; }

 private:
  EngineCore core_;
  std::vector<std::vector<pybind11::array>> owners_;
};

// Registers what sessions and readers of KV events call, on the class that BindCore makes.
void BindCacheMethods(pybind11::class_<PyEngineCore>& core);

// Registers what tells of when things happened to a request, on the class that BindCore makes.
void BindTimes(pybind11::class_<PyEngineCore>& core);

using TokenArray = pybind11::array_t<TokenId, pybind11::array::c_style>;

// Throws std::invalid_argument that calls the array `name` where it has not one dimension.
// REQUIRES: the array outlives the span
std::span<const TokenId> ToSpan(const TokenArray& array, const char* name);

// One set of step buffers and the arrays that own their memory.
struct RegisteredBuffers {
  StepBuffers buffers;
  std::vector<pybind11::array> owners;
};

// Checks that `arrays` has each array of a step with the right type, order and room.
// Throws std::invalid_argument that names the array.
RegisteredBuffers ReadBuffers(const pybind11::kwargs& arrays, const CoreConfig& config);

}  // namespace antiphon::bindings
