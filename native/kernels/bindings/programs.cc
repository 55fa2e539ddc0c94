#include <pybind11/stl.h>

#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "antiphon/kernels/program.h"
#include "antiphon/kernels/thread_team.h"
#include "bindings.h"

namespace py = pybind11;

namespace antiphon::kernels::bindings {

namespace {

// A program and the arrays of the cache that it writes to.
struct PyProgram {
  PyProgram(std::shared_ptr<ThreadTeam> team, std::int64_t max_tokens, Isa isa)
      : program(std::move(team), max_tokens, isa) {}

  Program program;
  std::vector<py::array> pools;
};

template <class T>
std::span<const T> read_span(const py::handle& value, const char* name, int num_dimensions = 1) {
  const py::array array = read_array<T>(value, name, num_dimensions);
  return {static_cast<const T*>(array.data()), static_cast<std::size_t>(array.size())};
}

std::vector<float> read_floats(const py::handle& value, const char* name) {
  if (value.is_none()) {
    return {};
  }
  const std::span<const float> values = read_span<float>(value, name);
  return {values.begin(), values.end()};
}

AttentionShape read_shape(std::int64_t num_heads, std::int64_t num_kv_heads,
                          std::int64_t head_dim) {
  AttentionShape shape;
  shape.num_heads = num_heads;
  shape.num_kv_heads = num_kv_heads;
  shape.head_dim = head_dim;
  return shape;
}

// The memory of a pool [P, B, K, D]: float32, or uint16 for the bits of bfloat16.
py::array read_pool(const py::handle& value, Type type) {
  py::array pool = type == Type::kF32 ? read_array<float>(value, "a pool", 4)
                                      : read_array<std::uint16_t>(value, "a pool", 4);
  if (!pool.writeable()) {
    throw std::invalid_argument("a pool must be writeable");
  }
  return pool;
}

void bind_cache(PyProgram& self, const std::vector<std::pair<py::object, py::object>>& layers) {
  if (layers.empty()) {
    throw std::invalid_argument("the cache has no layers");
  }
  KvForm form;
  const bool wide = py::isinstance<py::array_t<float>>(layers.front().first);
  form.type = wide ? Type::kF32 : Type::kBf16;
  std::vector<py::array> owners;
  std::vector<KvPools> pools;
  for (const auto& [keys, values] : layers) {
    for (const py::object& value : {keys, values}) {
      owners.push_back(read_pool(value, form.type));
      for (int dimension = 0; dimension < 4; ++dimension) {
        if (owners.back().shape(dimension) != owners.front().shape(dimension)) {
          throw std::invalid_argument("the pools have different shapes");
        }
      }
    }
    pools.push_back({owners[owners.size() - 2].mutable_data(), owners.back().mutable_data()});
  }
  form.num_blocks = owners.front().shape(0);
  form.block_tokens = owners.front().shape(1);
  form.num_kv_heads = owners.front().shape(2);
  form.head_dim = owners.front().shape(3);
  self.program.bind_cache(form, std::move(pools));
  self.pools = std::move(owners);
}

void run(PyProgram& self, std::int64_t num_tokens) {
  StepArrays step;
  step.num_tokens = num_tokens;
  const py::gil_scoped_release released;
  self.program.run(step);
}

void run_step(PyProgram& self, const py::object& token_ids, const py::object& positions,
              const py::object& slot_mapping, const py::object& row_tokens,
              const py::object& row_starts, const py::object& row_contexts,
              const py::object& row_slots, const py::object& block_tables) {
  StepArrays step;
  step.token_ids = read_span<std::int32_t>(token_ids, "token_ids");
  step.num_tokens = static_cast<std::int64_t>(step.token_ids.size());
  step.positions = read_span<std::int32_t>(positions, "positions");
  step.slot_mapping = read_span<std::int64_t>(slot_mapping, "slot_mapping");
  step.row_tokens = read_span<std::int32_t>(row_tokens, "row_tokens");
  step.row_starts = read_span<std::int32_t>(row_starts, "row_starts");
  step.row_contexts = read_span<std::int32_t>(row_contexts, "row_contexts");
  step.row_slots = read_span<std::int32_t>(row_slots, "row_slots");
  const py::array tables = read_array<std::int32_t>(block_tables, "block_tables", 2);
  step.block_tables = {static_cast<const std::int32_t*>(tables.data()),
                       static_cast<std::size_t>(tables.size())};
  step.table_columns = tables.shape(1);
  const py::gil_scoped_release released;
  self.program.run(step);
}

// A view of the buffer's memory, which keeps the program alive.
py::array view(const py::object& self, BufferId buffer) {
  Program& program = self.cast<PyProgram&>().program;
  const bool wide = program.type(buffer) == Type::kF32;
  const py::dtype dtype = wide ? py::dtype::of<float>() : py::dtype::of<std::uint16_t>();
  const std::int64_t item = dtype.itemsize();
  return py::array(dtype, {program.max_tokens(), program.width(buffer)},
                   {program.stride(buffer) * item, item}, program.data(buffer), self);
}

// A view of the likeliest tokens, which keeps the program alive.
py::array view_likeliest(const py::object& self) {
  const std::span<const std::int32_t> columns = self.cast<PyProgram&>().program.likeliest();
  py::array view(py::dtype::of<std::int32_t>(), {columns.size()}, {sizeof(std::int32_t)},
                 columns.data(), self);
  view.attr("setflags")(py::arg("write") = false);
  return view;
}

void bind_description(py::class_<PyProgram, std::shared_ptr<PyProgram>>& program) {
  program
      .def(
          "add_buffer",
          [](PyProgram& self, std::int64_t width, const std::string& type) {
            return self.program.add_buffer(width, read_type(type));
          },
          py::arg("width"), py::arg("element_type"))
      .def(
          "add_embedding",
          [](PyProgram& self, std::shared_ptr<PackedMatrix> table, BufferId out) {
            self.program.add_embedding(std::move(table), out);
          },
          py::arg("table").none(false), py::arg("out"))
      .def(
          "add_rope_angles",
          [](PyProgram& self, const py::object& frequencies, float scale) {
            self.program.add_rope_angles(read_floats(frequencies, "inverse_frequencies"), scale);
          },
          py::arg("inverse_frequencies"), py::arg("scale"))
      .def(
          "add_rms_norm",
          [](PyProgram& self, BufferId source, const py::object& weight, float epsilon,
             BufferId out) {
            self.program.add_rms_norm(source, read_floats(weight, "weight"), epsilon, out);
          },
          py::arg("source"), py::arg("weight"), py::arg("epsilon"), py::arg("out"))
      .def(
          "add_linear",
          [](PyProgram& self, BufferId source, std::shared_ptr<PackedMatrix> matrix,
             const py::object& bias, const std::string& epilogue, BufferId out,
             std::int64_t out_column) {
            self.program.add_linear(source, std::move(matrix), read_floats(bias, "bias"),
                                    read_epilogue(epilogue), out, out_column);
          },
          py::arg("source"), py::arg("matrix").none(false), py::kw_only(),
          py::arg("bias") = py::none(), py::arg("epilogue") = "store", py::arg("out"),
          py::arg("out_column") = 0)
      .def(
          "add_rope_store",
          [](PyProgram& self, std::int64_t layer, BufferId qkv, BufferId q, std::int64_t num_heads,
             std::int64_t num_kv_heads, std::int64_t head_dim, const py::object& q_norm,
             const py::object& k_norm, float epsilon) {
            self.program.add_rope_store(layer, read_shape(num_heads, num_kv_heads, head_dim), qkv,
                                        read_floats(q_norm, "q_norm"),
                                        read_floats(k_norm, "k_norm"), epsilon, q);
          },
          py::arg("layer"), py::kw_only(), py::arg("qkv"), py::arg("q"), py::arg("num_heads"),
          py::arg("num_kv_heads"), py::arg("head_dim"), py::arg("q_norm") = py::none(),
          py::arg("k_norm") = py::none(), py::arg("epsilon") = 0.0F)
      .def(
          "add_attention",
          [](PyProgram& self, std::int64_t layer, BufferId q, BufferId out, std::int64_t num_heads,
             std::int64_t num_kv_heads, std::int64_t head_dim, std::int64_t sliding_window) {
            self.program.add_attention(layer, read_shape(num_heads, num_kv_heads, head_dim), q,
                                       sliding_window, out);
          },
          py::arg("layer"), py::kw_only(), py::arg("q"), py::arg("out"), py::arg("num_heads"),
          py::arg("num_kv_heads"), py::arg("head_dim"), py::arg("sliding_window") = 0)
      .def(
          "add_likeliest",
          [](PyProgram& self, BufferId source) { self.program.add_likeliest(source); },
          py::arg("source"));
}

}  // namespace

void bind_programs(py::module_& module) {
  py::class_<ThreadTeam, std::shared_ptr<ThreadTeam>>(module, "ThreadTeam")
      .def(py::init([](int num_threads, bool pin) {
             return std::make_shared<ThreadTeam>(num_threads, pin);
           }),
           py::arg("num_threads"), py::kw_only(), py::arg("pin") = true)
      .def_property_readonly("num_threads", &ThreadTeam::num_threads);

  py::class_<PyProgram, std::shared_ptr<PyProgram>> program(module, "Program");
  program.def(py::init([](std::shared_ptr<ThreadTeam> team, std::int64_t max_tokens,
                          const std::string& isa) {
                return std::make_shared<PyProgram>(std::move(team), max_tokens, read_isa(isa));
              }),
              py::arg("team").none(false), py::kw_only(), py::arg("max_tokens"), py::arg("isa"));
  bind_description(program);
  program.def("bind_cache", &bind_cache, py::arg("layers"))
      .def("run", &run, py::arg("num_tokens"))
      .def("run_step", &run_step, py::kw_only(), py::arg("token_ids"), py::arg("positions"),
           py::arg("slot_mapping"), py::arg("row_tokens"), py::arg("row_starts"),
           py::arg("row_contexts"), py::arg("row_slots"), py::arg("block_tables"))
      .def("buffer", &view, py::arg("buffer"))
      .def_property_readonly("likeliest", &view_likeliest)
      .def_property_readonly("num_operations",
                             [](PyProgram& self) { return self.program.num_operations(); })
      .def_property_readonly("num_barriers",
                             [](PyProgram& self) { return self.program.num_barriers(); })
      .def_property_readonly("num_runs", [](PyProgram& self) { return self.program.num_runs(); });
}

}  // namespace antiphon::kernels::bindings
