// The state as JSON. It has ids and counts but no tokens, so that it may go into a log.
// Text is appended to a string: iostreams reach into the C++ library's global locale, which an
// extension module shares with whatever other libraries the process has loaded.
#include <concepts>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "antiphon/engine_core.h"

namespace antiphon {

namespace {

class Json {
 public:
  Json& operator<<(std::string_view text) {
    text_ += text;
    return *this;
  }

  Json& operator<<(char character) {
    text_ += character;
    return *this;
  }

  template <std::integral Number>
  Json& operator<<(Number number) {
    text_ += std::to_string(number);
    return *this;
  }

  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

template <typename Values, typename Write>
void WriteArray(Json& out, const char* name, const Values& values, Write write) {
  out << '"' << name << "\":[";
  bool first = true;
  for (const auto& value : values) {
    out << (first ? "" : ",");
    first = false;
    write(value);
  }
  out << ']';
}

template <typename Values>
void WriteNumbers(Json& out, const char* name, const Values& values) {
  WriteArray(out, name, values, [&out](const auto& value) { out << value; });
}

void WriteRequest(Json& out, const Request& request) {
  out << "{\"handle\":" << request.handle << ",\"state\":\"" << StateName(request.state)
      << "\",\"epoch\":" << request.epoch << ",\"arrival\":" << request.arrival
      << ",\"priority\":" << request.priority << ",\"leader\":" << request.leader
      << ",\"scope\":" << request.chain.scope << ",\"slot\":" << request.slot
      << ",\"num_prompt\":" << request.num_prompt << ",\"num_known\":" << request.num_known()
      << ",\"num_computed\":" << request.num_computed
      << ",\"num_settled\":" << request.num_settled() << ",\"num_steps\":" << request.num_steps
      << ",\"output_limit\":" << request.output_limit
      << ",\"num_blocks_needed\":" << request.num_blocks_needed
      << ",\"num_published\":" << request.chain.num_published << ',';
  WriteNumbers(out, "blocks", request.chain.blocks);
  out << '}';
}

}  // namespace

std::string EngineCore::DumpState() const {
  Json out;
  const CoreStats counters = stats();
  out << "{\"step\":" << counters.step << ",\"num_running\":" << counters.num_running
      << ",\"num_waiting\":" << counters.num_waiting
      << ",\"num_steps_in_flight\":" << num_steps_in_flight_
      << ",\"num_blocks_reserved\":" << capacity_.reserved() << ',';
  std::vector<const Request*> held;
  for (const Request& request : requests_.places()) {
    if (request.state != RequestState::kFree) {
      held.push_back(&request);
    }
  }
  WriteArray(out, "requests", held,
             [&out](const Request* request) { WriteRequest(out, *request); });
  out << ',';
  const BlockPool& pool = cache_.pool();
  const PrefixIndex& index = cache_.index();
  std::vector<BlockId> referenced;
  std::vector<NodeId> nodes;
  for (BlockId block = 1; block < pool.num_blocks(); ++block) {
    if (pool.reference_count(block) > 0) {
      referenced.push_back(block);
    }
    if (pool.node(block) != kNoNode) {
      nodes.push_back(pool.node(block));
    }
  }
  WriteNumbers(out, "clean_blocks", pool.clean_blocks());
  out << ',';
  WriteNumbers(out, "cached_blocks", pool.CachedBlocks());
  out << ',';
  WriteArray(out, "referenced_blocks", referenced, [&out, &pool](BlockId block) {
    out << '[' << block << ',' << pool.reference_count(block) << ']';
  });
  out << ',';
  WriteArray(out, "nodes", nodes, [&out, &index](NodeId node) {
    const ParentKey parent = index.parent(node);
    out << "{\"node\":" << node << ",\"block\":" << index.block(node)
        << ",\"scope\":" << index.scope(node)
        << ",\"parent\":" << (parent.is_root() ? kNoNode : parent.node())
        << ",\"num_children\":" << index.num_children(node) << '}';
  });
  out << '}';
  return out.Take();
}

}  // namespace antiphon
