#include "antiphon/prefix_index.h"

#include <gtest/gtest.h>

#include <vector>

namespace antiphon {
namespace {

using Tokens = std::vector<TokenId>;

constexpr std::uint64_t kRootHash = 99;

NodeId Insert(PrefixIndex& index, ParentKey parent, const Tokens& tokens) {
  return index.Insert(parent, kRootHash, HashTokens(tokens), tokens);
}

Tokens Children(const PrefixIndex& index, ParentKey parent) {
  Tokens first_tokens;
  for (NodeId node = index.first_child(parent); node != kNoNode; node = index.next_sibling(node)) {
    first_tokens.push_back(index.tokens(node)[0]);
  }
  return first_tokens;
}

NodeId Find(const PrefixIndex& index, ParentKey parent, const Tokens& tokens) {
  return index.Find(parent, HashTokens(tokens), tokens);
}

TEST(PrefixIndex, FindsChildUnderItsParentAlone) {
  PrefixIndex index(4, 2);
  const NodeId top = Insert(index, ParentKey::Root(1), {1, 2});
  const NodeId child = Insert(index, ParentKey::Node(top), {1, 2});

  EXPECT_EQ(Find(index, ParentKey::Root(1), {1, 2}), top);
  EXPECT_EQ(Find(index, ParentKey::Node(top), {1, 2}), child);
  EXPECT_EQ(Find(index, ParentKey::Node(child), {1, 2}), kNoNode);
  EXPECT_EQ(index.num_children(top), 1);
  index.CheckInvariants();
}

TEST(PrefixIndex, ScopesHaveRootsOfTheirOwn) {
  PrefixIndex index(4, 2);
  Insert(index, ParentKey::Root(1), {1, 2});

  EXPECT_EQ(Find(index, ParentKey::Root(2), {1, 2}), kNoNode);
}

TEST(PrefixIndex, NodesOfEqualHashAreToldApartByTheirTokens) {
  PrefixIndex index(8, 2);
  const std::uint64_t hash = 7;
  std::vector<NodeId> nodes;
  for (TokenId token = 0; token < 6; ++token) {
    nodes.push_back(index.Insert(ParentKey::Root(1), kRootHash, hash, Tokens{token, token}));
  }

  index.Remove(nodes[2]);

  for (TokenId token = 0; token < 6; ++token) {
    const NodeId expected = token == 2 ? kNoNode : nodes[static_cast<std::size_t>(token)];
    EXPECT_EQ(index.Find(ParentKey::Root(1), hash, Tokens{token, token}), expected);
  }
}

TEST(PrefixIndex, RefusesASecondNodeOfEqualContent) {
  PrefixIndex index(4, 2);
  Insert(index, ParentKey::Root(1), {1, 2});

  EXPECT_THROW(Insert(index, ParentKey::Root(1), {1, 2}), InvariantError);
}

TEST(PrefixIndex, RefusesToRemoveANodeWithChildren) {
  PrefixIndex index(4, 2);
  const NodeId top = Insert(index, ParentKey::Root(1), {1, 2});
  const NodeId leaf = Insert(index, ParentKey::Node(top), {3, 4});

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
      present.emplace_back(i, Insert(index, ParentKey::Root(1), {i}));
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
    chain.push_back(Insert(index, parent, {7}));
    parent = ParentKey::Node(chain.back());
  }

  for (; !chain.empty(); chain.pop_back()) {
    index.Remove(chain.back());
  }

  EXPECT_EQ(index.num_nodes(), 0);
}

TEST(PrefixIndex, APartialNodeIsAChildThatTheTableDoesNotKnow) {
  PrefixIndex index(4, 3);
  const NodeId top = Insert(index, ParentKey::Root(1), {1, 2, 3});
  const NodeId partial = Insert(index, ParentKey::Node(top), {4, 5});

  EXPECT_FALSE(index.is_whole(partial));
  EXPECT_EQ(index.num_children(top), 1);
  EXPECT_EQ(index.num_partial_children(ParentKey::Node(top)), 1);
  EXPECT_EQ(index.CommonTokens(partial, Tokens{4, 5, 6}), 2);
  EXPECT_EQ(index.CommonTokens(partial, Tokens{4}), 1);
  EXPECT_EQ(index.CommonTokens(partial, Tokens{5}), 0);
  EXPECT_THROW(Insert(index, ParentKey::Node(partial), {7}), InvariantError);
}

TEST(PrefixIndex, APartialNodeGrowsUntilItIsWhole) {
  PrefixIndex index(4, 3);
  const NodeId node = Insert(index, ParentKey::Root(1), {4});
  const std::uint64_t uid = index.uid(node);
  index.AddMark(node);

  index.Grow(node, 0, Tokens{4, 5});
  EXPECT_EQ(Find(index, ParentKey::Root(1), {4, 5, 6}), kNoNode);
  index.Grow(node, HashTokens(Tokens{4, 5, 6}), Tokens{4, 5, 6});

  EXPECT_EQ(Find(index, ParentKey::Root(1), {4, 5, 6}), node);
  EXPECT_EQ(index.path_hash(node), PathHashes(kRootHash, Tokens{4, 5, 6}, 3)[0]);
  EXPECT_EQ(index.num_partial_children(ParentKey::Root(1)), 0);
  EXPECT_TRUE(index.alive(node, uid));
  EXPECT_EQ(index.num_marks(node), 1);
  index.CheckInvariants();
}

TEST(PrefixIndex, TokensThatWereThereNeverChange) {
  PrefixIndex index(4, 3);
  const NodeId node = Insert(index, ParentKey::Root(1), {4, 5});

  EXPECT_THROW(index.Grow(node, 0, Tokens{4, 6, 7}), InvariantError);
  EXPECT_THROW(index.Grow(node, 0, Tokens{4, 5}), InvariantError);
}

TEST(PrefixIndex, ChildrenAreListedLatestFirst) {
  PrefixIndex index(8, 1);
  const NodeId top = Insert(index, ParentKey::Root(1), {0});
  std::vector<NodeId> nodes;
  for (const TokenId token : {1, 2, 3, 4}) {
    nodes.push_back(Insert(index, ParentKey::Node(top), {token}));
  }

  EXPECT_EQ(Children(index, ParentKey::Node(top)), (Tokens{4, 3, 2, 1}));
  index.Remove(nodes[1]);
  EXPECT_EQ(Children(index, ParentKey::Node(top)), (Tokens{4, 3, 1}));
  index.Remove(nodes[3]);
  index.Remove(nodes[0]);
  EXPECT_EQ(Children(index, ParentKey::Node(top)), (Tokens{3}));
  index.CheckInvariants();
}

TEST(PrefixIndex, ARootIsKnownWhileItHasChildren) {
  PrefixIndex index(4, 1);
  const NodeId node = Insert(index, ParentKey::Root(7), {1});
  EXPECT_EQ(index.num_roots(), 1U);
  EXPECT_EQ(Children(index, ParentKey::Root(7)), (Tokens{1}));

  index.Remove(node);

  EXPECT_EQ(index.num_roots(), 0U);
  EXPECT_EQ(index.first_child(ParentKey::Root(7)), kNoNode);
}

TEST(PrefixIndex, ChildrenOnTheDeviceAreCountedApart) {
  PrefixIndex index(4, 1);
  const NodeId top = Insert(index, ParentKey::Root(1), {1});
  const NodeId leaf = Insert(index, ParentKey::Node(top), {2});
  index.SetBlock(top, Tier::kDevice, 1);
  index.SetBlock(leaf, Tier::kDevice, 2);
  index.SetBlock(leaf, Tier::kHost, 3);
  EXPECT_EQ(index.num_device_children(top), 1);

  index.SetBlock(leaf, Tier::kDevice, 4);
  EXPECT_EQ(index.num_device_children(top), 1);
  index.SetBlock(leaf, Tier::kDevice, kNoBlock);

  EXPECT_EQ(index.num_device_children(top), 0);
  EXPECT_EQ(index.num_children(top), 1);
  EXPECT_EQ(index.block(leaf, Tier::kHost), 3);
  index.CheckInvariants();
}

TEST(PrefixIndex, AChildThatIsRemovedIsOnTheDeviceNoMore) {
  PrefixIndex index(4, 1);
  const NodeId top = Insert(index, ParentKey::Root(1), {1});
  const NodeId leaf = Insert(index, ParentKey::Node(top), {2});
  index.SetBlock(leaf, Tier::kDevice, 2);

  index.Remove(leaf);

  EXPECT_EQ(index.num_device_children(top), 0);
}

TEST(PrefixIndex, AChildOnTheDeviceBelowAParentOnTheHostIsFoundOut) {
  PrefixIndex index(4, 1);
  const NodeId top = Insert(index, ParentKey::Root(1), {1});
  index.SetBlock(top, Tier::kHost, 1);
  index.SetBlock(Insert(index, ParentKey::Node(top), {2}), Tier::kDevice, 2);

  EXPECT_THROW(index.CheckInvariants(), InvariantError);
}

TEST(PathHashes, AreTheFormulaThatRoutersUse) {
  // Computed from the formula in prefix_index.h, not by this code.
  const std::vector<std::uint64_t> hashes = PathHashes(1, Tokens{1, 2, 3, 4, 5}, 2);

  ASSERT_EQ(hashes.size(), 2U);
  EXPECT_EQ(hashes[0], 0x92e610a94d8e8811ULL);
  EXPECT_EQ(hashes[1], 0x54cfb094ad35f2e1ULL);
}

TEST(PathHashes, DependOnAllThatComesBefore) {
  const Tokens tokens = {1, 2, 1, 2};

  EXPECT_NE(PathHashes(1, tokens, 2)[0], PathHashes(1, tokens, 2)[1]);
  EXPECT_NE(PathHashes(1, tokens, 2)[0], PathHashes(2, tokens, 2)[0]);
  EXPECT_EQ(PathHashes(1, tokens, 2)[1], PathHashes(1, Tokens{1, 2, 1, 2, 9}, 2)[1]);
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
