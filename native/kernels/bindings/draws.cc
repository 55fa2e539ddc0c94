#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include "antiphon/kernels/row_draw.h"
#include "bindings.h"

namespace py = pybind11;

namespace antiphon::kernels::bindings {

namespace {

// Some rows of logits, checked.
class ChosenRows {
 public:
  ChosenRows(const py::handle& logits, const py::handle& rows)
      : logits_sv_(read_array<float>(logits, "logits", 2)),
        rows_r_(read_array<std::int64_t>(rows, "rows", 1)),
        width_(static_cast<std::size_t>(logits_sv_.shape(1))) {
    if (width_ == 0) {
      throw std::invalid_argument("logits must have columns");
    }
    first_ = static_cast<float*>(logits_sv_.mutable_data());
    row_ = static_cast<const std::int64_t*>(rows_r_.data());
    for (py::ssize_t index = 0; index < size(); ++index) {
      if (row_[index] < 0 || row_[index] >= logits_sv_.shape(0)) {
        throw std::invalid_argument("rows must be rows of logits, but one is " +
                                    std::to_string(row_[index]));
      }
    }
  }

  py::ssize_t size() const { return rows_r_.shape(0); }
  std::span<float> operator[](py::ssize_t index) const {
    return {first_ + static_cast<std::size_t>(row_[index]) * width_, width_};
  }

 private:
  py::array logits_sv_;
  py::array rows_r_;
  std::size_t width_;
  float* first_;
  const std::int64_t* row_;
};

// A parameter of each of `size` rows.
template <class T>
const T* read_column(const py::handle& value, const char* name, py::ssize_t size) {
  const py::array column = read_array<T>(value, name, 1);
  if (column.shape(0) != size) {
    throw std::invalid_argument(std::string(name) + " must be as many as there are rows");
  }
  return static_cast<const T*>(column.data());
}

py::array_t<std::int32_t> draw(RowDraw& self, const py::handle& logits, const py::handle& rows,
                               const py::handle& temperature, const py::handle& top_k,
                               const py::handle& top_p, const py::handle& min_p,
                               const py::handle& uniform) {
  const ChosenRows chosen(logits, rows);
  const py::ssize_t size = chosen.size();
  const auto* temperatures = read_column<float>(temperature, "temperature", size);
  const auto* top_ks = read_column<std::int64_t>(top_k, "top_k", size);
  const auto* top_ps = read_column<double>(top_p, "top_p", size);
  const auto* min_ps = read_column<double>(min_p, "min_p", size);
  const auto* uniforms = read_column<double>(uniform, "uniform", size);
  py::array_t<std::int32_t> drawn(size);
  std::int32_t* out = drawn.mutable_data();
  const py::gil_scoped_release released;
  for (py::ssize_t index = 0; index < size; ++index) {
    const DrawParams params{temperatures[index], top_ks[index], top_ps[index], min_ps[index],
                            uniforms[index]};
    out[index] = static_cast<std::int32_t>(self.draw(chosen[index], params));
  }
  return drawn;
}

py::array_t<std::int32_t> likeliest(RowDraw& self, const py::handle& logits,
                                    const py::handle& rows) {
  const ChosenRows chosen(logits, rows);
  py::array_t<std::int32_t> found(chosen.size());
  std::int32_t* out = found.mutable_data();
  const py::gil_scoped_release released;
  for (py::ssize_t index = 0; index < chosen.size(); ++index) {
    out[index] = static_cast<std::int32_t>(self.likeliest(chosen[index]));
  }
  return found;
}

}  // namespace

void bind_draws(py::module_& module) {
  py::class_<RowDraw>(module, "RowDraw")
      .def(
          py::init([](const std::string& isa) { return std::make_unique<RowDraw>(read_isa(isa)); }),
          py::kw_only(), py::arg("isa"))
      .def("draw", &draw, py::arg("logits"), py::arg("rows"), py::kw_only(), py::arg("temperature"),
           py::arg("top_k"), py::arg("top_p"), py::arg("min_p"), py::arg("uniform"))
      .def("likeliest", &likeliest, py::arg("logits"), py::arg("rows"));
}

}  // namespace antiphon::kernels::bindings
