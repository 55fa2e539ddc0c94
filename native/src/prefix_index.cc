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

std::uint64_t ExtendPathHash(std::uint64_t path, std::uint64_t block_hash) {
  return Mix64((std::rotl(path, 29) + kGoldenGamma) ^ block_hash);
}

std::vector<std::uint64_t> PathHashes(std::uint64_t root_hash, std::span<const TokenId> tokens,
                                      std::int32_t block_tokens) {
  std::vector<std::uint64_t> hashes = HashBlocks(tokens, block_tokens);
  std::uint64_t path = root_hash;
  for (std::uint64_t& hash : hashes) {
    path = ExtendPathHash(path, hash);
    hash = path;
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

NodeId PrefixIndex::Insert(ParentKey parent, std::uint64_t root_hash, std::uint64_t hash,
                           std::span<const TokenId> tokens) {
  ++num_changes_;
  ANTIPHON_CHECK(!free_.empty());
  ANTIPHON_CHECK(!tokens.empty() && static_cast<std::int32_t>(tokens.size()) <= block_tokens_);
  const NodeId id = free_.back();
  free_.pop_back();
  Node& node = Get(id);
  node.parent = parent;
  node.uid = ++last_uid_;
  if (parent.is_root()) {
    node.scope = parent.scope();
    roots_[node.scope].path_hash = root_hash;
  } else {
    ANTIPHON_CHECK(alive(parent.node()) && is_whole(parent.node()));
    node.scope = Get(parent.node()).scope;
  }
  Link(id);
  ++ChildrenOf(parent).num_partial;
  ++num_nodes_;
  Grow(id, hash, tokens);
  return id;
}

void PrefixIndex::Grow(NodeId id, std::uint64_t hash, std::span<const TokenId> tokens) {
  ++num_changes_;
  Node& node = Get(id);
  const auto num_tokens = static_cast<std::int32_t>(tokens.size());
  ANTIPHON_CHECK(num_tokens > node.num_tokens && num_tokens <= block_tokens_);
  ANTIPHON_CHECK(CommonTokens(id, tokens) == node.num_tokens);
  StoreTokens(id, tokens);
  if (num_tokens == block_tokens_) {
    ANTIPHON_CHECK(Find(node.parent, hash, tokens) == kNoNode);
    node.hash = hash;
    node.path_hash = ExtendPathHash(PathHashOf(node.parent), hash);
    --ChildrenOf(node.parent).num_partial;
    AddCell(id);
  }
}

void PrefixIndex::Remove(NodeId id) {
  ++num_changes_;
  ANTIPHON_CHECK(alive(id) && Get(id).children.count == 0);
  SetBlock(id, Tier::kDevice, kNoBlock);
  if (is_whole(id)) {
    EraseCell(CellOf(id));
  } else {
    --ChildrenOf(Get(id).parent).num_partial;
  }
  Unlink(id);
  Get(id) = Node{};
  free_.push_back(id);
  --num_nodes_;
}

void PrefixIndex::SetBlock(NodeId id, Tier tier, BlockId block) {
  ++num_changes_;
  Node& node = Get(id);
  BlockId& place = node.blocks[static_cast<std::size_t>(tier)];
  if (tier == Tier::kDevice) {
    ChildrenOf(node.parent).num_on_device +=
        static_cast<int>(block != kNoBlock) - static_cast<int>(place != kNoBlock);
  }
  place = block;
}

void PrefixIndex::DropMark(NodeId node) {
  ANTIPHON_CHECK(alive(node) && Get(node).num_marks > 0);
  --Get(node).num_marks;
}

std::int32_t PrefixIndex::CommonTokens(NodeId node, std::span<const TokenId> tokens) const {
  const std::span<const TokenId> own = this->tokens(node);
  const auto end = std::ranges::mismatch(own, tokens).in1;
  return static_cast<std::int32_t>(end - own.begin());
}

std::span<const TokenId> PrefixIndex::tokens(NodeId node) const {
  const auto width = static_cast<std::size_t>(block_tokens_);
  return std::span(tokens_).subspan(static_cast<std::size_t>(node) * width,
                                    static_cast<std::size_t>(Get(node).num_tokens));
}

bool PrefixIndex::alive(NodeId node) const {
  return node >= 0 && node < max_nodes() && Get(node).uid != 0;
}

NodeId PrefixIndex::first_child(ParentKey parent) const {
  const Children* children = FindChildren(parent);
  return children == nullptr ? kNoNode : children->first;
}

std::int32_t PrefixIndex::num_partial_children(ParentKey parent) const {
  const Children* children = FindChildren(parent);
  return children == nullptr ? 0 : children->num_partial;
}

void PrefixIndex::CheckInvariants() const {
  std::int32_t num_alive = 0;
  std::int32_t num_whole = 0;
  std::int32_t num_linked = 0;
  for (NodeId id = 0; id < max_nodes(); ++id) {
    if (alive(id)) {
      CheckNode(id);
      ++num_alive;
      num_whole += is_whole(id) ? 1 : 0;
      num_linked += CheckChildren(ParentKey::Node(id), Get(id).children);
    }
  }
  for (const auto& [scope, root] : roots_) {
    Check(root.children.count > 0, "I8: a root without children is kept");
    num_linked += CheckChildren(ParentKey::Root(scope), root.children);
  }
  Check(num_linked == num_alive, "I6: a node is not reached from exactly one parent");
  Check(num_alive == num_nodes_, "I6: the count of nodes is wrong");
  Check(num_alive + static_cast<std::int32_t>(free_.size()) == max_nodes(), "I6: nodes are lost");
  Check(std::ranges::count_if(cells_, [](NodeId id) { return id != kNoNode; }) == num_whole,
        "I6: the child table names another number of nodes");
}

void PrefixIndex::CheckNode(NodeId id) const {
  const Node& node = Get(id);
  Check(node.scope >= 1, "I8: a node has no scope");
  Check(node.num_tokens >= 1 && node.num_tokens <= block_tokens_,
        "I7: a node holds no tokens, or more than a block");
  if (is_whole(id)) {
    Check(HashTokens(tokens(id)) == node.hash, "I7: a node's tokens have changed");
    Check(Find(node.parent, node.hash, tokens(id)) == id,
          "I6: a node is not found under its parent");
    Check(node.path_hash == ExtendPathHash(PathHashOf(node.parent), node.hash),
          "I10: a path hash is wrong");
  } else {
    Check(node.children.count == 0, "I7: a partial node has children");
  }
  if (!node.parent.is_root()) {
    const NodeId parent = node.parent.node();
    Check(alive(parent), "I6: a node's parent is gone");
    Check(Get(parent).scope == node.scope, "I8: a node is in another scope than its parent");
    Check(!is_on(id, Tier::kDevice) || is_on(parent, Tier::kDevice),
          "I6: a node on the device has its parent on the host alone");
  }
}

// Returns the number of children.
std::int32_t PrefixIndex::CheckChildren(ParentKey parent, const Children& children) const {
  Children found = {.first = children.first};
  NodeId previous = kNoNode;
  for (NodeId id = children.first; id != kNoNode; id = Get(id).next) {
    Check(alive(id) && Get(id).parent == parent, "I6: a list of children names another's child");
    Check(Get(id).previous == previous, "I6: a list of children is broken");
    Check(++found.count <= num_nodes_, "I6: a list of children has a cycle");
    found.num_on_device += is_on(id, Tier::kDevice) ? 1 : 0;
    found.num_partial += is_whole(id) ? 0 : 1;
    previous = id;
  }
  Check(found.count == children.count && found.num_on_device == children.num_on_device &&
            found.num_partial == children.num_partial,
        "I6: a count of children is wrong");
  return found.count;
}

PrefixIndex::Children& PrefixIndex::ChildrenOf(ParentKey parent) {
  return parent.is_root() ? roots_.at(parent.scope()).children : Get(parent.node()).children;
}

const PrefixIndex::Children* PrefixIndex::FindChildren(ParentKey parent) const {
  if (!parent.is_root()) {
    return &Get(parent.node()).children;
  }
  const auto root = roots_.find(parent.scope());
  return root == roots_.end() ? nullptr : &root->second.children;
}

std::uint64_t PrefixIndex::PathHashOf(ParentKey parent) const {
  return parent.is_root() ? roots_.at(parent.scope()).path_hash : Get(parent.node()).path_hash;
}

void PrefixIndex::StoreTokens(NodeId id, std::span<const TokenId> tokens) {
  Get(id).num_tokens = static_cast<std::int32_t>(tokens.size());
  std::ranges::copy(tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(id) * block_tokens_);
}

void PrefixIndex::Link(NodeId id) {
  Children& children = ChildrenOf(Get(id).parent);
  Get(id).next = children.first;
  if (children.first != kNoNode) {
    Get(children.first).previous = id;
  }
  children.first = id;
  ++children.count;
}

void PrefixIndex::Unlink(NodeId id) {
  const Node& node = Get(id);
  Children& children = ChildrenOf(node.parent);
  (node.previous == kNoNode ? children.first : Get(node.previous).next) = node.next;
  if (node.next != kNoNode) {
    Get(node.next).previous = node.previous;
  }
  if (--children.count == 0 && node.parent.is_root()) {
    roots_.erase(node.parent.scope());
  }
}

void PrefixIndex::AddCell(NodeId id) {
  std::size_t cell = HomeOf(Get(id).parent, Get(id).hash);
  while (cells_[cell] != kNoNode) {
    cell = (cell + 1) & (cells_.size() - 1);
  }
  cells_[cell] = id;
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
