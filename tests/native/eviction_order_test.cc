#include "antiphon/eviction_order.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace antiphon {
namespace {

// Lets the device's candidates go, one after the other.
std::vector<NodeId> Drain(EvictionOrder& order) {
  std::vector<NodeId> nodes;
  for (NodeId node = order.first(Tier::kDevice); node != kNoNode;
       node = order.first(Tier::kDevice)) {
    nodes.push_back(node);
    order.SetCandidate(node, Tier::kDevice, false);
    order.CheckInvariants();
  }
  return nodes;
}

class EvictionOrderTest : public ::testing::Test {
 protected:
  void Add(NodeId node, Retention retention) {
    order_.Retain(node, retention);
    order_.Touch(node);
    order_.SetCandidate(node, Tier::kDevice, true);
  }

  EvictionOrder order_{8};
};

TEST_F(EvictionOrderTest, GoesByPriorityThenByLastUse) {
  Add(0, {.priority = 60});
  Add(1, {.priority = 40});
  Add(2, {.priority = 60});
  Add(3, {.priority = 40});
  order_.Touch(1);

  EXPECT_EQ(Drain(order_), (std::vector<NodeId>{3, 1, 0, 2}));
}

TEST_F(EvictionOrderTest, TheDemotedGoBeforeAll) {
  Add(0, {.priority = 0});
  Add(1, {.priority = 100});

  order_.Demote(1);

  EXPECT_EQ(order_.level(1), EvictionOrder::kFirstToGo);
  EXPECT_EQ(Drain(order_), (std::vector<NodeId>{1, 0}));
}

TEST_F(EvictionOrderTest, ADemotedNodeThatIsRetainedAgainIsAnOrdinaryOne) {
  Add(0, {.priority = 10});
  Add(1, {.priority = 100});
  order_.Demote(1);

  order_.Retain(1, {.priority = 0});

  EXPECT_EQ(order_.level(1), 0);
}

TEST_F(EvictionOrderTest, APriorityFallsToZeroWhenItsTimeIsOver) {
  order_.Advance(1'000);
  Add(0, {.priority = 20});
  Add(1, {.priority = 90, .duration_us = 500});

  order_.Advance(1'499);
  EXPECT_EQ(order_.first(Tier::kDevice), 0);
  EXPECT_EQ(order_.level(1), 90);

  order_.Advance(1'500);
  EXPECT_EQ(order_.first(Tier::kDevice), 1);
  EXPECT_EQ(order_.level(1), 0);
  order_.CheckInvariants();
}

TEST_F(EvictionOrderTest, ARetentionRunsOutForThoseThatAreNoCandidatesToo) {
  order_.Retain(0, {.priority = 90, .duration_us = 500});
  order_.Advance(600);
  Add(1, {.priority = 10});

  order_.SetCandidate(0, Tier::kDevice, true);

  EXPECT_EQ(order_.first(Tier::kDevice), 0);
  order_.CheckInvariants();
}

TEST_F(EvictionOrderTest, TheHigherPriorityThatHasNotRunOutWins) {
  order_.Retain(0, {.priority = 30});
  order_.Retain(0, {.priority = 80, .duration_us = 100});
  order_.Retain(0, {.priority = 50});
  EXPECT_EQ(order_.level(0), 80);

  order_.Advance(100);
  EXPECT_EQ(order_.level(0), 0);

  order_.Retain(0, {.priority = 50});
  EXPECT_EQ(order_.level(0), 50);
}

TEST_F(EvictionOrderTest, OfEqualPrioritiesTheLaterExpiryWins) {
  order_.Retain(0, {.priority = 50, .duration_us = 100});
  order_.Retain(0, {.priority = 50, .duration_us = 300});
  order_.Retain(0, {.priority = 50, .duration_us = 200});
  order_.Advance(299);
  EXPECT_EQ(order_.level(0), 50);
  order_.Advance(300);
  EXPECT_EQ(order_.level(0), 0);

  order_.Retain(1, {.priority = 50});
  order_.Retain(1, {.priority = 50, .duration_us = 100});
  order_.Advance(1'000'000);
  EXPECT_EQ(order_.level(1), 50);
}

TEST_F(EvictionOrderTest, ADurationBeyondTimeItselfNeverEnds) {
  order_.Advance(1'000);
  order_.Retain(0, {.priority = 50, .duration_us = std::numeric_limits<std::int64_t>::max()});

  order_.Advance(std::numeric_limits<std::int64_t>::max());

  EXPECT_EQ(order_.level(0), 50);
}

TEST_F(EvictionOrderTest, OneAdvanceTakesABoundedNumberOfExpiries) {
  constexpr std::int32_t kNumNodes = EvictionOrder::kMaxExpiries + 10;
  EvictionOrder order(kNumNodes);
  for (NodeId node = 0; node < kNumNodes; ++node) {
    order.Retain(node, {.priority = 50, .duration_us = 10});
    order.SetCandidate(node, Tier::kDevice, true);
  }
  for (NodeId node = kNumNodes - 1; node >= 0; --node) {
    order.Touch(node);
  }

  order.Advance(10);
  order.CheckInvariants();
  EXPECT_EQ(order.first(Tier::kDevice), EvictionOrder::kMaxExpiries - 1);

  order.Advance(10);
  order.CheckInvariants();
  EXPECT_EQ(order.first(Tier::kDevice), kNumNodes - 1);
}

TEST_F(EvictionOrderTest, TiersHaveCandidatesOfTheirOwn) {
  Add(0, {.priority = 10});
  order_.SetCandidate(1, Tier::kHost, true);

  EXPECT_EQ(order_.first(Tier::kDevice), 0);
  EXPECT_EQ(order_.first(Tier::kHost), 1);

  order_.Forget(1);
  EXPECT_EQ(order_.first(Tier::kHost), kNoNode);
  EXPECT_EQ(order_.num_candidates(Tier::kDevice), 1U);
}

TEST_F(EvictionOrderTest, AnHeirTakesTheHigherLevelAndItsExpiry) {
  order_.Retain(0, {.priority = 80, .duration_us = 100});
  order_.Retain(1, {.priority = 20});

  order_.Inherit(1, 0);
  EXPECT_EQ(order_.level(1), 80);
  order_.Advance(100);

  EXPECT_EQ(order_.level(1), 0);
}

TEST_F(EvictionOrderTest, NothingIsInheritedFromARetentionThatHasRunOut) {
  order_.Retain(0, {.priority = 80, .duration_us = 100});
  order_.Retain(1, {.priority = 20});
  order_.Advance(100);

  order_.Inherit(1, 0);

  EXPECT_EQ(order_.level(1), 20);
}

TEST_F(EvictionOrderTest, ADemotedNodeGoesFirstThoughItsRetentionHasRunOut) {
  order_.Retain(0, {.priority = 80, .duration_us = 100});
  order_.Advance(100);

  order_.Demote(0);

  EXPECT_EQ(order_.level(0), EvictionOrder::kFirstToGo);
}

TEST_F(EvictionOrderTest, APriorityOutOfRangeIsRefused) {
  EXPECT_THROW(order_.Retain(0, {.priority = 101}), InvariantError);
  EXPECT_THROW(order_.Retain(0, {.priority = -1}), InvariantError);
  EXPECT_THROW(order_.Retain(0, {.priority = 1, .duration_us = -1}), InvariantError);
}

}  // namespace
}  // namespace antiphon
