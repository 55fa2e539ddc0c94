#include <cstddef>
#include <span>
#include <stdexcept>

#include "antiphon/kernels/masking.h"
#include "bindings.h"

namespace py = pybind11;

namespace antiphon::kernels::bindings {

namespace {

void mask_rows(const py::handle& logits, const py::handle& rows, const py::handle& words,
               float floor) {
  py::array logits_sv = read_array<float>(logits, "logits", 2);
  const py::array rows_g = read_array<std::int64_t>(rows, "rows", 1);
  const py::array words_gw = read_array<std::int32_t>(words, "words", 2);
  if (words_gw.shape(0) != rows_g.shape(0)) {
    throw std::invalid_argument("words must have as many rows as there are rows");
  }
  if (words_gw.shape(1) * 32 < logits_sv.shape(1)) {
    throw std::invalid_argument("words must have a bit for each of the logits");
  }
  const auto* row = static_cast<const std::int64_t*>(rows_g.data());
  for (py::ssize_t index = 0; index < rows_g.shape(0); ++index) {
    if (row[index] < 0 || row[index] >= logits_sv.shape(0)) {
      throw std::invalid_argument("rows must be rows of logits, but one is " +
                                  std::to_string(row[index]));
    }
  }
  const auto vocabulary = static_cast<std::size_t>(logits_sv.shape(1));
  const auto num_words = static_cast<std::size_t>(words_gw.shape(1));
  auto* first_logit = static_cast<float*>(logits_sv.mutable_data());
  const auto* first_word = static_cast<const std::uint32_t*>(words_gw.data());
  const py::gil_scoped_release release;
  for (py::ssize_t index = 0; index < rows_g.shape(0); ++index) {
    mask_logits({first_logit + static_cast<std::size_t>(row[index]) * vocabulary, vocabulary},
                {first_word + static_cast<std::size_t>(index) * num_words, num_words}, floor);
  }
}

}  // namespace

void bind_masks(py::module_& module) {
  module.def("mask_logits", &mask_rows, py::arg("logits"), py::arg("rows"), py::arg("words"),
             py::kw_only(), py::arg("floor"));
}

}  // namespace antiphon::kernels::bindings
