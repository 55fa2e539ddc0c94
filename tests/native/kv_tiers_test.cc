// The host tier: what is offloaded, what makes room for it, what is held meanwhile.
#include <gtest/gtest.h>

#include "antiphon/kv_cache.h"
#include "kv_cache_fixture.h"

namespace antiphon {
namespace {

class KvTiersTest : public KvCacheFixture {
 protected:
  void SetUp() override { Open(Config(/*num_blocks=*/5, /*num_host_blocks=*/2)); }
};

TEST_F(KvTiersTest, AnEvictedBlockIsCopiedToTheHostAndFoundWhenTheStepIsCommitted) {
  Cache(kAB);
  const BlockId source = cache_->index().block(Match(kAB).nodes[1], Tier::kDevice);

  Evict(1);

  ASSERT_EQ(cache_->copies().size(), 1U);
  EXPECT_EQ(cache_->copies()[0], (CopyOp{.kind = CopyKind::kOffload,
                                         .source_tier = Tier::kDevice,
                                         .source = source,
                                         .destination = 1,
                                         .num_tokens = kBlockTokens}));
  EXPECT_EQ(Found(kAB), (Depths{1, 0}));
  NextStep();
  EXPECT_EQ(Found(kAB), (Depths{1, 1}));
  EXPECT_EQ(cache_->num_offloads(), 1);
}

TEST_F(KvTiersTest, ACommittedOffloadIsAChangeOfWhatIsFound) {
  Cache(kA);
  Evict(1);
  StepHolds holds = cache_->TakeHolds();
  cache_->BeginStep(now_us_, kMaxCopies);
  const std::uint64_t num_changes = cache_->num_changes();
  EXPECT_EQ(Found(kA), (Depths{0, 0}));

  cache_->EndStep(holds);

  EXPECT_EQ(Found(kA), (Depths{0, 1}));
  EXPECT_GT(cache_->num_changes(), num_changes);
}

TEST_F(KvTiersTest, ABlockWithAHostCopyIsTakenOffTheDeviceWithoutACopy) {
  Cache(kA);
  Evict(1);
  NextStep();
  BlockChain chain = NewChain();
  Start(chain, kA);
  cache_->Release(chain, kA, kKeepAll);
  NextStep();

  Evict(1);

  EXPECT_TRUE(cache_->copies().empty());
  EXPECT_EQ(Found(kA), (Depths{0, 1}));
}

TEST_F(KvTiersTest, Fault13_CountsOfBothTiersNeverDrift) {
  for (int i = 0; i < 20; ++i) {
    const TokenId first = i % 3;
    const Tokens tokens = {first, 2, 3, 4, 5, 6, 7, 8};
    BlockChain chain = NewChain();
    Start(chain, tokens);
    Publish(chain, tokens);
    cache_->Release(chain, tokens, kKeepAll);
    cache_->CheckInvariants();
    NextStep();
    cache_->CheckInvariants();
    EXPECT_EQ(cache_->num_available(), 4);
    EXPECT_EQ(cache_->host().num_available(), 2);
  }
  EXPECT_GT(cache_->num_offloads(), 5);
  EXPECT_GT(cache_->num_onloads(), 0);
}

TEST_F(KvTiersTest, TheHostsLeastGoesFirstAndNoneOfHigherPriority) {
  Cache(kY, {.priority = 80});
  Cache(kZ, {.priority = 30});
  Evict(2);
  NextStep();

  Cache(kA, {.priority = 20});
  Evict(1);
  NextStep();
  EXPECT_EQ(Found(kA), (Depths{0, 0}));
  EXPECT_EQ(Found(kZ), (Depths{0, 1}));

  Cache(kA, {.priority = 30});
  Evict(1);
  NextStep();
  EXPECT_EQ(Found(kA), (Depths{0, 1}));
  EXPECT_EQ(Found(kZ), (Depths{0, 0}));
  EXPECT_EQ(Found(kY), (Depths{0, 1}));
}

TEST_F(KvTiersTest, OnTheHostToo_ANodeWithChildrenIsNeverEvicted) {
  Cache(kAB, {.priority = 50});
  Evict(2);
  NextStep();

  Cache(kY, {.priority = 50});
  Evict(1);
  NextStep();

  EXPECT_EQ(Found(kAB), (Depths{0, 1}));
  EXPECT_EQ(Found(kY), (Depths{0, 1}));
}

TEST_F(KvTiersTest, AHostCopyOfWhatIsOnTheDeviceCanGoWithoutLoss) {
  Open(Config(/*num_blocks=*/5, /*num_host_blocks=*/1));
  Cache(kA);
  Evict(1);
  NextStep();
  BlockChain chain = NewChain();
  Start(chain, kA);
  NextStep();

  Cache(kY);
  Evict(1);
  NextStep();

  EXPECT_EQ(Found(kA), (Depths{1, 0}));
  EXPECT_EQ(Found(kY), (Depths{0, 1}));
}

TEST_F(KvTiersTest, OnlyWhatIsWorthItIsOffloaded) {
  KvCacheConfig config = Config(8, 4);
  config.offload_min_priority = 40;
  config.offload_min_hits = 1;
  Open(config);
  Cache(kA, {.priority = 39});
  Cache(kY, {.priority = 40});
  Cache(kZ, {.priority = 40});
  for (const Tokens& tokens : {kA, kY}) {
    BlockChain chain = NewChain({.priority = 0});
    cache_->Claim(Match(tokens), chain);
    cache_->Release(chain, tokens, kKeepAll);
  }

  Evict(3);
  NextStep();

  EXPECT_EQ(Found(kA), (Depths{0, 0}));
  EXPECT_EQ(Found(kZ), (Depths{0, 0}));
  EXPECT_EQ(Found(kY), (Depths{0, 1}));
}

TEST_F(KvTiersTest, WhatWasDemotedIsNotOffloaded) {
  cache_->Demote(Cache(kA));

  Evict(1);

  EXPECT_EQ(cache_->num_offloads(), 0);
  EXPECT_EQ(cache_->index().num_nodes(), 0);
}

TEST_F(KvTiersTest, Fault34_AFailedHostAllocationIsNoBackup) {
  KvCacheConfig config = Config(5, 4);
  config.fail_host_allocation_every = 2;
  Open(config);
  Cache(kAB);

  Evict(2);
  NextStep();

  // The second allocation failed, so that the first block is gone and with it what was below.
  EXPECT_EQ(Found(kAB), (Depths{0, 0}));
  EXPECT_EQ(cache_->index().num_nodes(), 0);
  EXPECT_EQ(cache_->host().num_clean(), 4);
}

TEST_F(KvTiersTest, Fault34_AHostBlockIsNotReusedWhileACopyIsUnderWay) {
  Cache(kY);
  Cache(kZ);
  Evict(2);
  StepHolds first = cache_->TakeHolds();
  cache_->BeginStep(now_us_, kMaxCopies);

  // Both host blocks are still being written: nothing else fits.
  Cache(kA);
  Evict(1);
  EXPECT_TRUE(cache_->copies().empty());
  EXPECT_EQ(Found(kA), (Depths{0, 0}));

  cache_->EndStep(first);
}

TEST_F(KvTiersTest, Fault34_NorWhenItsNodeIsForgottenMeanwhile) {
  Cache(kAB);
  Evict(1);
  StepHolds holds = cache_->TakeHolds();
  cache_->BeginStep(now_us_, /*max_copies=*/0);

  Evict(1);

  EXPECT_EQ(cache_->index().num_nodes(), 0);
  EXPECT_EQ(cache_->host().reference_count(1), 1);
  EXPECT_EQ(cache_->host().num_clean(), 1);
  cache_->EndStep(holds);
  EXPECT_EQ(cache_->host().num_clean(), 2);
}

TEST_F(KvTiersTest, Fault34_NothingOnTheHostAloneHasAChildOnTheDevice) {
  Cache(kABC);
  for (int i = 0; i < 3; ++i) {
    Evict(1);
    NextStep();
    cache_->CheckInvariants();  // says so if it were
  }

  // The host had room for two: the deepest made room for those above it.
  EXPECT_EQ(Found(kABC), (Depths{0, 2}));
}

TEST_F(KvTiersTest, ADroppedBlockTakesItsDescendantsOnTheHostAlong) {
  KvCacheConfig config = Config(5, 4);
  config.offload_min_hits = 1;
  Open(config);
  Cache(kABC);
  BlockChain chain = NewChain();
  cache_->Claim(Match(kABC), chain);
  cache_->Release(chain, kABC, kKeepAll);
  Evict(2);
  NextStep();
  EXPECT_EQ(Found(kABC), (Depths{1, 2}));

  cache_->Demote(Match(kA).nodes[0]);
  EXPECT_EQ(Found(kABC), (Depths{1, 2}));  // it has children: they are a need
  cache_->BeginStep(now_us_, /*max_copies=*/0);
  Evict(1);

  EXPECT_EQ(cache_->index().num_nodes(), 0);
  EXPECT_EQ(cache_->host().num_clean(), 4);
}

TEST_F(KvTiersTest, AStepHasNoMoreCopiesThanItMay) {
  StepHolds none = cache_->TakeHolds();
  cache_->BeginStep(now_us_, /*max_copies=*/1);
  Cache(kY);
  Cache(kZ);

  Evict(2);

  EXPECT_EQ(cache_->copies().size(), 1U);
  EXPECT_EQ(cache_->num_copies_left(), 0);
  NextStep();
  EXPECT_EQ(Found(kY), (Depths{0, 1}));
  EXPECT_EQ(Found(kZ), (Depths{0, 0}));
}

TEST_F(KvTiersTest, AGrownTailLosesTheHostCopyOfItsBeginning) {
  Cache({1, 2, 3});
  Evict(1);
  NextStep();
  BlockChain chain = Compute({1, 2, 3});
  cache_->PublishPartial(chain, Tokens{1, 2, 3});
  EXPECT_EQ(cache_->host().num_cached(), 1);
  EXPECT_EQ(cache_->index().num_nodes(), 1);

  Publish(chain, kA);

  EXPECT_EQ(cache_->host().num_cached(), 0);
  EXPECT_EQ(Found(kA), (Depths{1, 0}));
}

TEST_F(KvTiersTest, Fault23_ScopesNeverShareInAnyTier) {
  Cache(kA, {}, "alice");
  Evict(1);
  NextStep();

  EXPECT_EQ(Found(kA, "alice"), (Depths{0, 1}));
  EXPECT_EQ(Found(kA, "bob"), (Depths{0, 0}));
  EXPECT_EQ(Match({1, 2, 9}, kKeepAll, "bob").partial, kNoNode);
  BlockChain chain = NewChain({}, "bob");
  EXPECT_FALSE(cache_->ClaimNext(chain, HashTokens(kA), kA));
}

TEST_F(KvTiersTest, FlushEmptiesBothTiers) {
  Cache(kAB);
  Evict(1);
  NextStep();
  BlockChain live = NewChain();
  Start(live, kAB);
  NextStep();
  Cache(kY);

  EXPECT_EQ(cache_->Flush(), 1);

  EXPECT_EQ(cache_->host().num_clean(), 2);
  EXPECT_EQ(Found(kAB), (Depths{2, 0}));
  EXPECT_EQ(cache_->num_evictions(), 1);
}

TEST_F(KvTiersTest, RetentionTravelsToTheHostAndRunsOutThere) {
  Cache(kY, {.priority = 90, .duration_us = 1'000});
  Evict(1);
  NextStep();
  Cache(kZ, {.priority = 50});
  Evict(1);
  NextStep(/*passed_us=*/1'000);

  Cache(kA, {.priority = 10});
  Evict(1);
  NextStep();

  EXPECT_EQ(Found(kY), (Depths{0, 0}));
  EXPECT_EQ(Found(kZ), (Depths{0, 1}));
  EXPECT_EQ(Found(kA), (Depths{0, 1}));
}

}  // namespace
}  // namespace antiphon
