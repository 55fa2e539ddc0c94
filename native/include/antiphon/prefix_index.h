#pragma once

#include <cstdint>
#include <span>
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
  std::int64_t value() const { return value_; }
  bool operator==(const ParentKey&) const = default;

 private:
  explicit ParentKey(std::int64_t value) : value_(value) {}
  std::int64_t value_;  // node ids are >= 0, scope ids >= 1
};

// 64-bit hash of one block's tokens. Finds candidates only; equality of tokens decides.
std::uint64_t HashTokens(std::span<const TokenId> tokens);

// The hash of each whole block of a text.
std::vector<std::uint64_t> HashBlocks(std::span<const TokenId> tokens, std::int32_t block_tokens);

// The tree of blocks whose KV cache is there. A node is one whole block of tokens below its parent;
// a path from a scope's root is a prefix. Children are found in one open-addressing table keyed by
// (parent, hash) and told apart by their tokens, so that a collision costs time, never correctness.
//
// Invariants:
//  1. Every node's parent exists; no node is removed before its children.
//  2. Two children of a parent differ in their tokens.
//  3. A node's tokens never change.
//
// Not thread-safe.
class PrefixIndex {
 public:
  // REQUIRES: max_nodes >= 1, block_tokens >= 1
  PrefixIndex(std::int32_t max_nodes, std::int32_t block_tokens);

  // Returns the child of `parent` that holds `tokens` (one block of them), or kNoNode. O(1).
  NodeId Find(ParentKey parent, std::uint64_t hash, std::span<const TokenId> tokens) const;

  // Adds a child.
  // REQUIRES: Find() with the same arguments returns kNoNode; num_nodes() < max_nodes
  NodeId Insert(ParentKey parent, std::uint64_t hash, std::span<const TokenId> tokens,
                BlockId block);

  // REQUIRES: num_children(node) == 0
  void Remove(NodeId node);

  BlockId block(NodeId node) const { return Get(node).block; }
  ParentKey parent(NodeId node) const { return Get(node).parent; }
  std::int32_t num_children(NodeId node) const { return Get(node).num_children; }
  ScopeId scope(NodeId node) const { return Get(node).scope; }
  std::span<const TokenId> tokens(NodeId node) const;
  bool alive(NodeId node) const;

  std::int32_t num_nodes() const { return num_nodes_; }
  std::int32_t max_nodes() const { return static_cast<std::int32_t>(nodes_.size()); }

  // Checks the invariants above, O(nodes).
  void CheckInvariants() const;

 private:
  struct Node {
    ParentKey parent = ParentKey::Node(kNoNode);
    ScopeId scope = 0;
    std::uint64_t hash = 0;
    BlockId block = kNoBlock;  // kNoBlock: the node is free
    std::int32_t num_children = 0;
  };

  const Node& Get(NodeId node) const { return nodes_[static_cast<std::size_t>(node)]; }
  Node& Get(NodeId node) { return nodes_[static_cast<std::size_t>(node)]; }
  std::size_t HomeOf(ParentKey parent, std::uint64_t hash) const;
  std::size_t CellOf(NodeId node) const;
  void EraseCell(std::size_t cell);

  std::int32_t block_tokens_;
  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_;  // [max_nodes, block_tokens]
  std::vector<NodeId> free_;     // LIFO
  std::vector<NodeId>
      cells_;  // the table: linear probing, a power of two of cells, half full at most
  std::int32_t num_nodes_ = 0;
};

}  // namespace antiphon
