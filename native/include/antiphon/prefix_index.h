#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "antiphon/types.h"

namespace antiphon {

// A node's parent: another node, or the root of a scope.
class ParentKey {
 public:
  static ParentKey Root(ScopeId scope) { return ParentKey(-scope); }
  static ParentKey Node(NodeId node) { return ParentKey(node); }

  bool is_root() const { return value_ < 0; }
  NodeId node() const { return static_cast<NodeId>(value_); }
  ScopeId scope() const { return -value_; }
  std::int64_t value() const { return value_; }
  bool operator==(const ParentKey&) const = default;

 private:
  explicit ParentKey(std::int64_t value) : value_(value) {}
  std::int64_t value_;  // node ids are >= 0, scope ids >= 1
};

// Hashes. All arithmetic is on unsigned 64-bit numbers, modulo 2^64, and the same in every process:
// routers compute path hashes themselves. With gamma = kGoldenGamma and mix = Mix64 of random.h:
//
//   of tokens t1 .. tn:  h0 = n * gamma;  hi = (rotl(h(i-1), 23) xor ti) * gamma;  the hash:
//   mix(hn) of a scope's root:   ScopeTable::hash, from the scope's fields of a path:           of
//   the root, then for each whole block
//                        path = mix((rotl(path, 29) + gamma) xor hash of the block's tokens)

// 64-bit hash of one block's tokens. Finds candidates only; equality of tokens decides.
std::uint64_t HashTokens(std::span<const TokenId> tokens);

// The hash of each whole block of a text.
std::vector<std::uint64_t> HashBlocks(std::span<const TokenId> tokens, std::int32_t block_tokens);

// The hash of the path that leads on from `path` by a block with this hash.
std::uint64_t ExtendPathHash(std::uint64_t path, std::uint64_t block_hash);

// The hash of each path that whole blocks of a text make, below a root with this hash.
std::vector<std::uint64_t> PathHashes(std::uint64_t root_hash, std::span<const TokenId> tokens,
                                      std::int32_t block_tokens);

// The tree of blocks whose KV cache is there, in device memory, on the host or in both. A whole
// node is one block of tokens below its parent; a path of them from a scope's root is a prefix.
// Whole children are found in one open-addressing table keyed by (parent, hash) and told apart by
// their tokens, so that a collision costs time, never correctness. A partial node holds less than a
// block, has no children, and is found in its parent's list of children only.
//
// Invariants:
//  1. Every node's parent exists; no node is removed before its children.
//  2. Two whole children of a parent differ in their tokens.
//  3. A whole node's tokens never change; a partial one's only grow.
//  4. A node on the device has its parent on the device.
//
// Not thread-safe.
class PrefixIndex {
 public:
  // REQUIRES: max_nodes >= 1, block_tokens >= 1
  PrefixIndex(std::int32_t max_nodes, std::int32_t block_tokens);

  // Returns the whole child of `parent` that holds `tokens` (one block of them), or kNoNode. O(1).
  NodeId Find(ParentKey parent, std::uint64_t hash, std::span<const TokenId> tokens) const;

  // Adds a child, a whole one if `tokens` fill a block, that lies nowhere yet. `root_hash` is the
  // path hash of the scope's root. `hash` is of no account in a partial node.
  // REQUIRES: Find() returns kNoNode; num_nodes() < max_nodes; at least one token
  NodeId Insert(ParentKey parent, std::uint64_t root_hash, std::uint64_t hash,
                std::span<const TokenId> tokens);

  // Replaces a partial node's tokens by more; a block of them makes it a whole node.
  // REQUIRES: `tokens` begin with the node's; if they fill a block, Find() returns kNoNode
  void Grow(NodeId node, std::uint64_t hash, std::span<const TokenId> tokens);

  // REQUIRES: num_children(node) == 0
  void Remove(NodeId node);

  // Says where a node lies in a tier (kNoBlock: nowhere).
  void SetBlock(NodeId node, Tier tier, BlockId block);

  void AddHit(NodeId node) { ++Get(node).num_hits; }
  void AddMark(NodeId node) { ++Get(node).num_marks; }
  void DropMark(NodeId node);

  // Tokens that the node and `tokens` begin with alike.
  std::int32_t CommonTokens(NodeId node, std::span<const TokenId> tokens) const;

  BlockId block(NodeId node, Tier tier) const {
    return Get(node).blocks[static_cast<std::size_t>(tier)];
  }
  bool is_on(NodeId node, Tier tier) const { return block(node, tier) != kNoBlock; }
  ParentKey parent(NodeId node) const { return Get(node).parent; }
  ScopeId scope(NodeId node) const { return Get(node).scope; }
  std::span<const TokenId> tokens(NodeId node) const;
  bool is_whole(NodeId node) const { return Get(node).num_tokens == block_tokens_; }
  std::int32_t num_children(NodeId node) const { return Get(node).children.count; }
  std::int32_t num_device_children(NodeId node) const { return Get(node).children.num_on_device; }
  std::int32_t num_marks(NodeId node) const { return Get(node).num_marks; }
  std::int64_t num_hits(NodeId node) const { return Get(node).num_hits; }

  // A number that no other node ever has, so that a late reference can be told. Never 0.
  std::uint64_t uid(NodeId node) const { return Get(node).uid; }
  bool alive(NodeId node) const;
  bool alive(NodeId node, std::uint64_t uid) const { return alive(node) && Get(node).uid == uid; }

  // REQUIRES: is_whole(node)
  std::uint64_t path_hash(NodeId node) const { return Get(node).path_hash; }
  std::uint64_t parent_hash(NodeId node) const { return PathHashOf(Get(node).parent); }

  // A parent's children, latest first; kNoNode ends the list.
  NodeId first_child(ParentKey parent) const;
  NodeId next_sibling(NodeId node) const { return Get(node).next; }
  std::int32_t num_partial_children(ParentKey parent) const;

  // Grows with every node that comes, grows, goes or lies elsewhere.
  std::uint64_t num_changes() const { return num_changes_; }

  std::int32_t num_nodes() const { return num_nodes_; }
  std::int32_t max_nodes() const { return static_cast<std::int32_t>(nodes_.size()); }
  std::size_t num_roots() const { return roots_.size(); }

  // Checks the invariants above, O(nodes).
  void CheckInvariants() const;

 private:
  struct Children {
    NodeId first = kNoNode;
    std::int32_t count = 0;
    std::int32_t num_on_device = 0;
    std::int32_t num_partial = 0;
  };

  struct Root {
    Children children;
    std::uint64_t path_hash = 0;
  };

  struct Node {
    // What a lookup reads comes first, on one line of the memory cache.
    std::uint64_t hash = 0;
    ParentKey parent = ParentKey::Node(kNoNode);
    std::array<BlockId, 2> blocks = {kNoBlock, kNoBlock};  // by tier
    std::int32_t num_tokens = 0;
    std::int32_t num_marks = 0;
    std::uint64_t uid = 0;  // 0: the node is free
    std::int64_t num_hits = 0;
    Children children;
    NodeId previous = kNoNode;
    NodeId next = kNoNode;
    ScopeId scope = 0;
    std::uint64_t path_hash = 0;
  };

  const Node& Get(NodeId node) const { return nodes_[static_cast<std::size_t>(node)]; }
  Node& Get(NodeId node) { return nodes_[static_cast<std::size_t>(node)]; }
  Children& ChildrenOf(ParentKey parent);
  const Children* FindChildren(ParentKey parent) const;
  std::uint64_t PathHashOf(ParentKey parent) const;
  void StoreTokens(NodeId node, std::span<const TokenId> tokens);
  void Link(NodeId node);
  void Unlink(NodeId node);
  void AddCell(NodeId node);
  std::size_t HomeOf(ParentKey parent, std::uint64_t hash) const;
  std::size_t CellOf(NodeId node) const;
  void EraseCell(std::size_t cell);
  void CheckNode(NodeId id) const;
  std::int32_t CheckChildren(ParentKey parent, const Children& children) const;

  std::int32_t block_tokens_;
  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_;  // [max_nodes, block_tokens]
  std::vector<NodeId> free_;     // LIFO
  // The table: linear probing, a power of two of cells, half full at most.
  std::vector<NodeId> cells_;
  std::unordered_map<ScopeId, Root> roots_;  // those that have children
  std::int32_t num_nodes_ = 0;
  std::uint64_t last_uid_ = 0;
  std::uint64_t num_changes_ = 0;
};

}  // namespace antiphon
