// Blocks that are not full: published, found, copied on write, superseded.
#include <gtest/gtest.h>

#include <algorithm>

#include "antiphon/kv_cache.h"
#include "kv_cache_fixture.h"

namespace antiphon {
namespace {

class KvPartialTest : public KvCacheFixture {
 protected:
  void SetUp() override { Open(Config(/*num_blocks=*/8)); }

  std::int32_t NumPartialNodes() {
    std::int32_t count = 0;
    for (NodeId node = 0; node < cache_->index().max_nodes(); ++node) {
      count += cache_->index().alive(node) && !cache_->index().is_whole(node) ? 1 : 0;
    }
    return count;
  }

  CopyOp OnWrite(BlockId source, BlockId destination, std::int32_t num_tokens) {
    return {.kind = CopyKind::kOnWrite,
            .source_tier = Tier::kDevice,
            .source = source,
            .destination = destination,
            .num_tokens = num_tokens};
  }
};

const Tokens kABegun = {1, 2, 3, 4, 5, 6};

TEST_F(KvPartialTest, TheTailOfAReleasedChainIsFound) {
  const NodeId tail = Cache(kABegun);

  const PrefixMatch match = Match({1, 2, 3, 4, 5, 6, 99});

  EXPECT_EQ(match.nodes.size(), 1U);
  EXPECT_EQ(match.partial, tail);
  EXPECT_EQ(match.partial_tokens, 2);
  EXPECT_TRUE(match.pins_partial);
}

TEST_F(KvPartialTest, TheLongestCommonBeginningIsFoundInPartialAndWholeBlocks) {
  Cache({1, 2, 3, 4, 5, 60, 61});
  Cache({1, 2, 3, 4, 5, 6, 70, 71});

  EXPECT_EQ(Match({1, 2, 3, 4, 5, 9}).partial_tokens, 1);
  EXPECT_EQ(Match({1, 2, 3, 4, 5, 60, 9}).partial_tokens, 2);
  EXPECT_EQ(Match({1, 2, 3, 4, 5, 6, 70, 9}).partial_tokens, 3);
  EXPECT_EQ(Match({1, 2, 3, 4, 9}).partial, kNoNode);
}

TEST_F(KvPartialTest, BlocksRightBelowTheRootAreFoundByTheirBeginningToo) {
  Cache(kA);

  EXPECT_EQ(Match({1, 2, 9}).partial_tokens, 2);
  EXPECT_EQ(Match({1, 2, 9}, kKeepAll, "other").partial, kNoNode);
}

TEST_F(KvPartialTest, Fault22_ACachedPromptLeavesOneTokenToComputeInABlockOfItsOwn) {
  Cache(kAB);
  const PrefixMatch match = Match(kAB, /*max_tokens=*/7);
  BlockChain chain = NewChain();

  EXPECT_EQ(cache_->Claim(match, chain), 7);

  EXPECT_EQ(match.nodes.size(), 1U);
  EXPECT_EQ(chain.num_published, 1);
  const BlockId shared = cache_->index().block(Match(kAB).nodes[1], Tier::kDevice);
  EXPECT_NE(chain.blocks[1], shared);
  ASSERT_EQ(cache_->copies().size(), 1U);
  EXPECT_EQ(cache_->copies()[0], OnWrite(shared, chain.blocks[1], 3));
}

TEST_F(KvPartialTest, BothEndsOfACopyAreHeldUntilItsStepIsCommitted) {
  Cache(kABegun);
  BlockChain chain = NewChain();
  cache_->Claim(Match({1, 2, 3, 4, 5, 6, 7}), chain);
  const CopyOp copy = cache_->copies()[0];
  cache_->Release(chain, kA, kKeepAll);
  StepHolds holds = cache_->TakeHolds();
  cache_->BeginStep(now_us_, kMaxCopies);

  BlockChain other = NewChain();
  cache_->Extend(other, cache_->num_available());
  EXPECT_EQ(cache_->device().reference_count(copy.source), 1);
  EXPECT_EQ(cache_->device().reference_count(copy.destination), 1);
  EXPECT_EQ(std::ranges::count(other.blocks, copy.source), 0);
  EXPECT_EQ(std::ranges::count(other.blocks, copy.destination), 0);
  cache_->CheckInvariants();

  cache_->EndStep(holds);
  EXPECT_EQ(cache_->num_available(), 2);
  EXPECT_TRUE(holds.empty());
}

// What is available can be had, also where a block that is held for a copy lies below.
TEST_F(KvPartialTest, AHeldBlockDoesNotKeepThePathAboveItFromEviction) {
  Cache(kABegun);
  BlockChain chain = NewChain();
  cache_->Claim(Match({1, 2, 3, 4, 5, 6, 7}), chain);
  cache_->Release(chain, kA, kKeepAll);
  const std::int32_t num_available = cache_->num_available();

  BlockChain other = NewChain();
  cache_->Extend(other, num_available);

  EXPECT_EQ(NumFound(kA), 0U);
  EXPECT_EQ(cache_->num_evictions(), 1);
}

TEST_F(KvPartialTest, ACopyThatIsStillToComeIsNoSource) {
  Cache(kABegun);
  BlockChain chain = NewChain();
  const Tokens prompt = {1, 2, 3, 4, 5, 9};
  EXPECT_EQ(cache_->Claim(Match(prompt), chain), 5);

  // Given up in the step that planned it: its block has no content yet.
  cache_->Release(chain, Tokens{1, 2, 3, 4, 5}, kKeepAll);

  EXPECT_EQ(NumPartialNodes(), 1);
}

TEST_F(KvPartialTest, ABlockThatWasCopiedIntoIsPublishedOnceItIsComputed) {
  Cache(kABegun);
  BlockChain chain = NewChain();
  const Tokens prompt = {1, 2, 3, 4, 5, 9};
  cache_->Claim(Match(prompt), chain);
  StepHolds holds = cache_->TakeHolds();

  cache_->Release(chain, prompt, kKeepAll);
  cache_->EndStep(holds);

  EXPECT_EQ(Match(prompt).partial_tokens, 2);
}

TEST_F(KvPartialTest, ALiveRequestsTailIsSharedWhileItGoesOn) {
  BlockChain leader = Compute(kABegun);
  cache_->PublishPartial(leader, std::span(kABegun).subspan(4));
  const PrefixMatch match = Match({1, 2, 3, 4, 5, 6, 50});
  EXPECT_EQ(match.partial_tokens, 2);
  EXPECT_FALSE(match.pins_partial);
  BlockChain follower = NewChain();
  EXPECT_EQ(cache_->Claim(match, follower), 6);
  EXPECT_EQ(cache_->copies()[0], OnWrite(leader.blocks[1], follower.blocks[1], 2));

  Publish(leader, kAB);
  const Tokens other = {1, 2, 3, 4, 5, 6, 50, 51};
  Publish(follower, other);

  EXPECT_EQ(NumFound(kAB), 2U);
  EXPECT_EQ(NumFound(other), 2U);
  EXPECT_EQ(NumPartialNodes(), 0);
  EXPECT_NE(leader.blocks[1], follower.blocks[1]);
}

TEST_F(KvPartialTest, APublishedTailGrowsWithItsRequestAndNeverShrinks) {
  BlockChain chain = Compute(kABegun);
  const NodeId tip = chain.tip;
  cache_->PublishPartial(chain, std::span(kAB).subspan(4, 1));
  cache_->PublishPartial(chain, std::span(kAB).subspan(4, 3));
  cache_->PublishPartial(chain, std::span(kAB).subspan(4, 2));

  EXPECT_EQ(cache_->index().num_children(tip), 1);
  EXPECT_EQ(Match(kAB).partial_tokens, 3);
}

TEST_F(KvPartialTest, ATailThatIsPublishedAlreadyIsNotPublishedAgain) {
  Cache({1, 2, 3, 4, 5, 6, 7});
  BlockChain chain = Compute(kABegun);

  cache_->PublishPartial(chain, std::span(kABegun).subspan(4));
  cache_->Release(chain, kABegun, kKeepAll);

  EXPECT_EQ(NumPartialNodes(), 1);
  EXPECT_EQ(cache_->device().num_cached(), 2);
}

TEST_F(KvPartialTest, ASupersededTailIsForgottenAtOnceAndLeavesItsRetention) {
  Cache(kABegun, {.priority = 90});
  EXPECT_EQ(NumPartialNodes(), 1);

  Cache(kAB, {.priority = 10});
  EXPECT_EQ(NumPartialNodes(), 0);
  EXPECT_EQ(cache_->device().num_cached(), 2);

  Cache(kY, {.priority = 50});
  Evict(1);
  EXPECT_EQ(NumFound(kAB), 2U);
}

TEST_F(KvPartialTest, AMarkedTailIsNotSuperseded) {
  const NodeId tail = Cache(kABegun);
  cache_->AddMark(tail);

  Cache(kAB);

  EXPECT_TRUE(cache_->index().alive(tail));
  cache_->DropMark(tail);
}

TEST_F(KvPartialTest, ATailIsSupersededWhenItsRequestLetsGo) {
  BlockChain first = Compute(kABegun);
  cache_->PublishPartial(first, std::span(kABegun).subspan(4));
  Cache(kAB);
  EXPECT_EQ(NumPartialNodes(), 1);

  const NodeId last = cache_->Release(first, kABegun, kKeepAll);

  EXPECT_EQ(NumPartialNodes(), 0);
  EXPECT_EQ(last, Match(kAB).nodes[1]);
}

TEST_F(KvPartialTest, AnUnwantedEndIsCutOffAndItsBeginningKept) {
  BlockChain chain = Compute(kAB);

  cache_->Release(chain, kAB, /*num_wanted=*/6);

  EXPECT_EQ(NumFound(kAB), 1U);
  EXPECT_EQ(Match(kAB).partial_tokens, 2);
  EXPECT_EQ(cache_->device().num_cached(), 2);
}

TEST_F(KvPartialTest, AnUnwantedEndOfAPublishedTailIsCutOffToo) {
  BlockChain chain = Compute({1, 2, 3, 4, 5, 6, 7});
  cache_->PublishPartial(chain, Tokens{5, 6, 7});

  cache_->Release(chain, Tokens{1, 2, 3, 4, 5, 6, 7}, /*num_wanted=*/5);

  EXPECT_EQ(Match(kAB).partial_tokens, 1);
  EXPECT_EQ(NumPartialNodes(), 1);
}

TEST_F(KvPartialTest, ATailThatIsWantedNoMoreIsForgotten) {
  BlockChain chain = Compute(kABegun);
  cache_->PublishPartial(chain, std::span(kABegun).subspan(4));

  const NodeId last = cache_->Release(chain, kABegun, /*num_wanted=*/4);

  EXPECT_EQ(last, Match(kA).nodes[0]);
  EXPECT_EQ(NumPartialNodes(), 0);
  EXPECT_EQ(cache_->device().num_cached(), 1);
}

TEST_F(KvPartialTest, PublishingOverOnesOwnTailWhatIsThereAlreadyMovesTheChain) {
  BlockChain first = Compute(kABegun);
  cache_->PublishPartial(first, std::span(kABegun).subspan(4));
  const BlockChain second = Compute(kAB);
  const BlockId own = first.blocks[1];

  const BlockId replaced = cache_->PublishNext(first, HashTokens(Block(kAB, 1)), Block(kAB, 1));

  EXPECT_EQ(replaced, own);
  EXPECT_EQ(first.blocks, second.blocks);
  EXPECT_EQ(NumPartialNodes(), 0);
  cache_->DropReference(replaced);
  EXPECT_EQ(cache_->device().num_referenced(), 2);
}

TEST_F(KvPartialTest, ATailDoesNotStopItsSessionsBlocksFromBeingDemoted) {
  Cache(kABegun, {.priority = 90});
  const NodeId tip = Match(kA).nodes[0];
  Cache(kY, {.priority = 0});

  cache_->Demote(tip);
  Evict(2);

  EXPECT_EQ(NumFound(kA), 0U);
  EXPECT_EQ(NumFound(kY), 1U);
}

TEST_F(KvPartialTest, AMarkedTailDoes) {
  const NodeId tail = Cache(kABegun, {.priority = 90});
  cache_->AddMark(tail);
  const NodeId tip = Match(kA).nodes[0];
  Cache(kY, {.priority = 0});

  cache_->Demote(tip);
  Evict(1);

  EXPECT_EQ(NumFound(kA), 1U);
  EXPECT_EQ(NumFound(kY), 0U);
}

TEST_F(KvPartialTest, VeryManyTailsAreANeed) {
  Open(Config(/*num_blocks=*/200));
  for (TokenId token = 100; token < 165; ++token) {
    Cache({1, 2, 3, 4, token}, {.priority = 90});
  }
  Cache(kY, {.priority = 50});

  cache_->Demote(Match(kA).nodes[0]);
  Evict(1);

  EXPECT_EQ(NumFound(kY), 0U);
}

TEST_F(KvPartialTest, AChainThatMovesLeavesWhatItsTailHasInherited) {
  Cache(kABegun, {.priority = 90});
  BlockChain first = Compute({1, 2, 3, 4, 5, 6, 7}, {.priority = 10});
  cache_->PublishPartial(first, Tokens{5, 6, 7});
  Cache(kAB, {.priority = 10});
  Publish(first, kAB);
  cache_->Release(first, kAB, kKeepAll);
  Cache(kY, {.priority = 50});

  Evict(1);

  EXPECT_EQ(NumFound(kAB), 2U);
  EXPECT_EQ(NumFound(kY), 0U);
}

TEST_F(KvPartialTest, ABeginningIsLessThanABlock) {
  Cache(kA);
  PrefixMatch match;

  cache_->Match(Scope(), kA, {}, kKeepAll, match);

  EXPECT_EQ(match.partial_tokens, 3);
}

TEST_F(KvPartialTest, OnlySoManyChildrenAreLookedAt) {
  Open(Config(/*num_blocks=*/200));
  Cache(kABegun);
  for (TokenId token = 100; token < 164; ++token) {
    Cache({1, 2, 3, 4, token});
  }

  EXPECT_EQ(Match({1, 2, 3, 4, 163, 5}).partial_tokens, 1);
  EXPECT_EQ(Match({1, 2, 3, 4, 5, 6, 7}).partial, kNoNode);
}

TEST_F(KvPartialTest, WithoutPartialReuseOnlyWholeBlocksCount) {
  KvCacheConfig config = Config(8);
  config.partial_reuse = false;
  Open(config);
  BlockChain chain = Compute(kABegun);
  cache_->PublishPartial(chain, std::span(kABegun).subspan(4));
  EXPECT_EQ(cache_->Release(chain, kABegun, kKeepAll), Match(kA).nodes[0]);

  EXPECT_EQ(NumPartialNodes(), 0);
  EXPECT_EQ(Match({1, 2, 9}).partial, kNoNode);
}

TEST_F(KvPartialTest, AStepsCopiesMustBeTaken) {
  Cache(kABegun);
  BlockChain chain = NewChain();
  cache_->Claim(Match(kABegun), chain);

  EXPECT_THROW(cache_->BeginStep(now_us_, kMaxCopies), InvariantError);
}

}  // namespace
}  // namespace antiphon
