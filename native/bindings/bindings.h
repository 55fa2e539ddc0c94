// The parts of the Python module. They convert arguments and errors; what happens is the core's.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "antiphon/engine_core.h"

namespace antiphon::bindings {

// Registers the exception types and how C++ errors become Python ones.
void BindErrors(pybind11::module_& module);

// Registers EngineCore and the constants of its arrays.
void BindCore(pybind11::module_& module);

// One set of step buffers and the arrays that own their memory.
struct RegisteredBuffers {
  StepBuffers buffers;
  std::vector<pybind11::array> owners;
};

// Checks that `arrays` has each array of a step with the right type, order and room.
// Throws std::invalid_argument that names the array.
RegisteredBuffers ReadBuffers(const pybind11::kwargs& arrays, const CoreConfig& config);

}  // namespace antiphon::bindings
