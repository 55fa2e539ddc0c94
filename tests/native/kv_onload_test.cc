// Hits on the host: what is onloaded, copied from there, or computed again.
#include <gtest/gtest.h>

#include <algorithm>

#include "antiphon/kv_cache.h"
#include "kv_cache_fixture.h"

namespace antiphon {
namespace {

class KvOnloadTest : public KvCacheFixture {
 protected:
  void SetUp() override { Open(Config(/*num_blocks=*/5, /*num_host_blocks=*/2)); }
};

TEST_F(KvOnloadTest, AHitOnTheHostIsOnloadedAndKeepsItsHostCopy) {
  Cache(kAB);
  Evict(2);
  NextStep();
  EXPECT_EQ(Found(kAB), (Depths{0, 2}));

  BlockChain chain = NewChain();
  EXPECT_EQ(Start(chain, kAB), 8);

  ASSERT_EQ(cache_->copies().size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(cache_->copies()[i].kind, CopyKind::kOnload);
    EXPECT_EQ(cache_->copies()[i].destination, chain.blocks[i]);
    EXPECT_EQ(cache_->copies()[i].source, cache_->index().block(Match(kAB).nodes[i], Tier::kHost));
  }
  EXPECT_EQ(Found(kAB), (Depths{2, 0}));
  EXPECT_EQ(Match(kAB).num_live, 2);
  EXPECT_EQ(cache_->num_onloads(), 2);
  EXPECT_EQ(chain.num_published, 2);
}

TEST_F(KvOnloadTest, WhatIsComputedAgainIsOnTheDeviceAgain) {
  Cache(kA);
  Evict(1);
  NextStep();
  BlockChain chain = NewChain();
  cache_->Extend(chain, 1);
  const BlockId own = chain.blocks[0];

  EXPECT_EQ(cache_->PublishNext(chain, HashTokens(kA), kA), kNoBlock);

  EXPECT_EQ(chain.blocks[0], own);
  EXPECT_EQ(Found(kA), (Depths{1, 0}));
  EXPECT_EQ(cache_->index().num_nodes(), 1);
}

TEST_F(KvOnloadTest, Fault21_AllOfAMatchOnTheHostCanBeClaimed) {
  Cache(kAB);
  Evict(2);
  NextStep();
  Cache(kY);
  Cache(kZ);
  BlockChain others = NewChain();
  cache_->Extend(others, 2);

  // Each onload evicts a block, whose offload would displace what is onloaded next.
  BlockChain chain = NewChain();
  EXPECT_EQ(Start(chain, kAB), 8);

  EXPECT_EQ(cache_->num_onloads(), 2);
}

TEST_F(KvOnloadTest, AnOnloadThatMustEvictKeepsItsOwnCopyAndSource) {
  Cache(kA, {.priority = 0});
  Evict(1);
  NextStep();
  Cache(kY, {.priority = 90});
  BlockChain others = NewChain();
  cache_->Extend(others, 3);
  cache_->TakeHolds();
  cache_->BeginStep(now_us_, /*max_copies=*/1);

  // The one block left is evicted for it; its offload would take the last copy, and the host's
  // least is what is being onloaded.
  BlockChain chain = NewChain();
  EXPECT_TRUE(cache_->ClaimNext(chain, HashTokens(kA), kA));

  ASSERT_EQ(cache_->copies().size(), 1U);
  EXPECT_EQ(cache_->copies()[0].kind, CopyKind::kOnload);
  EXPECT_EQ(Found(kA), (Depths{1, 0}));
  EXPECT_EQ(Found(kY), (Depths{0, 0}));
}

TEST_F(KvOnloadTest, ABlockMayBeOnloadedOverWhatIsOffloadedInTheSameStep) {
  Cache(kA);
  Evict(1);
  NextStep();
  Cache(kY);
  const BlockId block = cache_->index().block(Match(kY).nodes[0], Tier::kDevice);
  BlockChain others = NewChain();
  cache_->Extend(others, 3);

  BlockChain chain = NewChain();
  Start(chain, kA);

  ASSERT_EQ(cache_->copies().size(), 2U);
  EXPECT_EQ(cache_->copies()[0].kind, CopyKind::kOffload);
  EXPECT_EQ(cache_->copies()[0].source, block);
  EXPECT_EQ(cache_->copies()[1].destination, block);
}

TEST_F(KvOnloadTest, AnOnloadThatIsGivenUpLeavesItsBlockToNobodyUntilTheStepIsCommitted) {
  Cache(kA);
  Evict(1);
  NextStep();
  BlockChain chain = NewChain();
  Start(chain, kA);
  const BlockId block = chain.blocks[0];
  cache_->Release(chain, kA, kKeepAll);
  StepHolds holds = cache_->TakeHolds();
  cache_->BeginStep(now_us_, kMaxCopies);

  BlockChain other = NewChain();
  cache_->Extend(other, cache_->num_available());

  EXPECT_EQ(std::ranges::count(other.blocks, block), 0);
  EXPECT_EQ(Found(kA), (Depths{1, 0}));
  cache_->EndStep(holds);
  EXPECT_EQ(cache_->num_available(), 1);
}

TEST_F(KvOnloadTest, APrefixIsRecomputedWhereThatIsCheaper) {
  KvCacheConfig config = Config(5, 4);
  config.onload_cost_tokens = 4;
  config.onload_block_cost_tokens = 1;
  Open(config);
  Cache(kAB);
  Evict(1);
  NextStep();
  // One block: 4 tokens against 4 + 1. Nor is its beginning worth a copy.
  EXPECT_EQ(Found(kAB), (Depths{1, 0}));
  EXPECT_EQ(Match(kAB).partial, kNoNode);

  Evict(1);
  NextStep();
  // Two blocks: 8 tokens against 4 + 2.
  EXPECT_EQ(Found(kAB), (Depths{0, 2}));
}

TEST_F(KvOnloadTest, TheBeginningOfABlockOnTheHostIsCopiedFromThere) {
  Cache({1, 2, 3});
  Evict(1);
  NextStep();
  const PrefixMatch match = Match({1, 2, 9});
  EXPECT_EQ(match.partial_tokens, 2);
  EXPECT_FALSE(match.pins_partial);
  const std::int32_t num_available = cache_->num_available();
  BlockChain chain = NewChain();

  EXPECT_EQ(cache_->Claim(match, chain), 2);

  ASSERT_EQ(cache_->copies().size(), 1U);
  EXPECT_EQ(cache_->copies()[0], (CopyOp{.kind = CopyKind::kOnWrite,
                                         .source_tier = Tier::kHost,
                                         .source = 1,
                                         .destination = chain.blocks[0],
                                         .num_tokens = 2}));
  EXPECT_EQ(cache_->num_available(), num_available - 1);
}

TEST_F(KvOnloadTest, WhatIsOnloadedInThisStepIsCopiedFromTheHost) {
  Cache(kA);
  Evict(1);
  NextStep();
  BlockChain first = NewChain();
  Start(first, kA);
  BlockChain second = NewChain();
  cache_->Claim(Match({1, 2, 9}), second);

  ASSERT_EQ(cache_->copies().size(), 2U);
  EXPECT_EQ(cache_->copies()[1].source_tier, Tier::kHost);

  NextStep();
  BlockChain third = NewChain();
  cache_->Claim(Match({1, 2, 8}), third);
  ASSERT_EQ(cache_->copies().size(), 1U);
  EXPECT_EQ(cache_->copies()[0].source_tier, Tier::kDevice);
  EXPECT_EQ(cache_->copies()[0].source, first.blocks[0]);
}

TEST_F(KvOnloadTest, OnloadsThatAreGivenUpDoNotKeepThePathAboveThemFromEviction) {
  Open(Config(/*num_blocks=*/6, /*num_host_blocks=*/3));
  Cache(kABC);
  Evict(2);
  NextStep();
  BlockChain chain = NewChain();
  Start(chain, kABC);
  cache_->Release(chain, kABC, kKeepAll);

  BlockChain other = NewChain();
  cache_->Extend(other, cache_->num_available());
  cache_->CheckInvariants();

  NextStep();
  EXPECT_EQ(Found(kABC), (Depths{0, 3}));
}

TEST_F(KvOnloadTest, WhatIsStillBeingOffloadedIsNotClaimed) {
  Cache(kA);
  Evict(1);
  BlockChain chain = NewChain();

  EXPECT_FALSE(cache_->ClaimNext(chain, HashTokens(kA), kA));
  NextStep();
  EXPECT_TRUE(cache_->ClaimNext(chain, HashTokens(kA), kA));
}

}  // namespace
}  // namespace antiphon
