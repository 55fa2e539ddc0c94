#include "antiphon/kv_cache.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

namespace antiphon {
namespace {

constexpr std::int32_t kKeepAll = std::numeric_limits<std::int32_t>::max();

class KvCacheTest : public ::testing::Test {
 protected:
  static constexpr std::int32_t kBlockTokens = 2;

  ScopeId scope() {
    return scopes_.Intern({.tenant = "t", .cache_scope = "", .adapter = "", .weights = ""});
  }

  BlockChain NewChain() {
    BlockChain chain;
    chain.scope = scope();
    return chain;
  }

  // Takes blocks for `tokens` and publishes the whole ones, as after a step.
  BlockChain Compute(const std::vector<TokenId>& tokens) {
    BlockChain chain = NewChain();
    cache_.Extend(chain, BlocksFor(static_cast<std::int64_t>(tokens.size()), kBlockTokens));
    chain.num_sent = static_cast<std::int32_t>(chain.blocks.size());
    Publish(chain, tokens);
    return chain;
  }

  void Publish(BlockChain& chain, const std::vector<TokenId>& tokens) {
    const std::span<const TokenId> all(tokens);
    for (const std::uint64_t hash : HashBlocks(tokens, kBlockTokens)) {
      const auto start = static_cast<std::size_t>(chain.num_published) * kBlockTokens;
      cache_.PublishNext(chain, hash, all.subspan(start, kBlockTokens));
    }
  }

  PrefixMatch Match(const std::vector<TokenId>& tokens) {
    PrefixMatch match;
    cache_.Match(scope(), tokens, HashBlocks(tokens, kBlockTokens), 100, match);
    return match;
  }

  ScopeTable scopes_;
  KvCache cache_{6, kBlockTokens, true, &scopes_};
};

TEST_F(KvCacheTest, NothingIsFoundBeforeItIsPublished) {
  BlockChain chain = NewChain();
  cache_.Extend(chain, 2);

  EXPECT_TRUE(Match({1, 2, 3, 4}).nodes.empty());
}

TEST_F(KvCacheTest, LiveHitsAreCountedApart) {
  BlockChain chain = Compute({1, 2, 3, 4});
  EXPECT_EQ(Match({1, 2, 3, 4}).num_live, 2);

  cache_.Release(chain, kKeepAll);

  EXPECT_EQ(Match({1, 2, 3, 4}).nodes.size(), 2U);
  EXPECT_EQ(Match({1, 2, 3, 4}).num_live, 0);
}

TEST_F(KvCacheTest, ClaimedBlocksAreNotEvicted) {
  BlockChain first = Compute({1, 2, 3, 4});
  cache_.Release(first, kKeepAll);
  BlockChain second = NewChain();
  cache_.Claim(Match({1, 2, 3, 4}), second);

  BlockChain other = NewChain();
  cache_.Extend(other, cache_.num_available());

  EXPECT_EQ(cache_.num_evictions(), 0);
  EXPECT_EQ(Match({1, 2, 3, 4}).num_live, 2);
  cache_.CheckInvariants();
}

TEST_F(KvCacheTest, EvictsLeavesFirstAndTheOldestOfThem) {
  BlockChain old = Compute({1, 2, 3, 4});
  BlockChain recent = Compute({1, 2, 5, 6});
  cache_.Release(old, kKeepAll);
  cache_.Release(recent, kKeepAll);
  BlockChain other = NewChain();

  cache_.Extend(other, cache_.pool().num_clean() + 1);
  EXPECT_EQ(Match({1, 2, 3, 4}).nodes.size(), 1U);
  EXPECT_EQ(Match({1, 2, 5, 6}).nodes.size(), 2U);

  cache_.Extend(other, 1);
  EXPECT_EQ(Match({1, 2, 5, 6}).nodes.size(), 1U);
  EXPECT_EQ(cache_.num_evictions(), 2);
  cache_.CheckInvariants();
}

TEST_F(KvCacheTest, ChainMovesToTheBlockThatHoldsTheSameAlready) {
  const BlockChain first = Compute({1, 2, 3, 4});

  const BlockChain second = Compute({1, 2, 3, 4});

  EXPECT_EQ(second.blocks, first.blocks);
  EXPECT_EQ(second.moved, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(cache_.pool().num_referenced(), 2);
  cache_.CheckInvariants();
}

TEST_F(KvCacheTest, ChainBelowAnotherRequestsBlockKeepsItAlive) {
  BlockChain first = Compute({1, 2});
  BlockChain second = Compute({1, 2, 3, 4});
  cache_.Release(first, kKeepAll);

  BlockChain other = NewChain();
  cache_.Extend(other, cache_.num_available());

  EXPECT_EQ(Match({1, 2, 3, 4}).num_live, 2);
  cache_.CheckInvariants();
}

TEST_F(KvCacheTest, ReleaseIsIdempotent) {
  BlockChain chain = Compute({1, 2, 3});

  cache_.Release(chain, kKeepAll);
  cache_.Release(chain, kKeepAll);

  EXPECT_EQ(cache_.num_available(), 5);
  EXPECT_EQ(cache_.pool().num_cached(), 1);
  cache_.CheckInvariants();
}

TEST_F(KvCacheTest, UnwantedBlocksAreEmptiedUnlessOthersUseThem) {
  BlockChain first = Compute({1, 2, 3, 4, 5, 6});
  BlockChain second = NewChain();
  cache_.Claim(Match({1, 2, 3, 4}), second);

  cache_.Release(first, /*num_wanted=*/1);

  EXPECT_EQ(Match({1, 2, 3, 4, 5, 6}).nodes.size(), 2U);
  EXPECT_EQ(cache_.pool().num_cached(), 0);
  cache_.CheckInvariants();
}

TEST_F(KvCacheTest, FlushForgetsWhatNobodyUses) {
  BlockChain held = Compute({1, 2, 3, 4});
  BlockChain gone = Compute({5, 6});
  cache_.Release(gone, kKeepAll);

  EXPECT_EQ(cache_.Flush(), 1);

  EXPECT_EQ(Match({1, 2, 3, 4}).nodes.size(), 2U);
  EXPECT_TRUE(Match({5, 6}).nodes.empty());
  EXPECT_EQ(cache_.num_evictions(), 0);
}

TEST_F(KvCacheTest, NodesKeepTheirScopeKnown) {
  const ScopeId used = scope();
  BlockChain chain = Compute({1, 2, 3, 4});
  cache_.Release(chain, kKeepAll);
  EXPECT_EQ(scopes_.num_uses(used), 2);

  cache_.Flush();

  EXPECT_EQ(scopes_.num_uses(used), 0);
}

}  // namespace
}  // namespace antiphon
