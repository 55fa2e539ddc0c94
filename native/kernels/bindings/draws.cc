#include <stdexcept>

#include "antiphon/kernels/nucleus.h"
#include "bindings.h"

namespace py = pybind11;

namespace antiphon::kernels::bindings {

namespace {

py::array_t<std::int64_t> draw_nucleus(const py::handle& weights, const py::handle& shares,
                                       const py::handle& uniforms) {
  const py::array weights_rv = read_array<float>(weights, "weights", 2);
  const py::array shares_r = read_array<double>(shares, "shares", 1);
  const py::array uniforms_r = read_array<double>(uniforms, "uniforms", 1);
  const auto num_rows = static_cast<std::size_t>(weights_rv.shape(0));
  const auto width = static_cast<std::size_t>(weights_rv.shape(1));
  if (shares_r.shape(0) != weights_rv.shape(0) || uniforms_r.shape(0) != weights_rv.shape(0)) {
    throw std::invalid_argument("shares and uniforms must be as many as weights has rows");
  }
  if (width == 0) {
    throw std::invalid_argument("weights must have columns");
  }
  py::array_t<std::int64_t> drawn(static_cast<py::ssize_t>(num_rows));
  const auto* weight = static_cast<const float*>(weights_rv.data());
  const auto* share = static_cast<const double*>(shares_r.data());
  const auto* uniform = static_cast<const double*>(uniforms_r.data());
  std::int64_t* out = drawn.mutable_data();
  const py::gil_scoped_release released;
  NucleusDraw draw;
  for (std::size_t row = 0; row < num_rows; ++row) {
    out[row] =
        static_cast<std::int64_t>(draw({weight + row * width, width}, share[row], uniform[row]));
  }
  return drawn;
}

}  // namespace

void bind_draws(py::module_& module) {
  module.def("draw_nucleus", &draw_nucleus, py::arg("weights"), py::kw_only(), py::arg("shares"),
             py::arg("uniforms"));
}

}  // namespace antiphon::kernels::bindings
