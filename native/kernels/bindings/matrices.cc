#include <memory>
#include <stdexcept>

#include "antiphon/kernels/checksum.h"
#include "antiphon/kernels/processor_caches.h"
#include "bindings.h"

namespace py = pybind11;

namespace antiphon::kernels::bindings {

namespace {

// The number of rows of an array that is `width` wide.
std::int64_t num_rows_of(const py::array& rows, std::int64_t width) {
  if (rows.shape(1) != width) {
    throw std::invalid_argument("rows are " + std::to_string(rows.shape(1)) + " wide, expected " +
                                std::to_string(width));
  }
  return rows.shape(0);
}

void pack_values(PackedMatrix& matrix, std::int64_t first_row, const py::object& values) {
  if (py::isinstance<py::array_t<std::uint16_t>>(values)) {
    const py::array rows = read_array<std::uint16_t>(values, "rows", 2);
    const std::int64_t num_rows = num_rows_of(rows, matrix.num_in());
    const auto* data = static_cast<const std::uint16_t*>(rows.data());
    const py::gil_scoped_release released;
    matrix.pack_bf16(first_row, num_rows, data);
  } else {
    const py::array rows = read_array<float>(values, "rows", 2);
    const std::int64_t num_rows = num_rows_of(rows, matrix.num_in());
    const auto* data = static_cast<const float*>(rows.data());
    const py::gil_scoped_release released;
    matrix.pack_f32(first_row, num_rows, data);
  }
}

void pack_blocks(PackedMatrix& matrix, std::int64_t first_row, const std::string& gguf_type,
                 const py::object& blocks) {
  const GgufType type = read_gguf_type(gguf_type);
  const py::array rows = read_array<std::uint8_t>(blocks, "rows", 2);
  const std::int64_t num_rows =
      num_rows_of(rows, static_cast<std::int64_t>(gguf_row_bytes(type, matrix.num_in())));
  const auto* data = static_cast<const std::byte*>(rows.data());
  const py::gil_scoped_release released;
  matrix.pack_gguf(first_row, num_rows, type, data);
}

py::array_t<float> unpack(const PackedMatrix& matrix, std::int64_t first_row,
                          std::int64_t num_rows) {
  if (first_row < 0 || num_rows < 0 || first_row > matrix.num_out() - num_rows) {
    throw std::invalid_argument("the matrix has " + std::to_string(matrix.num_out()) + " rows");
  }
  py::array_t<float> values({num_rows, matrix.num_in()});
  float* out = values.mutable_data();
  const py::gil_scoped_release released;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    matrix.unpack_row(first_row + row, out + row * matrix.num_in());
  }
  return values;
}

// Views of what the matrix owns, which keep it alive.
py::tuple arrays_of(const py::object& self) {
  auto& matrix = self.cast<PackedMatrix&>();
  const auto bytes = matrix.bytes();
  const auto scales = matrix.row_scales();
  return py::make_tuple(
      py::array_t<std::uint8_t>(static_cast<py::ssize_t>(bytes.size()),
                                reinterpret_cast<std::uint8_t*>(bytes.data()), self),
      py::array_t<float>(static_cast<py::ssize_t>(scales.size()), scales.data(), self));
}

std::uint64_t checksum_of(const py::object& values) {
  const py::array bytes = read_array<std::uint8_t>(values, "values", 1);
  const auto* data = static_cast<const std::byte*>(bytes.data());
  const auto size = static_cast<std::size_t>(bytes.size());
  const py::gil_scoped_release released;
  return checksum({data, size});
}

void evict_values(const py::object& values) {
  const py::array bytes = read_array<std::uint8_t>(values, "values", 1);
  evict({static_cast<const std::byte*>(bytes.data()), static_cast<std::size_t>(bytes.size())});
}

}  // namespace

void bind_matrices(py::module_& module) {
  py::class_<PackedMatrix, std::shared_ptr<PackedMatrix>>(module, "PackedMatrix")
      .def(py::init([](std::int64_t num_out, std::int64_t num_in, const std::string& format,
                       const std::string& order, const std::string& isa) {
             return std::make_shared<PackedMatrix>(num_out, num_in, read_format(format),
                                                   read_order(order), read_isa(isa));
           }),
           py::arg("num_out"), py::arg("num_in"), py::kw_only(), py::arg("weight_format"),
           py::arg("order") = "plain", py::arg("isa"))
      .def("pack", &pack_values, py::arg("first_row"), py::arg("rows"))
      .def("pack_gguf", &pack_blocks, py::arg("first_row"), py::arg("gguf_type"), py::arg("rows"))
      .def("unpack", &unpack, py::arg("first_row"), py::arg("num_rows"))
      .def_property_readonly("arrays", &arrays_of)
      .def_property_readonly("num_out", &PackedMatrix::num_out)
      .def_property_readonly("num_in", &PackedMatrix::num_in)
      .def_property_readonly("num_bytes", &PackedMatrix::num_bytes)
      .def_property_readonly("weight_format",
                             [](const PackedMatrix& matrix) { return word_of(matrix.format()); })
      .def_property_readonly(
          "input_type", [](const PackedMatrix& matrix) { return word_of(matrix.input_type()); });
  module.def("checksum", &checksum_of, py::arg("values"));
  module.def("evict", &evict_values, py::arg("values"));
  module.def(
      "packed_bytes",
      [](std::int64_t num_out, std::int64_t num_in, const std::string& format,
         const std::string& order) {
        return PackedMatrix::packed_bytes(num_out, num_in, read_format(format), read_order(order));
      },
      py::arg("num_out"), py::arg("num_in"), py::kw_only(), py::arg("weight_format"),
      py::arg("order") = "plain");
  module.def(
      "gguf_format",
      [](const std::string& gguf_type) { return word_of(gguf_format(read_gguf_type(gguf_type))); },
      py::arg("gguf_type"));
}

}  // namespace antiphon::kernels::bindings
