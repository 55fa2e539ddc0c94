#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "bindings.h"

namespace py = pybind11;
using py::literals::operator""_a;

namespace antiphon::bindings {

namespace {

using Counts = std::map<std::string, std::int64_t>;
using Table = py::array_t<std::int64_t>;

Counts CountsDict(const RequestTimes& times) {
  return {
      {"arrival_ns", times.arrival_ns},
      {"num_steps", times.num_steps},
      {"num_preemptions", times.num_preemptions},
      {"num_rests", times.num_rests},
      {"rest_ns", times.rest_ns},
      {"num_batch_rows", times.num_batch_rows},
      {"max_batch_rows", times.max_batch_rows},
      {"num_device_reused", times.num_device_reused},
      {"num_host_reused", times.num_host_reused},
      {"num_recomputed", times.num_recomputed},
  };
}

Table ChunkTable(const RequestTimes& times) {
  Table table({py::ssize_t{times.num_chunks}, py::ssize_t{6}});
  std::int64_t* cell = table.mutable_data();
  for (const PrefillChunk& chunk : times.known_chunks()) {
    for (const std::int64_t value :
         {chunk.start_ns, chunk.end_ns, std::int64_t{chunk.step}, std::int64_t{chunk.num_steps},
          std::int64_t{chunk.num_tokens}, std::int64_t{chunk.num_rows}}) {
      *cell++ = value;
    }
  }
  return table;
}

Table RestTable(const RequestTimes& times) {
  const std::span<const Rest> rests = times.known_rests();
  Table table({static_cast<py::ssize_t>(rests.size()), py::ssize_t{3}});
  std::int64_t* cell = table.mutable_data();
  for (const Rest& rest : rests) {
    for (const std::int64_t value : {rest.start_ns, rest.end_ns, std::int64_t{rest.held}}) {
      *cell++ = value;
    }
  }
  return table;
}

}  // namespace

void BindTimes(py::class_<PyEngineCore>& core) {
  core.def(
      "times",
      [](PyEngineCore& self, Handle handle) -> std::optional<std::tuple<Counts, Table, Table>> {
        const std::optional<RequestTimes> times = self.core().Times(handle);
        if (!times) {
          return std::nullopt;
        }
        return std::tuple{CountsDict(*times), ChunkTable(*times), RestTable(*times)};
      },
      "handle"_a);
}

}  // namespace antiphon::bindings
