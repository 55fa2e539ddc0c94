// The whole cache under random use, against the naive model and against ghost KV: the content that
// each block would have, moved and written only when a step is committed, which may be several
// steps after it was planned.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <numeric>
#include <random>

#include "antiphon/kv_cache.h"
#include "kv_naive_cache.h"

namespace antiphon {
namespace {

constexpr std::size_t kMaxUncommitted = 3;
constexpr std::uint32_t kNumRuns = 150;

// What KV at a position depends on: scope, and the tokens up to it.
std::uint64_t GhostOf(ScopeId scope, std::span<const TokenId> prefix) {
  return ExtendPathHash(static_cast<std::uint64_t>(scope), HashTokens(prefix));
}

struct Shape {
  KvCacheConfig config;
  std::int32_t max_copies = 0;
};

struct LiveRequest {
  BlockChain chain;
  Tokens tokens;
  std::int32_t num_claimed = 0;
  bool is_committed = false;  // its tokens are computed
};

struct PlannedStep {
  StepHolds holds;
  std::vector<CopyOp> copies;
  std::vector<std::size_t> requests;  // ids
};

class Driver {
 public:
  Driver(const Shape& shape, std::uint32_t seed)
      : shape_(shape), random_(seed), model_(shape.config), cache_(shape.config, &scopes_) {
    for (const std::string tenant : {"a", "b"}) {
      scope_ids_.push_back(
          scopes_.Intern({.tenant = tenant, .cache_scope = "", .adapter = "", .weights = ""}));
      scopes_.AddUse(scope_ids_.back());
    }
    const auto width = static_cast<std::size_t>(shape.config.block_tokens);
    device_.resize(static_cast<std::size_t>(shape.config.num_blocks) * width);
    host_.resize(static_cast<std::size_t>(shape.config.num_host_blocks + 1) * width);
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

  std::int64_t num_offloads() const { return cache_.num_offloads(); }
  std::int64_t num_onloads() const { return cache_.num_onloads(); }
  std::int64_t num_copies_on_write() const { return cache_.num_copies_on_write(); }

 private:
  std::size_t Below(std::size_t bound) { return random_() % bound; }
  std::size_t width() const { return static_cast<std::size_t>(shape_.config.block_tokens); }
  static Tokens Head(const Tokens& tokens, std::size_t count) {
    return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
  }
  std::vector<CopyOp> RealCopies() const {
    return {cache_.copies().begin(), cache_.copies().end()};
  }

  void Begin() {
    cache_.BeginStep(now_us_, shape_.max_copies);
    model_.BeginStep(now_us_, shape_.max_copies);
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
    MatchBoth(request, match);
    const std::int32_t num_new =
        BlocksFor(static_cast<std::int64_t>(request.tokens.size()), shape_.config.block_tokens) -
        match.num_device;
    const std::int32_t num_left =
        cache_.num_available() - (match.num_device - match.num_live) - (match.pins_partial ? 1 : 0);
    if (num_left < num_new) {
      ReleaseOne();
      return;
    }
    if (cache_.num_copies_left() < 1) {
      match.partial = kNoNode;
    }
    Claim(request, match);
    const std::int32_t count =
        BlocksFor(static_cast<std::int64_t>(request.tokens.size()), shape_.config.block_tokens) -
        static_cast<std::int32_t>(request.chain.blocks.size());
    const std::size_t first = request.chain.blocks.size();
    cache_.Extend(request.chain, count);
    for (std::size_t i = first; i < request.chain.blocks.size(); ++i) {
      model_.TakeBlock(request.chain.blocks[i], 0, RealCopies());
    }
    if (Below(8) == 0) {  // given up in the plan that admitted it
      const auto num_claimed = static_cast<std::size_t>(request.num_claimed);
      Release(request, Head(request.tokens, num_claimed));
      return;
    }
    plan_.requests.push_back(next_id_);
    requests_.emplace(next_id_++, std::move(request));
  }

  void MatchBoth(const LiveRequest& request, PrefixMatch& match) {
    const auto max_tokens = static_cast<std::int32_t>(request.tokens.size()) - 1;
    cache_.Match(request.chain.scope, request.tokens,
                 HashBlocks(request.tokens, shape_.config.block_tokens), max_tokens, match);
    const Tokens text(request.tokens.begin(), request.tokens.end() - 1);
    const auto [nodes, num_device, num_live] = model_.Match(request.chain.scope, text);
    ASSERT_EQ(match.nodes.size(), nodes.size());
    ASSERT_EQ(match.num_device, num_device);
    ASSERT_EQ(match.num_live, num_live);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      ASSERT_EQ(PathOf(match.nodes[i]), nodes[i]);
    }
    const auto [num_partial, on_device] =
        model_.LongestPartial(request.chain.scope, text, nodes.size() * width());
    if (num_partial == 0 || !shape_.config.partial_reuse || match.num_host() > 0) {
      ASSERT_TRUE(match.partial == kNoNode);
      return;
    }
    ASSERT_TRUE(match.partial != kNoNode);
    ASSERT_EQ(match.partial_tokens, num_partial);
    ASSERT_EQ(cache_.index().is_on(match.partial, Tier::kDevice), on_device);
  }

  void Claim(LiveRequest& request, const PrefixMatch& match) {
    const std::vector<Path> host = [&] {
      std::vector<Path> paths;
      for (std::size_t i = static_cast<std::size_t>(match.num_device); i < match.nodes.size();
           ++i) {
        paths.push_back(PathOf(match.nodes[i]));
      }
      return paths;
    }();
    std::vector<Path> device;
    for (std::int32_t i = 0; i < match.num_device; ++i) {
      device.push_back(PathOf(match.nodes[static_cast<std::size_t>(i)]));
    }
    const Path partial = match.partial == kNoNode ? Path{} : PathOf(match.partial);
    BlockChain& chain = request.chain;
    request.num_claimed = cache_.Claim(match, chain);
    for (const Path& path : device) {
      model_.Reference(path);
    }
    for (const Path& path : host) {
      model_.HoldHost(path);
    }
    if (match.partial != kNoNode && host.empty()) {
      model_.CopyOnWrite(partial, match.partial_tokens, chain.blocks.back(), RealCopies());
    }
    for (const Path& path : host) {
      if (cache_.num_copies_left() < 1) {
        return;
      }
      const auto tokens = std::span(request.tokens).subspan(chain.blocks.size() * width(), width());
      ASSERT_TRUE(cache_.ClaimNext(chain, HashTokens(tokens), tokens));
      model_.Onload(path, chain.blocks.back(), RealCopies());
      request.num_claimed += shape_.config.block_tokens;
    }
  }

  void Publish(LiveRequest& request) {
    BlockChain& chain = request.chain;
    while (static_cast<std::size_t>(chain.num_published + 1) * width() <= request.tokens.size()) {
      const auto index = static_cast<std::size_t>(chain.num_published);
      const auto tokens = std::span(request.tokens).subspan(index * width(), width());
      const BlockId own = chain.blocks[index];
      const BlockId replaced = cache_.PublishNext(chain, HashTokens(tokens), tokens);
      const Path path = {chain.scope, Head(request.tokens, (index + 1) * width())};
      ASSERT_EQ(model_.PublishNext(path, own, chain.retention), replaced != kNoBlock);
      if (replaced != kNoBlock) {
        ASSERT_EQ(replaced, own);
        cache_.DropReference(replaced);
        model_.DropReference(replaced);
      }
    }
    const std::size_t num_tail = request.tokens.size() % width();
    if (shape_.config.partial_reuse && num_tail > 0 && Below(2) == 0) {
      const std::size_t length = 1 + Below(num_tail);
      const std::size_t start = request.tokens.size() - num_tail;
      cache_.PublishPartial(chain, std::span(request.tokens).subspan(start, length));
      model_.PublishTail({chain.scope, Head(request.tokens, start + length)},
                         chain.blocks[static_cast<std::size_t>(chain.num_published)],
                         chain.retention);
    }
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
    Release(request, wanted);
    requests_.erase(id);
  }

  bool GoOn(LiveRequest& request) {
    const auto num_tokens =
        static_cast<std::int64_t>(request.tokens.size()) + 1 + static_cast<std::int64_t>(Below(3));
    const std::int32_t count = BlocksFor(num_tokens, shape_.config.block_tokens) -
                               static_cast<std::int32_t>(request.chain.blocks.size());
    if (cache_.num_available() < count) {
      return false;
    }
    request.num_claimed = static_cast<std::int32_t>(request.tokens.size());
    request.is_committed = false;
    while (static_cast<std::int64_t>(request.tokens.size()) < num_tokens) {
      request.tokens.push_back(static_cast<TokenId>(Below(2)));
    }
    cache_.Extend(request.chain, count);
    for (std::size_t i = request.chain.blocks.size() - static_cast<std::size_t>(count);
         i < request.chain.blocks.size(); ++i) {
      model_.TakeBlock(request.chain.blocks[i], 0, RealCopies());
    }
    return true;
  }

  // What is computed but unwanted is passed along, as a scheduler does.
  void Release(LiveRequest& request, const Tokens& wanted) {
    model_.Release(request.chain, wanted, request.chain.retention);
    const std::size_t num_computed = request.is_committed
                                         ? request.tokens.size()
                                         : static_cast<std::size_t>(request.num_claimed);
    cache_.Release(request.chain, std::span(request.tokens).first(num_computed),
                   static_cast<std::int32_t>(wanted.size()));
  }

  void Disturb() {
    const std::size_t choice = Below(10);
    if (choice == 0) {
      ASSERT_EQ(cache_.Flush(), model_.Flush());
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
    NaiveNode& naive = model_.at(PathOf(node));
    if (naive.num_marks > 0) {
      cache_.DropMark(node);
      --naive.num_marks;
    } else if (Below(2) == 0) {
      cache_.AddMark(node);
      ++naive.num_marks;
    }
  }

  void DemoteOne() {
    const NodeId node = RandomNode();
    if (node != kNoNode) {
      model_.Demote(PathOf(node));
      cache_.Demote(node);
    }
  }

  NodeId RandomNode() {
    std::vector<NodeId> nodes;
    for (NodeId node = 0; node < cache_.index().max_nodes(); ++node) {
      if (cache_.index().alive(node)) {
        nodes.push_back(node);
      }
    }
    return nodes.empty() ? kNoNode : nodes[Below(nodes.size())];
  }

  void EndPlan() {
    if (uncommitted_.size() == kMaxUncommitted) {
      CommitOldest();
    }
    plan_.copies = RealCopies();
    plan_.holds = cache_.TakeHolds();
    model_.TakeHolds();
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
    std::shuffle(step.copies.begin(), step.copies.end(), random_);
    std::ranges::stable_sort(step.copies, {}, &CopyOp::kind);
    for (const CopyOp& copy : step.copies) {
      const std::vector<std::uint64_t>& from = copy.source_tier == Tier::kHost ? host_ : device_;
      std::vector<std::uint64_t>& to = copy.kind == CopyKind::kOffload ? host_ : device_;
      std::copy_n(from.begin() + copy.source * shape_.config.block_tokens, copy.num_tokens,
                  to.begin() + copy.destination * shape_.config.block_tokens);
    }
    for (const std::size_t id : step.requests) {
      Compute(requests_.at(id), tables_.at(id));
    }
    const bool ends_first = Below(2) == 0;
    if (ends_first) {
      EndStep(step.holds);
    }
    for (const std::size_t id : step.requests) {
      requests_.at(id).is_committed = true;
      Publish(requests_.at(id));
    }
    if (!ends_first) {
      EndStep(step.holds);
    }
  }

  void EndStep(StepHolds& holds) {
    model_.EndStep(holds);
    cache_.EndStep(holds);
  }

  void Compute(const LiveRequest& request, const std::vector<BlockId>& table) {
    const std::span<const TokenId> tokens(request.tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::uint64_t& ghost =
          device_[static_cast<std::size_t>(table[i / width()]) * width() + i % width()];
      const std::uint64_t expected = GhostOf(request.chain.scope, tokens.first(i + 1));
      if (i < static_cast<std::size_t>(request.num_claimed)) {
        ASSERT_EQ(ghost, expected) << "position " << i;
      } else {
        ghost = expected;
      }
    }
  }

  Path PathOf(NodeId node) const {
    const PrefixIndex& index = cache_.index();
    Path path = {index.scope(node), {}};
    std::vector<NodeId> nodes = {node};
    while (!index.parent(nodes.back()).is_root()) {
      nodes.push_back(index.parent(nodes.back()).node());
    }
    for (auto each = nodes.rbegin(); each != nodes.rend(); ++each) {
      const auto tokens = index.tokens(*each);
      path.tokens.insert(path.tokens.end(), tokens.begin(), tokens.end());
    }
    return path;
  }

  void Compare() {
    ASSERT_NO_THROW(cache_.CheckInvariants());
    ASSERT_EQ(RealCopies(), model_.copies());
    const PrefixIndex& index = cache_.index();
    std::size_t num_nodes = 0;
    for (NodeId node = 0; node < index.max_nodes(); ++node) {
      if (!index.alive(node)) {
        continue;
      }
      ++num_nodes;
      const Path path = PathOf(node);
      ASSERT_TRUE(model_.Has(path));
      const NaiveNode& naive = model_.at(path);
      ASSERT_EQ(index.block(node, Tier::kDevice), naive.device);
      ASSERT_EQ(index.block(node, Tier::kHost), naive.host);
      ASSERT_EQ(index.num_hits(node), naive.num_hits);
      ASSERT_EQ(index.num_marks(node), naive.num_marks);
    }
    ASSERT_EQ(num_nodes, model_.nodes().size());
    for (BlockId block = 1; block < cache_.device().num_blocks(); ++block) {
      ASSERT_EQ(cache_.device().reference_count(block), model_.num_references(block));
    }
    for (BlockId block = 1; block < cache_.host().num_blocks(); ++block) {
      ASSERT_EQ(cache_.host().reference_count(block), model_.num_host_references(block));
    }
    ASSERT_EQ(cache_.num_available(), model_.num_available());
    FollowEvents();
    if (uncommitted_.empty() && plan_.requests.empty() && cache_.copies().empty()) {
      CheckGhosts();
    }
  }

  // A reader that follows the events, and at times starts anew from a snapshot, knows where every
  // whole block lies.
  void FollowEvents() {
    if (Below(10) == 0) {
      view_.clear();
      const KvSnapshot snapshot = cache_.Snapshot();
      for (const KvEvent& block : snapshot.blocks) {
        view_[block.path_hash] = block.tiers;
      }
      last_read_ = snapshot.sequence;
    }
    const KvEventBatch batch = cache_.events().Read(last_read_, 1 << 20);
    ASSERT_FALSE(batch.lost);
    for (const KvEvent& event : batch.events) {
      ASSERT_EQ(event.sequence, ++last_read_);
      const bool is_known = view_.contains(event.path_hash);
      ASSERT_EQ(is_known, event.kind != KvEventKind::kStored);
      ASSERT_EQ(event.tiers == 0, event.kind == KvEventKind::kRemoved);
      ASSERT_TRUE(!is_known || view_.at(event.path_hash) != event.tiers) << "nothing has changed";
      if (event.tiers == 0) {
        view_.erase(event.path_hash);
      } else {
        view_[event.path_hash] = event.tiers;
      }
    }
    std::map<std::uint64_t, std::uint32_t> expected;
    for (const auto& [path, node] : model_.nodes()) {
      if (model_.IsWhole(path)) {
        expected[PathHashes(scopes_.hash(path.scope), path.tokens, shape_.config.block_tokens)
                     .back()] =
            (node.device != kNoBlock ? 1U : 0U) | (node.host != kNoBlock ? 2U : 0U);
      }
    }
    ASSERT_EQ(view_, expected);
  }

  void CheckGhosts() {
    for (const auto& [path, node] : model_.nodes()) {
      const std::span<const TokenId> tokens(path.tokens);
      for (std::size_t i = model_.ParentOf(path).tokens.size(); i < tokens.size(); ++i) {
        const std::uint64_t expected = GhostOf(path.scope, tokens.first(i + 1));
        if (node.device != kNoBlock) {
          ASSERT_EQ(device_[static_cast<std::size_t>(node.device) * width() + i % width()],
                    expected);
        }
        if (node.host != kNoBlock) {
          ASSERT_EQ(host_[static_cast<std::size_t>(node.host) * width() + i % width()], expected);
        }
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
      Release(request, request.tokens);
    }
    requests_.clear();
    Compare();
    ASSERT_EQ(cache_.num_available(), shape_.config.num_blocks - 1);
    ASSERT_EQ(cache_.host().num_available(), shape_.config.num_host_blocks);
    ASSERT_EQ(cache_.Flush(), model_.Flush());
    Compare();
    ASSERT_EQ(cache_.index().num_nodes(), 0);
    ASSERT_EQ(cache_.device().num_clean(), shape_.config.num_blocks - 1);
  }

  Shape shape_;
  std::mt19937 random_;
  ScopeTable scopes_;
  std::vector<ScopeId> scope_ids_;
  NaiveCache model_;
  KvCache cache_;
  std::int64_t now_us_ = 1;
  std::map<std::size_t, LiveRequest> requests_;
  std::map<std::size_t, std::vector<BlockId>> tables_;  // as the device has them
  std::size_t next_id_ = 0;
  PlannedStep plan_;
  std::deque<PlannedStep> uncommitted_;
  std::vector<std::uint64_t> device_;  // ghost KV, [block, position]
  std::vector<std::uint64_t> host_;
  std::map<std::uint64_t, std::uint32_t> view_;
  std::int64_t last_read_ = 0;
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
    num_offloads += driver.num_offloads();
    num_onloads += driver.num_onloads();
    num_copies_on_write += driver.num_copies_on_write();
  }
  EXPECT_GT(num_offloads, 500);
  EXPECT_GT(num_onloads, 80);
  EXPECT_GT(num_copies_on_write, 500);
}

}  // namespace
}  // namespace antiphon
