#include "bindings.h"

namespace py = pybind11;
namespace kernels = antiphon::kernels;

PYBIND11_MODULE(_kernels, module) {
  module.doc() = "Computation on the CPU: packed weights, and models as programs over buffers";
  module.def("best_isa", [] { return kernels::name(kernels::best_isa()); });
  module.def(
      "has_isa",
      [](const std::string& isa) { return kernels::has(kernels::bindings::read_isa(isa)); },
      py::arg("isa"));
  kernels::bindings::bind_draws(module);
  kernels::bindings::bind_masks(module);
  kernels::bindings::bind_matrices(module);
  kernels::bindings::bind_programs(module);
}
