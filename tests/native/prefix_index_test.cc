#include "antiphon/prefix_index.h"

#include <gtest/gtest.h>

#include <vector>

namespace antiphon {
namespace {

using Tokens = std::vector<TokenId>;

NodeId Insert(PrefixIndex& index, ParentKey parent, const Tokens& tokens, BlockId block) {
  return index.Insert(parent, HashTokens(tokens), tokens, block);
}

NodeId Find(const PrefixIndex& index, ParentKey parent, const Tokens& tokens) {
  return index.Find(parent, HashTokens(tokens), tokens);
}

TEST(PrefixIndex, FindsChildUnderItsParentAlone) {
  PrefixIndex index(4, 2);
  const NodeId top = Insert(index, ParentKey::Root(1), {1, 2}, 1);
  const NodeId child = Insert(index, ParentKey::Node(top), {1, 2}, 2);

  EXPECT_EQ(Find(index, ParentKey::Root(1), {1, 2}), top);
  EXPECT_EQ(Find(index, ParentKey::Node(top), {1, 2}), child);
  EXPECT_EQ(Find(index, ParentKey::Node(child), {1, 2}), kNoNode);
  EXPECT_EQ(index.num_children(top), 1);
  index.CheckInvariants();
}

TEST(PrefixIndex, ScopesHaveRootsOfTheirOwn) {
  PrefixIndex index(4, 2);
  Insert(index, ParentKey::Root(1), {1, 2}, 1);

  EXPECT_EQ(Find(index, ParentKey::Root(2), {1, 2}), kNoNode);
}

TEST(PrefixIndex, NodesOfEqualHashAreToldApartByTheirTokens) {
  PrefixIndex index(8, 2);
  const std::uint64_t hash = 7;
  std::vector<NodeId> nodes;
  for (TokenId token = 0; token < 6; ++token) {
    nodes.push_back(index.Insert(ParentKey::Root(1), hash, Tokens{token, token}, token + 1));
  }

  index.Remove(nodes[2]);

  for (TokenId token = 0; token < 6; ++token) {
    const NodeId expected = token == 2 ? kNoNode : nodes[static_cast<std::size_t>(token)];
    EXPECT_EQ(index.Find(ParentKey::Root(1), hash, Tokens{token, token}), expected);
  }
}

TEST(PrefixIndex, RefusesASecondNodeOfEqualContent) {
  PrefixIndex index(4, 2);
  Insert(index, ParentKey::Root(1), {1, 2}, 1);

  EXPECT_THROW(Insert(index, ParentKey::Root(1), {1, 2}, 2), InvariantError);
}

TEST(PrefixIndex, RefusesToRemoveANodeWithChildren) {
  PrefixIndex index(4, 2);
  const NodeId top = Insert(index, ParentKey::Root(1), {1, 2}, 1);
  const NodeId leaf = Insert(index, ParentKey::Node(top), {3, 4}, 2);

  EXPECT_THROW(index.Remove(top), InvariantError);
  index.Remove(leaf);
  index.Remove(top);

  EXPECT_EQ(index.num_nodes(), 0);
  EXPECT_FALSE(index.alive(top));
  index.CheckInvariants();
}

TEST(PrefixIndex, StaysWholeWhileNodesComeAndGo) {
  PrefixIndex index(64, 1);
  std::vector<std::pair<TokenId, NodeId>> present;
  std::uint64_t state = 1;
  for (int i = 0; i < 4000; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto choice = static_cast<std::size_t>(state >> 33);
    if (present.size() == 64 || (choice % 2 == 0 && !present.empty())) {
      const std::size_t victim = choice % present.size();
      index.Remove(present[victim].second);
      present.erase(present.begin() + static_cast<std::ptrdiff_t>(victim));
    } else {
      present.emplace_back(i, Insert(index, ParentKey::Root(1), {i}, i + 1));
    }
  }

  for (const auto& [token, node] : present) {
    EXPECT_EQ(Find(index, ParentKey::Root(1), {token}), node);
  }
  index.CheckInvariants();
}

TEST(PrefixIndex, DropsALongChainWithoutRecursion) {
  constexpr std::int32_t kNumNodes = 100'000;
  PrefixIndex index(kNumNodes, 1);
  std::vector<NodeId> chain;
  ParentKey parent = ParentKey::Root(1);
  for (std::int32_t i = 0; i < kNumNodes; ++i) {
    chain.push_back(Insert(index, parent, {7}, i + 1));
    parent = ParentKey::Node(chain.back());
  }

  for (; !chain.empty(); chain.pop_back()) {
    index.Remove(chain.back());
  }

  EXPECT_EQ(index.num_nodes(), 0);
}

TEST(HashBlocks, LeavesOutThePartialBlock) {
  const Tokens tokens = {1, 2, 3, 4, 5};

  const std::vector<std::uint64_t> hashes = HashBlocks(tokens, 2);

  ASSERT_EQ(hashes.size(), 2U);
  EXPECT_EQ(hashes[1], HashTokens(Tokens{3, 4}));
  EXPECT_NE(hashes[0], hashes[1]);
}

}  // namespace
}  // namespace antiphon
