// The whole cache under random use, against the naive model and against ghost KV: the content that
// each block would have, moved and written only when a step is committed, which may be several
// steps after it was planned.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "antiphon/kv_cache.h"
#include "kv_ghosts.h"
#include "kv_twins.h"

namespace antiphon {
namespace {

constexpr std::size_t kMaxUncommitted = 3;
constexpr std::uint32_t kNumRuns = 150;

struct Shape {
  KvCacheConfig config;
  std::int32_t max_copies = 0;
};

struct PlannedStep {
  StepHolds holds;
  std::vector<CopyOp> copies;
  std::vector<std::size_t> requests;  // ids
};

class Driver {
 public:
  Driver(const Shape& shape, std::uint32_t seed)
      : shape_(shape), random_(seed), twins_(shape.config, &scopes_), ghosts_(shape.config) {
    for (const std::string tenant : {"a", "b"}) {
      scope_ids_.push_back(
          scopes_.Intern({.tenant = tenant, .cache_scope = "", .adapter = "", .weights = ""}));
      scopes_.AddUse(scope_ids_.back());
    }
    Begin();
  }

  void Run(int num_operations) {
    for (int i = 0; i < num_operations && !::testing::Test::HasFatalFailure(); ++i) {
      switch (Below(12)) {
        case 0:
        case 1:
        case 2:
        case 3:
          Start();
          break;
        case 4:
        case 5:
        case 6:
        case 7:
          ReleaseOne();
          break;
        case 8:
        case 9:
          EndPlan();
          break;
        case 10:
          CommitOldest();
          break;
        default:
          Disturb();
      }
      Compare();
    }
    Drain();
  }

  const KvCache& cache() const { return twins_.cache(); }

 private:
  std::size_t Below(std::size_t bound) { return random_() % bound; }
  std::size_t width() const { return static_cast<std::size_t>(shape_.config.block_tokens); }
  static Tokens Head(const Tokens& tokens, std::size_t count) {
    return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
  }
  void Begin() {
    twins_.BeginStep(now_us_, shape_.max_copies);
    plan_ = {};
  }

  // The beginning of one of a few texts, half of the time with an end of its own.
  Tokens RandomTokens() {
    Tokens tokens(1 + Below(4 * width()));
    const std::size_t text = Below(3);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = i % 5 == text ? 1 : 0;
    }
    if (Below(2) == 0) {
      tokens.back() = static_cast<TokenId>(Below(3));
    }
    return tokens;
  }

  void Start() {
    LiveRequest request;
    request.tokens = RandomTokens();
    request.chain.scope = scope_ids_[Below(2)];
    request.chain.retention = {.priority = static_cast<std::int32_t>(Below(3) * 40),
                               .duration_us = static_cast<std::int64_t>(Below(3) * 5)};
    PrefixMatch match;
    twins_.Match(request, match);
    const std::int32_t num_new =
        BlocksFor(static_cast<std::int64_t>(request.tokens.size()), shape_.config.block_tokens) -
        match.num_device;
    const std::int32_t num_left = twins_.cache().num_available() -
                                  (match.num_device - match.num_live) -
                                  (match.pins_partial ? 1 : 0);
    if (num_left < num_new) {
      ReleaseOne();
      return;
    }
    if (twins_.cache().num_copies_left() < 1) {
      match.partial = kNoNode;
    }
    twins_.Claim(request, match);
    const std::int32_t count =
        BlocksFor(static_cast<std::int64_t>(request.tokens.size()), shape_.config.block_tokens) -
        static_cast<std::int32_t>(request.chain.blocks.size());
    twins_.Extend(request, count);
    if (Below(8) == 0) {  // given up in the plan that admitted it
      const auto num_claimed = static_cast<std::size_t>(request.num_claimed);
      twins_.Release(request, Head(request.tokens, num_claimed));
      return;
    }
    plan_.requests.push_back(next_id_);
    requests_.emplace(next_id_++, std::move(request));
  }

  // A request that goes on computes more tokens in a later step.
  void ReleaseOne() {
    std::vector<std::size_t> ids;
    for (const auto& [id, request] : requests_) {
      if (request.is_committed) {
        ids.push_back(id);
      }
    }
    if (ids.empty()) {
      return;
    }
    const std::size_t id = ids[Below(ids.size())];
    LiveRequest& request = requests_.at(id);
    if (Below(3) == 0 && GoOn(request)) {
      plan_.requests.push_back(id);
      return;
    }
    Tokens wanted = request.tokens;
    if (Below(3) == 0) {
      wanted.resize(Below(wanted.size() + 1));
    }
    twins_.Release(request, wanted);
    requests_.erase(id);
  }

  bool GoOn(LiveRequest& request) {
    const auto num_tokens =
        static_cast<std::int64_t>(request.tokens.size()) + 1 + static_cast<std::int64_t>(Below(3));
    const std::int32_t count = BlocksFor(num_tokens, shape_.config.block_tokens) -
                               static_cast<std::int32_t>(request.chain.blocks.size());
    if (twins_.cache().num_available() < count) {
      return false;
    }
    request.num_claimed = static_cast<std::int32_t>(request.tokens.size());
    request.is_committed = false;
    while (static_cast<std::int64_t>(request.tokens.size()) < num_tokens) {
      request.tokens.push_back(static_cast<TokenId>(Below(2)));
    }
    twins_.Extend(request, count);
    return true;
  }

  void Disturb() {
    const std::size_t choice = Below(10);
    if (choice == 0) {
      twins_.Flush();
    } else if (choice < 4) {
      DemoteOne();
    } else {
      MarkOrUnmark();
    }
  }

  void MarkOrUnmark() {
    const NodeId node = RandomNode();
    if (node == kNoNode) {
      return;
    }
    if (twins_.cache().index().num_marks(node) > 0) {
      twins_.Unmark(node);
    } else if (Below(2) == 0) {
      twins_.Mark(node);
    }
  }

  void DemoteOne() {
    const NodeId node = RandomNode();
    if (node != kNoNode) {
      twins_.Demote(node);
    }
  }

  NodeId RandomNode() {
    std::vector<NodeId> nodes;
    for (NodeId node = 0; node < twins_.cache().index().max_nodes(); ++node) {
      if (twins_.cache().index().alive(node)) {
        nodes.push_back(node);
      }
    }
    return nodes.empty() ? kNoNode : nodes[Below(nodes.size())];
  }

  void EndPlan() {
    if (uncommitted_.size() == kMaxUncommitted) {
      CommitOldest();
    }
    plan_.copies = twins_.copies();
    plan_.holds = twins_.TakeHolds();
    for (const std::size_t id : plan_.requests) {
      tables_[id] = requests_.at(id).chain.blocks;
    }
    uncommitted_.push_back(std::move(plan_));
    now_us_ += static_cast<std::int64_t>(Below(4));
    Begin();
  }

  // Runs the oldest step, late, and commits it.
  void CommitOldest() {
    if (uncommitted_.empty()) {
      return;
    }
    PlannedStep step = std::move(uncommitted_.front());
    uncommitted_.pop_front();
    ghosts_.Copy(step.copies, random_);
    for (const std::size_t id : step.requests) {
      const LiveRequest& request = requests_.at(id);
      ghosts_.Compute(request.chain.scope, request.tokens, request.num_claimed, tables_.at(id));
    }
    const bool ends_first = Below(2) == 0;
    if (ends_first) {
      twins_.EndStep(step.holds);
    }
    for (const std::size_t id : step.requests) {
      requests_.at(id).is_committed = true;
      LiveRequest& request = requests_.at(id);
      const std::size_t num_tail = request.tokens.size() % width();
      twins_.Publish(request, num_tail > 0 && Below(2) == 0 ? 1 + Below(num_tail) : 0);
    }
    if (!ends_first) {
      twins_.EndStep(step.holds);
    }
  }

  void Compare() {
    twins_.Compare(/*is_new_reader=*/Below(10) == 0);
    if (uncommitted_.empty() && plan_.requests.empty() && twins_.copies().empty()) {
      for (const auto& [path, node] : twins_.model().nodes()) {
        const std::size_t start = twins_.model().ParentOf(path).tokens.size();
        ghosts_.CheckBlock(path.scope, path.tokens, start, node);
      }
    }
  }

  // I25: when all have let go, everything is available.
  void Drain() {
    EndPlan();
    while (!uncommitted_.empty()) {
      CommitOldest();
    }
    for (auto& [id, request] : requests_) {
      twins_.Release(request, request.tokens);
    }
    requests_.clear();
    Compare();
    ASSERT_EQ(twins_.cache().num_available(), shape_.config.num_blocks - 1);
    ASSERT_EQ(twins_.cache().host().num_available(), shape_.config.num_host_blocks);
    twins_.Flush();
    Compare();
    ASSERT_EQ(twins_.cache().index().num_nodes(), 0);
    ASSERT_EQ(twins_.cache().device().num_clean(), shape_.config.num_blocks - 1);
  }

  Shape shape_;
  std::mt19937 random_;
  ScopeTable scopes_;
  std::vector<ScopeId> scope_ids_;
  CacheTwins twins_;
  std::int64_t now_us_ = 1;
  std::map<std::size_t, LiveRequest> requests_;
  std::map<std::size_t, std::vector<BlockId>> tables_;  // as the device has them
  std::size_t next_id_ = 0;
  PlannedStep plan_;
  std::deque<PlannedStep> uncommitted_;
  GhostKv ghosts_;
};

TEST(KvModel, TheCacheDoesWhatTheNaiveOneDoes) {
  std::mt19937 random(7);
  const auto pick = [&](std::int32_t bound) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(bound));
  };
  std::int64_t num_offloads = 0;
  std::int64_t num_onloads = 0;
  std::int64_t num_copies_on_write = 0;
  for (std::uint32_t seed = 0; seed < kNumRuns; ++seed) {
    Shape shape;
    shape.config.num_blocks = 4 + pick(9);
    shape.config.block_tokens = 1 + pick(4);
    shape.config.num_host_blocks = pick(7);
    shape.config.partial_reuse = pick(5) > 0;
    shape.config.offload_min_priority = pick(3) == 0 ? 40 : 0;
    shape.config.offload_min_hits = pick(3) == 0 ? 1 : 0;
    shape.config.onload_cost_tokens = pick(3) == 0 ? pick(4) : 0;
    shape.config.onload_block_cost_tokens = pick(3) == 0 ? pick(3) : 0;
    shape.config.fail_host_allocation_every = pick(4) == 0 ? 2 + pick(3) : 0;
    shape.config.num_kv_events = 256;
    shape.max_copies = 1 + pick(8);
    Driver driver(shape, seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    driver.Run(300);
    if (::testing::Test::HasFatalFailure()) {
      return;
    }
    num_offloads += driver.cache().num_offloads();
    num_onloads += driver.cache().num_onloads();
    num_copies_on_write += driver.cache().num_copies_on_write();
  }
  EXPECT_GT(num_offloads, 500);
  EXPECT_GT(num_onloads, 80);
  EXPECT_GT(num_copies_on_write, 500);
}

}  // namespace
}  // namespace antiphon
