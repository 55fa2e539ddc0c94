// The parts of the Python module `_kernels`. They convert and check arguments; what is computed is
// the kernels'.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "antiphon/kernels/activations.h"
#include "antiphon/kernels/cpu_features.h"
#include "antiphon/kernels/linear.h"
#include "antiphon/kernels/packed_matrix.h"

namespace antiphon::kernels::bindings {

// Register what the module has of each.
void bind_draws(pybind11::module_& module);
void bind_masks(pybind11::module_& module);
void bind_matrices(pybind11::module_& module);
void bind_programs(pybind11::module_& module);

// Words of Python for the kernels' enums. Throw std::invalid_argument that names the words there
// are.
Isa read_isa(const std::string& word);
Type read_type(const std::string& word);
WeightFormat read_format(const std::string& word);
RowOrder read_order(const std::string& word);
GgufType read_gguf_type(const std::string& word);
Epilogue read_epilogue(const std::string& word);
const char* word_of(WeightFormat format);
const char* word_of(Type type);

// Returns the array where it is C-contiguous, of type T and has so many dimensions; never copies.
// Throws std::invalid_argument that calls it `name`.
template <class T>
pybind11::array read_array(const pybind11::handle& value, const char* name, int num_dimensions) {
  namespace py = pybind11;
  const auto refuse = [&](const std::string& what) {
    throw std::invalid_argument(std::string(name) + " must be " + what);
  };
  if (!py::isinstance<py::array_t<T, py::array::c_style>>(value)) {
    refuse("a C-contiguous array of type " + py::str(py::dtype::of<T>()).cast<std::string>());
  }
  auto array = py::reinterpret_borrow<py::array>(value);
  if (array.ndim() != num_dimensions) {
    refuse("an array of " + std::to_string(num_dimensions) + " dimensions, but has " +
           std::to_string(array.ndim()));
  }
  return array;
}

}  // namespace antiphon::kernels::bindings
