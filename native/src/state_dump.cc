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
      << "\",\"held\":" << (request.held ? "true" : "false")
      << ",\"sits_out\":" << (request.sits_out ? "true" : "false") << ",\"epoch\":" << request.epoch
      << ",\"arrival\":" << request.arrival << ",\"priority\":" << request.priority
      << ",\"leader\":" << request.leader << ",\"scope\":" << request.chain.scope
      << ",\"slot\":" << request.slot << ",\"num_prompt\":" << request.num_prompt
      << ",\"num_known\":" << request.num_known() << ",\"num_computed\":" << request.num_computed
      << ",\"num_settled\":" << request.num_settled() << ",\"num_pending\":" << request.num_pending
      << ",\"num_steps\":" << request.num_steps << ",\"output_limit\":" << request.output_limit
      << ",\"blocks_to_completion\":" << request.blocks_to_completion
      << ",\"blocks_promised\":" << request.blocks_promised
      << ",\"num_bypassed\":" << request.num_bypassed << ",\"session\":" << request.session
      << ",\"num_published\":" << request.chain.num_published << ',';
  WriteNumbers(out, "blocks", request.chain.blocks);
  out << '}';
}

// Blocks that are neither clean nor referenced are cached.
void WritePool(Json& out, const char* name, const BlockPool& pool) {
  std::vector<BlockId> referenced;
  std::vector<BlockId> cached;
  for (BlockId block = 1; block < pool.num_blocks(); ++block) {
    if (pool.reference_count(block) > 0) {
      referenced.push_back(block);
    } else if (pool.node(block) != kNoNode) {
      cached.push_back(block);
    }
  }
  out << '"' << name << "\":{";
  WriteNumbers(out, "clean", pool.clean_blocks());
  out << ',';
  WriteNumbers(out, "cached", cached);
  out << ',';
  WriteArray(out, "referenced", referenced, [&out, &pool](BlockId block) {
    out << '[' << block << ',' << pool.reference_count(block) << ']';
  });
  out << '}';
}

void WriteNodes(Json& out, const PrefixIndex& index, const EvictionOrder& order) {
  std::vector<NodeId> nodes;
  for (NodeId node = 0; node < index.max_nodes(); ++node) {
    if (index.alive(node)) {
      nodes.push_back(node);
    }
  }
  WriteArray(out, "nodes", nodes, [&out, &index, &order](NodeId node) {
    const ParentKey parent = index.parent(node);
    out << "{\"node\":" << node << ",\"uid\":" << index.uid(node)
        << ",\"block\":" << index.block(node, Tier::kDevice)
        << ",\"host_block\":" << index.block(node, Tier::kHost)
        << ",\"num_tokens\":" << index.tokens(node).size() << ",\"scope\":" << index.scope(node)
        << ",\"parent\":" << (parent.is_root() ? kNoNode : parent.node())
        << ",\"num_children\":" << index.num_children(node)
        << ",\"num_device_children\":" << index.num_device_children(node)
        << ",\"num_marks\":" << index.num_marks(node) << ",\"level\":" << order.level(node)
        << ",\"last_use\":" << order.last_use(node) << '}';
  });
}

// What steps in flight hold for their copies and reads, all together.
void WriteHolds(Json& out, const std::vector<const StepHolds*>& holds,
                std::vector<BlockId> device_blocks) {
  std::vector<BlockId> host_blocks;
  for (const StepHolds* of_step : holds) {
    device_blocks.insert(device_blocks.end(), of_step->device_blocks.begin(),
                         of_step->device_blocks.end());
    host_blocks.insert(host_blocks.end(), of_step->host_blocks.begin(), of_step->host_blocks.end());
  }
  WriteNumbers(out, "held_blocks", device_blocks);
  out << ',';
  WriteNumbers(out, "held_host_blocks", host_blocks);
}

}  // namespace

std::string EngineCore::DumpState() const {
  Json out;
  const CoreStats counters = stats();
  out << "{\"step\":" << counters.step << ",\"num_running\":" << counters.num_running
      << ",\"num_waiting\":" << counters.num_waiting << ",\"num_held\":" << counters.num_held
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
  WriteArray(out, "running", running_, [&out](const Request* request) { out << request->handle; });
  out << ',';
  std::vector<const StepHolds*> holds;
  std::vector<BlockId> left_blocks;
  for (const BufferSet& set : sets_) {
    holds.push_back(&set.holds);
    left_blocks.insert(left_blocks.end(), set.left_blocks.begin(), set.left_blocks.end());
  }
  WriteHolds(out, holds, left_blocks);
  out << ',';
  WritePool(out, "device", cache_.device());
  out << ',';
  WritePool(out, "host", cache_.host());
  out << ',';
  WriteNodes(out, cache_.index(), cache_.order());
  out << '}';
  return out.Take();
}

}  // namespace antiphon
