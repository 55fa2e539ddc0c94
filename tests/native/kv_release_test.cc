// Letting go: what stays of a chain, and what of it goes first.
#include <gtest/gtest.h>

#include "antiphon/kv_cache.h"
#include "kv_cache_fixture.h"

namespace antiphon {
namespace {

class KvReleaseTest : public KvCacheFixture {
 protected:
  void SetUp() override {
    KvCacheConfig config = Config(/*num_blocks=*/8);
    config.partial_reuse = false;
    Open(config);
  }
};

TEST_F(KvReleaseTest, Fault19_ReleaseIsIdempotent) {
  BlockChain chain = Compute({1, 2, 3, 4, 5});
  const ScopeId scope = chain.scope;

  cache_->Release(chain, kA, kKeepAll);
  cache_->Release(chain, kA, kKeepAll);

  EXPECT_EQ(cache_->num_available(), 7);
  EXPECT_EQ(cache_->device().num_cached(), 1);
  EXPECT_EQ(chain.scope, scope);
}

TEST_F(KvReleaseTest, Fault20_ASharedBlockIsCountedOnce) {
  std::vector<BlockChain> chains;
  for (int i = 0; i < 5; ++i) {
    chains.push_back(Compute(kAB));
  }

  EXPECT_EQ(cache_->device().num_referenced(), 2);
  EXPECT_EQ(cache_->num_available(), 5);
  for (BlockChain& chain : chains) {
    cache_->Release(chain, kAB, kKeepAll);
    cache_->CheckInvariants();
  }

  EXPECT_EQ(cache_->num_available(), 7);
}

TEST_F(KvReleaseTest, Fault14_WhatWasNotComputedIsNotServed) {
  // Aborted when only the first block was computed; the second block's content is unknown.
  BlockChain chain = NewChain();
  cache_->Extend(chain, 2);
  Publish(chain, kA);

  cache_->Release(chain, kA, kKeepAll);

  EXPECT_EQ(NumFound(kAB), 1U);
  EXPECT_EQ(cache_->device().num_cached(), 1);
}

TEST_F(KvReleaseTest, WholeBlocksThatWereComputedAreStoredWhenTheirRequestIsAborted) {
  BlockChain chain = NewChain();
  cache_->Extend(chain, 3);

  const NodeId last = cache_->Release(chain, kAB, kKeepAll);

  EXPECT_EQ(NumFound(kAB), 2U);
  EXPECT_EQ(last, Match(kAB).nodes[1]);
}

TEST_F(KvReleaseTest, AbortedDuplicateGivesItsOwnBlocksBack) {
  Cache(kAB);
  BlockChain chain = NewChain();
  cache_->Extend(chain, 2);

  cache_->Release(chain, kAB, kKeepAll);

  EXPECT_EQ(cache_->device().num_cached(), 2);
  EXPECT_EQ(cache_->num_available(), 7);
}

TEST_F(KvReleaseTest, UnwantedBlocksAreEmptiedUnlessOthersUseThem) {
  BlockChain first = Compute(kABC);
  BlockChain second = NewChain();
  cache_->Claim(Match(kAB), second);

  const NodeId last = cache_->Release(first, kABC, /*num_wanted=*/4);

  EXPECT_EQ(NumFound(kABC), 2U);
  EXPECT_EQ(last, Match(kAB).nodes[0]);
  EXPECT_EQ(cache_->device().num_cached(), 0);
}

TEST_F(KvReleaseTest, AMarkedBlockIsKeptThoughItIsUnwanted) {
  BlockChain chain = Compute(kAB);
  cache_->AddMark(chain.tip);

  cache_->Release(chain, kAB, /*num_wanted=*/4);

  EXPECT_EQ(NumFound(kAB), 2U);
}

TEST_F(KvReleaseTest, DemotedPathGoesFirstUpToWhatIsShared) {
  Cache(kAX, {.priority = 0});
  const NodeId tip = Cache(kABC, {.priority = 100});
  Cache(kY, {.priority = 0});

  cache_->Demote(tip);
  Evict(2);

  EXPECT_EQ(NumFound(kABC), 1U);
  EXPECT_EQ(NumFound(kAX), 2U);
  EXPECT_EQ(NumFound(kY), 1U);
}

TEST_F(KvReleaseTest, DemotingStopsAtAMarkAndAtAReference) {
  const NodeId tip = Cache(kABC);
  const NodeId middle = Match(kAB).nodes[1];
  cache_->AddMark(middle);
  Cache(kY, {.priority = 0});

  cache_->Demote(tip);
  cache_->Demote(middle);
  Evict(2);
  EXPECT_EQ(NumFound(kABC), 2U);
  EXPECT_EQ(NumFound(kY), 0U);

  cache_->DropMark(middle);
  Cache(kY, {.priority = 0});
  BlockChain user = NewChain();
  cache_->Claim(Match(kA), user);
  cache_->Demote(middle);
  Evict(1);
  EXPECT_EQ(NumFound(kABC), 1U);
  EXPECT_EQ(NumFound(kY), 1U);
}

TEST_F(KvReleaseTest, ADemotedBlockThatIsUsedAgainIsRetainedAgain) {
  const NodeId tip = Cache(kA);
  cache_->Demote(tip);
  BlockChain again = NewChain();
  cache_->Claim(Match(kA), again);
  cache_->Release(again, kA, kKeepAll);
  Cache(kY, {.priority = 20});

  Evict(1);

  EXPECT_EQ(NumFound(kA), 1U);
  EXPECT_EQ(NumFound(kY), 0U);
}

TEST_F(KvReleaseTest, ANodesUidTellsLateReferences) {
  const NodeId node = Cache(kA);
  const std::uint64_t uid = cache_->index().uid(node);
  EXPECT_TRUE(cache_->index().alive(node, uid));

  cache_->Flush();
  EXPECT_FALSE(cache_->index().alive(node, uid));

  EXPECT_EQ(Cache(kY), node);
  EXPECT_FALSE(cache_->index().alive(node, uid));
}

}  // namespace
}  // namespace antiphon
