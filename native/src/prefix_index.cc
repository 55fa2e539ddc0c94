// Nodes live in arrays and are named by index, so that dropping a long chain recurses nowhere. The
// child table holds node ids only; a removal closes the gap behind it (no tombstones), so that
// lookups stay short however often nodes come and go.
#include "antiphon/prefix_index.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "antiphon/random.h"

namespace antiphon {

namespace {

// Cells of a table that `max_nodes` entries fill at most half.
std::size_t NumCells(std::int32_t max_nodes) {
  return std::bit_ceil(static_cast<std::size_t>(max_nodes) * 2);
}

}  // namespace

std::uint64_t HashTokens(std::span<const TokenId> tokens) {
  std::uint64_t hash = tokens.size() * kGoldenGamma;
  for (const TokenId token : tokens) {
    hash = (std::rotl(hash, 23) ^ static_cast<std::uint32_t>(token)) * kGoldenGamma;
  }
  return Mix64(hash);
}

std::vector<std::uint64_t> HashBlocks(std::span<const TokenId> tokens, std::int32_t block_tokens) {
  const auto width = static_cast<std::size_t>(block_tokens);
  std::vector<std::uint64_t> hashes;
  hashes.reserve(tokens.size() / width);
  for (std::size_t start = 0; start + width <= tokens.size(); start += width) {
    hashes.push_back(HashTokens(tokens.subspan(start, width)));
  }
  return hashes;
}

PrefixIndex::PrefixIndex(std::int32_t max_nodes, std::int32_t block_tokens)
    : block_tokens_(block_tokens) {
  ANTIPHON_CHECK(max_nodes >= 1 && block_tokens >= 1);
  const auto size = static_cast<std::size_t>(max_nodes);
  nodes_.resize(size);
  tokens_.resize(size * static_cast<std::size_t>(block_tokens));
  cells_.resize(NumCells(max_nodes), kNoNode);
  free_.reserve(size);
  for (NodeId node = max_nodes - 1; node >= 0; --node) {
    free_.push_back(node);
  }
}

NodeId PrefixIndex::Find(ParentKey parent, std::uint64_t hash,
                         std::span<const TokenId> tokens) const {
  for (std::size_t cell = HomeOf(parent, hash); cells_[cell] != kNoNode;
       cell = (cell + 1) & (cells_.size() - 1)) {
    const NodeId candidate = cells_[cell];
    const Node& node = Get(candidate);
    if (node.hash == hash && node.parent == parent &&
        std::memcmp(this->tokens(candidate).data(), tokens.data(), tokens.size_bytes()) == 0) {
      return candidate;
    }
  }
  return kNoNode;
}

NodeId PrefixIndex::Insert(ParentKey parent, std::uint64_t hash, std::span<const TokenId> tokens,
                           BlockId block) {
  ANTIPHON_CHECK(!free_.empty());
  ANTIPHON_CHECK(static_cast<std::int32_t>(tokens.size()) == block_tokens_);
  ANTIPHON_CHECK(Find(parent, hash, tokens) == kNoNode);
  const NodeId id = free_.back();
  free_.pop_back();
  Node& node = Get(id);
  node = {.parent = parent, .scope = 0, .hash = hash, .block = block, .num_children = 0};
  if (parent.is_root()) {
    node.scope = -parent.value();
  } else {
    node.scope = Get(parent.node()).scope;
    ++Get(parent.node()).num_children;
  }
  std::ranges::copy(tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(id) * block_tokens_);
  std::size_t cell = HomeOf(parent, hash);
  while (cells_[cell] != kNoNode) {
    cell = (cell + 1) & (cells_.size() - 1);
  }
  cells_[cell] = id;
  ++num_nodes_;
  return id;
}

void PrefixIndex::Remove(NodeId id) {
  ANTIPHON_CHECK(alive(id) && Get(id).num_children == 0);
  EraseCell(CellOf(id));
  Node& node = Get(id);
  if (!node.parent.is_root()) {
    --Get(node.parent.node()).num_children;
  }
  node = Node{};
  free_.push_back(id);
  --num_nodes_;
}

std::span<const TokenId> PrefixIndex::tokens(NodeId node) const {
  const auto width = static_cast<std::size_t>(block_tokens_);
  return std::span(tokens_).subspan(static_cast<std::size_t>(node) * width, width);
}

bool PrefixIndex::alive(NodeId node) const {
  return node >= 0 && node < max_nodes() && Get(node).block != kNoBlock;
}

void PrefixIndex::CheckInvariants() const {
  std::vector<std::int32_t> num_children(nodes_.size(), 0);
  std::int32_t num_alive = 0;
  for (NodeId id = 0; id < max_nodes(); ++id) {
    if (!alive(id)) {
      continue;
    }
    ++num_alive;
    const Node& node = Get(id);
    Check(node.scope >= 1, "I8: a node has no scope");
    Check(HashTokens(tokens(id)) == node.hash, "I7: a node's tokens have changed");
    Check(Find(node.parent, node.hash, tokens(id)) == id,
          "I6: a node is not found under its parent");
    if (!node.parent.is_root()) {
      Check(alive(node.parent.node()), "I6: a node's parent is gone");
      Check(Get(node.parent.node()).scope == node.scope,
            "I8: a node is in another scope than its parent");
      ++num_children[static_cast<std::size_t>(node.parent.node())];
    }
  }
  for (NodeId id = 0; id < max_nodes(); ++id) {
    Check(Get(id).num_children == num_children[static_cast<std::size_t>(id)],
          "I6: a count of children is wrong");
  }
  Check(num_alive == num_nodes_, "I6: the count of nodes is wrong");
  Check(num_alive + static_cast<std::int32_t>(free_.size()) == max_nodes(), "I6: nodes are lost");
  Check(std::ranges::count_if(cells_, [](NodeId id) { return id != kNoNode; }) == num_alive,
        "I6: the child table names another number of nodes");
}

std::size_t PrefixIndex::HomeOf(ParentKey parent, std::uint64_t hash) const {
  const auto key = static_cast<std::uint64_t>(parent.value()) * kGoldenGamma;
  return static_cast<std::size_t>(Mix64(hash ^ key)) & (cells_.size() - 1);
}

std::size_t PrefixIndex::CellOf(NodeId node) const {
  std::size_t cell = HomeOf(Get(node).parent, Get(node).hash);
  while (cells_[cell] != node) {
    ANTIPHON_CHECK(cells_[cell] != kNoNode);
    cell = (cell + 1) & (cells_.size() - 1);
  }
  return cell;
}

// Moves later entries of the same run back over the gap, where their home allows it.
void PrefixIndex::EraseCell(std::size_t cell) {
  const std::size_t mask = cells_.size() - 1;
  std::size_t gap = cell;
  for (std::size_t next = (gap + 1) & mask; cells_[next] != kNoNode; next = (next + 1) & mask) {
    const Node& node = Get(cells_[next]);
    const std::size_t home = HomeOf(node.parent, node.hash);
    const std::size_t distance_from_home = (next - home) & mask;
    const std::size_t distance_from_gap = (next - gap) & mask;
    if (distance_from_home >= distance_from_gap) {
      cells_[gap] = cells_[next];
      gap = next;
    }
  }
  cells_[gap] = kNoNode;
}

}  // namespace antiphon
