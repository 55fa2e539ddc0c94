#include <pybind11/stl.h>

#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"

namespace py = pybind11;
using py::literals::operator""_a;

namespace antiphon::bindings {

namespace {

using EventTuple = std::tuple<std::int64_t, std::int32_t, std::uint64_t, std::uint64_t, ScopeId,
                              std::uint32_t, std::int32_t>;
using BlockTuple = std::tuple<std::uint64_t, std::uint64_t, ScopeId, std::uint32_t, std::int32_t>;

std::pair<std::vector<EventTuple>, bool> ReadKvEvents(PyEngineCore& self, std::int64_t after,
                                                      std::int32_t limit) {
  if (after < 0 || limit < 1) {
    throw std::invalid_argument("after must be at least 0, and limit at least 1");
  }
  const KvEventBatch batch = self.core().cache().events().Read(after, limit);
  std::vector<EventTuple> events;
  events.reserve(batch.events.size());
  for (const KvEvent& event : batch.events) {
    events.emplace_back(event.sequence, static_cast<std::int32_t>(event.kind), event.path_hash,
                        event.parent_hash, event.scope, event.tiers, event.priority);
  }
  return {std::move(events), batch.lost};
}

std::pair<std::int64_t, std::vector<BlockTuple>> TakeSnapshot(PyEngineCore& self) {
  const KvSnapshot snapshot = self.core().cache().Snapshot();
  std::vector<BlockTuple> blocks;
  blocks.reserve(snapshot.blocks.size());
  for (const KvEvent& block : snapshot.blocks) {
    blocks.emplace_back(block.path_hash, block.parent_hash, block.scope, block.tiers,
                        block.priority);
  }
  return {snapshot.sequence, std::move(blocks)};
}

py::array_t<std::uint64_t> HashPaths(PyEngineCore& self, ScopeId scope, const TokenArray& tokens) {
  if (!self.core().scopes().Contains(scope)) {
    throw std::invalid_argument("scope " + std::to_string(scope) + " is not known");
  }
  const std::vector<std::uint64_t> hashes =
      PathHashes(self.core().scopes().hash(scope), ToSpan(tokens, "tokens"),
                 self.core().config().block_tokens);
  return py::array_t<std::uint64_t>(static_cast<py::ssize_t>(hashes.size()), hashes.data());
}

}  // namespace

void BindCacheMethods(py::class_<PyEngineCore>& core) {
  core.def(
      "rewind_session",
      [](PyEngineCore& self, std::uint64_t session, std::int64_t num_tokens) {
        return self.core().RewindSession(session, num_tokens);
      },
      "session"_a, "num_tokens"_a);
  core.def(
      "fork_session",
      [](PyEngineCore& self, std::uint64_t session, std::uint64_t new_session) {
        return self.core().ForkSession(session, new_session);
      },
      "session"_a, "new_session"_a);
  core.def(
      "close_session",
      [](PyEngineCore& self, std::uint64_t session) { return self.core().CloseSession(session); },
      "session"_a);
  core.def("path_hashes", &HashPaths, "scope"_a, py::arg("tokens").noconvert());
  core.def("read_kv_events", &ReadKvEvents, "after"_a, "limit"_a);
  core.def("kv_snapshot", &TakeSnapshot);
}

}  // namespace antiphon::bindings
