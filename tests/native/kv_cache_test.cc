#include "antiphon/kv_cache.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include "kv_cache_fixture.h"

namespace antiphon {
namespace {

class KvCacheTest : public KvCacheFixture {
 protected:
  void SetUp() override {
    KvCacheConfig config = Config(/*num_blocks=*/8);
    config.partial_reuse = false;
    Open(config);
  }
};

TEST_F(KvCacheTest, NothingIsFoundBeforeItIsPublished) {
  BlockChain chain = NewChain();
  cache_->Extend(chain, 2);

  EXPECT_EQ(NumFound(kAB), 0U);
}

TEST_F(KvCacheTest, LiveHitsAreCountedApart) {
  BlockChain chain = Compute(kAB);
  EXPECT_EQ(Match(kAB).num_live, 2);

  cache_->Release(chain, kAB, kKeepAll);

  EXPECT_EQ(NumFound(kAB), 2U);
  EXPECT_EQ(Match(kAB).num_live, 0);
}

TEST_F(KvCacheTest, AMatchStopsAtTheTokensThatItMayFind) {
  Cache(kAB);

  EXPECT_EQ(Match(kAB, 8).nodes.size(), 2U);
  EXPECT_EQ(Match(kAB, 7).nodes.size(), 1U);
  EXPECT_EQ(Match(kAB, 3).nodes.size(), 0U);
}

TEST_F(KvCacheTest, ClaimedBlocksAreNotEvicted) {
  Cache(kAB);
  BlockChain second = NewChain();
  EXPECT_EQ(cache_->Claim(Match(kAB), second), 8);

  BlockChain other = NewChain();
  cache_->Extend(other, cache_->num_available());

  EXPECT_EQ(cache_->num_evictions(), 0);
  EXPECT_EQ(Match(kAB).num_live, 2);
}

TEST_F(KvCacheTest, MoreThanThereIsIsRefused) {
  BlockChain chain = NewChain();

  EXPECT_THROW(cache_->Extend(chain, 8), InvariantError);
}

TEST_F(KvCacheTest, EvictsLeavesFirstAndTheOldestOfThem) {
  Cache(kAB);
  Cache(kAX);

  Evict(1);
  EXPECT_EQ(NumFound(kAB), 1U);
  EXPECT_EQ(NumFound(kAX), 2U);

  Evict(1);
  EXPECT_EQ(NumFound(kAX), 1U);
  EXPECT_EQ(cache_->num_evictions(), 2);
}

TEST_F(KvCacheTest, Fault17_ANodeWithChildrenIsNeverEvicted) {
  Cache(kABC, {.priority = 10});
  Cache(kA, {.priority = 10});  // the top is the oldest no more, but its children are
  Cache(kY, {.priority = 20});

  for (std::size_t left = 3; left > 0; --left) {
    EXPECT_EQ(NumFound(kABC), left);
    Evict(1);
  }

  EXPECT_EQ(NumFound(kABC), 0U);
  EXPECT_EQ(NumFound(kY), 1U);
}

TEST_F(KvCacheTest, ALeafOfHigherPriorityKeepsItsPath) {
  Cache(kA, {.priority = 0});
  Cache(kAB, {.priority = 90});
  Cache(kY, {.priority = 50});

  Evict(1);

  EXPECT_EQ(NumFound(kAB), 2U);
  EXPECT_EQ(NumFound(kY), 0U);
}

TEST_F(KvCacheTest, ChainMovesToTheBlockThatHoldsTheSameAlready) {
  const BlockChain first = Compute(kAB);

  BlockChain second = NewChain();
  cache_->Extend(second, 2);
  second.num_sent = 1;
  const BlockId own = second.blocks[0];
  const BlockId replaced = cache_->PublishNext(second, HashTokens(kA), kA);

  EXPECT_EQ(replaced, own);
  EXPECT_EQ(cache_->device().reference_count(own), 1);
  EXPECT_EQ(second.blocks[0], first.blocks[0]);
  EXPECT_EQ(second.moved, (std::vector<std::int32_t>{0}));
  cache_->DropReference(replaced);
  Publish(second, kAB);
  EXPECT_EQ(second.blocks, first.blocks);
  EXPECT_EQ(second.moved, (std::vector<std::int32_t>{0}));
  EXPECT_EQ(cache_->device().num_referenced(), 2);
}

TEST_F(KvCacheTest, ChainBelowAnotherRequestsBlockKeepsItAlive) {
  BlockChain first = Compute(kA);
  const BlockChain second = Compute(kAB);
  cache_->Release(first, kA, kKeepAll);

  BlockChain other = NewChain();
  cache_->Extend(other, cache_->num_available());

  EXPECT_EQ(Match(kAB).num_live, 2);
}

TEST_F(KvCacheTest, AChainFollowsWhatOthersPublish) {
  BlockChain first = Compute(kAB);
  BlockChain second = NewChain();

  EXPECT_TRUE(cache_->ClaimNext(second, HashTokens(kA), kA));
  EXPECT_TRUE(cache_->ClaimNext(second, HashTokens(Block(kAB, 1)), Block(kAB, 1)));
  EXPECT_FALSE(cache_->ClaimNext(second, HashTokens(kY), kY));

  EXPECT_EQ(second.blocks, first.blocks);
  EXPECT_EQ(second.num_published, 2);
}

TEST_F(KvCacheTest, Fault21_TheDepthThatIsBudgetedIsTheDepthThatIsClaimed) {
  BlockChain leader = Compute(kA);
  const PrefixMatch match = Match(kAB);
  BlockChain follower = NewChain();

  EXPECT_EQ(cache_->Claim(match, follower), 4);
  EXPECT_EQ(follower.num_published, static_cast<std::int32_t>(match.nodes.size()));

  // What is computed later is found by asking again, not by the old match.
  cache_->Extend(leader, 1);
  Publish(leader, kAB);
  EXPECT_EQ(follower.blocks.size(), 1U);
}

TEST_F(KvCacheTest, FlushForgetsWhatNobodyUses) {
  BlockChain held = Compute(kAB);
  Cache(kY);

  EXPECT_EQ(cache_->Flush(), 1);

  EXPECT_EQ(NumFound(kAB), 2U);
  EXPECT_EQ(NumFound(kY), 0U);
  EXPECT_EQ(cache_->num_evictions(), 0);
}

TEST_F(KvCacheTest, NodesKeepTheirScopeKnown) {
  const ScopeId used = Scope();
  Cache(kAB);
  EXPECT_EQ(scopes_.num_uses(used), 2);

  cache_->Flush();

  EXPECT_EQ(scopes_.num_uses(used), 0);
}

TEST_F(KvCacheTest, Fault15_PublishingInAFullPoolNeverDetachesTheChain) {
  // A long prompt fills the pool step by step; whatever it evicts, its own path stays whole.
  Cache(kY);
  BlockChain chain = NewChain();
  Tokens prompt;
  for (TokenId token = 0; token < 7 * kBlockTokens; ++token) {
    prompt.push_back(token + 1000);
  }
  for (std::size_t end = kBlockTokens; end <= prompt.size(); end += kBlockTokens) {
    cache_->Extend(chain, 1);
    Publish(chain, Tokens(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(end)));
    cache_->CheckInvariants();
  }

  EXPECT_EQ(NumFound(prompt), 7U);
  EXPECT_EQ(cache_->num_available(), 0);
  cache_->Release(chain, prompt, kKeepAll);
  EXPECT_EQ(cache_->num_available(), 7);
}

TEST_F(KvCacheTest, Fault23_ScopesNeverShare) {
  const std::vector<ScopeFields> fields = {
      {.tenant = "a", .cache_scope = "", .adapter = "", .weights = ""},
      {.tenant = "", .cache_scope = "a", .adapter = "", .weights = ""},
      {.tenant = "", .cache_scope = "", .adapter = "a", .weights = ""},
      {.tenant = "", .cache_scope = "", .adapter = "", .weights = "a"},
  };
  BlockChain chain;
  chain.scope = scopes_.Intern(fields[0]);
  cache_->Extend(chain, 1);
  Publish(chain, kA);

  for (const ScopeFields& each : fields) {
    PrefixMatch match;
    cache_->Match(scopes_.Intern(each), kA, HashBlocks(kA, kBlockTokens), kKeepAll, match);
    EXPECT_EQ(match.nodes.size(), each.tenant == "a" ? 1U : 0U);
  }
}

TEST_F(KvCacheTest, WithoutReuseNothingIsPublished) {
  KvCacheConfig config = Config(8);
  config.prefix_reuse = false;
  Open(config);
  BlockChain chain = NewChain();
  cache_->Extend(chain, 2);

  EXPECT_EQ(cache_->Release(chain, kAB, kKeepAll), kNoNode);

  EXPECT_EQ(NumFound(kAB), 0U);
  EXPECT_EQ(cache_->device().num_clean(), 7);
}

constexpr std::int32_t kNumManyBlocks = 100'000;

void* LetGoOfALongChain(void* /*argument*/) {
  ScopeTable scopes;
  KvCacheConfig config;
  config.num_blocks = kNumManyBlocks + 1;
  config.block_tokens = 1;
  KvCache cache(config, &scopes);
  BlockChain chain;
  chain.scope = scopes.Intern({});
  cache.Extend(chain, kNumManyBlocks);
  const Tokens tokens(kNumManyBlocks, 7);
  const NodeId tip = cache.Release(chain, tokens, kKeepAll);
  EXPECT_EQ(cache.device().num_cached(), kNumManyBlocks);
  cache.Demote(tip);
  EXPECT_EQ(cache.Flush(), kNumManyBlocks);
  EXPECT_EQ(cache.index().num_nodes(), 0);
  return nullptr;
}

TEST(KvCache, Fault16_AChainOfManyBlocksIsLetGoOnASmallStack) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, std::size_t{256} * 1024), 0);
  pthread_t thread = {};
  ASSERT_EQ(pthread_create(&thread, &attributes, LetGoOfALongChain, nullptr), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
}

}  // namespace
}  // namespace antiphon
