// The real cache and the naive one, given the same to do and compared.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <span>
#include <vector>

#include "antiphon/kv_cache.h"
#include "kv_event_reader.h"
#include "kv_naive_cache.h"

namespace antiphon {

struct LiveRequest {
  BlockChain chain;
  Tokens tokens;
  std::int32_t num_claimed = 0;
  bool is_committed = false;  // its tokens are computed
};

class CacheTwins {
 public:
  CacheTwins(const KvCacheConfig& config, ScopeTable* scopes)
      : config_(config), scopes_(scopes), model_(config), cache_(config, scopes) {}

  const KvCache& cache() const { return cache_; }
  const NaiveCache& model() const { return model_; }
  std::vector<CopyOp> copies() const { return {cache_.copies().begin(), cache_.copies().end()}; }

  void BeginStep(std::int64_t now_us, std::int32_t max_copies) {
    cache_.BeginStep(now_us, max_copies);
    model_.BeginStep(now_us, max_copies);
  }

  StepHolds TakeHolds() {
    model_.TakeHolds();
    return cache_.TakeHolds();
  }

  void EndStep(StepHolds& holds) {
    model_.EndStep(holds);
    cache_.EndStep(holds);
  }

  void Match(const LiveRequest& request, PrefixMatch& match) {
    const auto max_tokens = static_cast<std::int32_t>(request.tokens.size()) - 1;
    cache_.Match(request.chain.scope, request.tokens,
                 HashBlocks(request.tokens, config_.block_tokens), max_tokens, match);
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
    if (num_partial == 0 || !config_.partial_reuse || match.num_host() > 0) {
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
      model_.CopyOnWrite(partial, match.partial_tokens, chain.blocks.back(), copies());
    }
    for (const Path& path : host) {
      if (cache_.num_copies_left() < 1) {
        return;
      }
      const auto tokens = std::span(request.tokens).subspan(chain.blocks.size() * width(), width());
      ASSERT_TRUE(cache_.ClaimNext(chain, HashTokens(tokens), tokens));
      model_.Onload(path, chain.blocks.back(), copies());
      request.num_claimed += config_.block_tokens;
    }
  }

  void Extend(LiveRequest& request, std::int32_t count) {
    const std::size_t first = request.chain.blocks.size();
    cache_.Extend(request.chain, count);
    for (std::size_t i = first; i < request.chain.blocks.size(); ++i) {
      model_.TakeBlock(request.chain.blocks[i], 0, copies());
    }
  }

  // Publishes whole blocks and so many tokens of the last one.
  void Publish(LiveRequest& request, std::size_t num_tail) {
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
    if (config_.partial_reuse && num_tail > 0) {
      const std::size_t start = request.tokens.size() / width() * width();
      cache_.PublishPartial(chain, std::span(request.tokens).subspan(start, num_tail));
      model_.PublishTail({chain.scope, Head(request.tokens, start + num_tail)},
                         chain.blocks[static_cast<std::size_t>(chain.num_published)],
                         chain.retention);
    }
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

  void Mark(NodeId node) {
    cache_.AddMark(node);
    ++model_.at(PathOf(node)).num_marks;
  }

  void Unmark(NodeId node) {
    cache_.DropMark(node);
    --model_.at(PathOf(node)).num_marks;
  }

  void Demote(NodeId node) {
    model_.Demote(PathOf(node));
    cache_.Demote(node);
  }

  void Flush() { ASSERT_EQ(cache_.Flush(), model_.Flush()); }

  // Everything that can be seen of both, and what a reader of the events knows.
  void Compare(bool is_new_reader) {
    ASSERT_NO_THROW(cache_.CheckInvariants());
    ASSERT_EQ(copies(), model_.copies());
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
    reader_.Follow(cache_, is_new_reader);
    ASSERT_EQ(reader_.tiers(), ExpectedTiers());
  }

 private:
  static Tokens Head(const Tokens& tokens, std::size_t count) {
    return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
  }

  std::size_t width() const { return static_cast<std::size_t>(config_.block_tokens); }

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

  std::map<std::uint64_t, std::uint32_t> ExpectedTiers() const {
    std::map<std::uint64_t, std::uint32_t> tiers;
    for (const auto& [path, node] : model_.nodes()) {
      if (model_.IsWhole(path)) {
        const std::uint64_t root = scopes_->hash(path.scope);
        tiers[PathHashes(root, path.tokens, config_.block_tokens).back()] =
            (node.device != kNoBlock ? 1U : 0U) | (node.host != kNoBlock ? 2U : 0U);
      }
    }
    return tiers;
  }

  KvCacheConfig config_;
  ScopeTable* scopes_;
  NaiveCache model_;
  KvCache cache_;
  EventReader reader_;
};

}  // namespace antiphon
