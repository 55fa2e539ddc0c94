// A cache and what a scheduler does with it, for tests.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "antiphon/kv_cache.h"

namespace antiphon {

using Tokens = std::vector<TokenId>;

inline constexpr std::int32_t kKeepAll = std::numeric_limits<std::int32_t>::max();

// Texts of blocks of four: each letter is a block, X another second one behind A.
inline const Tokens kA = {1, 2, 3, 4};
inline const Tokens kAB = {1, 2, 3, 4, 5, 6, 7, 8};
inline const Tokens kABC = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
inline const Tokens kAX = {1, 2, 3, 4, 50, 60, 70, 80};
inline const Tokens kY = {90, 91, 92, 93};
inline const Tokens kZ = {80, 81, 82, 83};

// Blocks on the device, and on the host.
using Depths = std::pair<std::int32_t, std::int32_t>;

class KvCacheFixture : public ::testing::Test {
 protected:
  static constexpr std::int32_t kBlockTokens = 4;
  static constexpr std::int32_t kMaxCopies = 100;

  static KvCacheConfig Config(std::int32_t num_blocks, std::int32_t num_host_blocks = 0) {
    KvCacheConfig config;
    config.num_blocks = num_blocks;
    config.block_tokens = kBlockTokens;
    config.num_host_blocks = num_host_blocks;
    config.num_kv_events = 64;
    return config;
  }

  void Open(const KvCacheConfig& config) {
    cache_ = std::make_unique<KvCache>(config, &scopes_);
    cache_->BeginStep(now_us_, kMaxCopies);
  }

  void TearDown() override {
    if (cache_ != nullptr) {
      cache_->CheckInvariants();
    }
  }

  ScopeId Scope(const std::string& tenant = "t") {
    return scopes_.Intern({.tenant = tenant, .cache_scope = "", .adapter = "", .weights = ""});
  }

  BlockChain NewChain(Retention retention = {}, const std::string& tenant = "t") {
    BlockChain chain;
    chain.scope = Scope(tenant);
    chain.retention = retention;
    return chain;
  }

  PrefixMatch Match(const Tokens& tokens, std::int32_t max_tokens = kKeepAll,
                    const std::string& tenant = "t") {
    PrefixMatch match;
    cache_->Match(Scope(tenant), tokens, HashBlocks(tokens, kBlockTokens), max_tokens, match);
    return match;
  }

  // Whole blocks of `tokens` that a match finds, in either tier.
  std::size_t NumFound(const Tokens& tokens) { return Match(tokens).nodes.size(); }

  // Device and host part of what is found for `tokens`, in blocks.
  Depths Found(const Tokens& tokens, const std::string& tenant = "t") {
    const PrefixMatch match = Match(tokens, kKeepAll, tenant);
    return {match.num_device, match.num_host()};
  }

  // Claims what there is for `tokens`, onloading what is on the host, and takes blocks for the
  // rest. Returns the tokens that need no computing.
  std::int32_t Start(BlockChain& chain, const Tokens& tokens) {
    PrefixMatch match;
    cache_->Match(chain.scope, tokens, HashBlocks(tokens, kBlockTokens), kKeepAll, match);
    std::int32_t num_claimed = cache_->Claim(match, chain);
    for (std::size_t i = static_cast<std::size_t>(match.num_device); i < match.nodes.size(); ++i) {
      EXPECT_TRUE(cache_->ClaimNext(chain, HashTokens(Block(tokens, i)), Block(tokens, i)));
      num_claimed += kBlockTokens;
    }
    cache_->Extend(chain, BlocksFor(static_cast<std::int64_t>(tokens.size()), kBlockTokens) -
                              static_cast<std::int32_t>(chain.blocks.size()));
    chain.num_sent = static_cast<std::int32_t>(chain.blocks.size());
    return num_claimed;
  }

  // Publishes the whole blocks of `tokens`, as after a step.
  void Publish(BlockChain& chain, const Tokens& tokens) {
    while (static_cast<std::size_t>(chain.num_published + 1) * kBlockTokens <= tokens.size()) {
      const auto block = Block(tokens, static_cast<std::size_t>(chain.num_published));
      const BlockId replaced = cache_->PublishNext(chain, HashTokens(block), block);
      if (replaced != kNoBlock) {
        cache_->DropReference(replaced);
      }
    }
  }

  // A chain that has computed and published `tokens` without claiming any.
  BlockChain Compute(const Tokens& tokens, Retention retention = {},
                     const std::string& tenant = "t") {
    BlockChain chain = NewChain(retention, tenant);
    cache_->Extend(chain, BlocksFor(static_cast<std::int64_t>(tokens.size()), kBlockTokens));
    chain.num_sent = static_cast<std::int32_t>(chain.blocks.size());
    Publish(chain, tokens);
    return chain;
  }

  // Leaves `tokens` in the cache, unreferenced.
  NodeId Cache(const Tokens& tokens, Retention retention = {}, const std::string& tenant = "t") {
    BlockChain chain = Compute(tokens, retention, tenant);
    return cache_->Release(chain, tokens, kKeepAll);
  }

  // Commits the step under way and begins another.
  void NextStep(std::int64_t passed_us = 0) {
    StepHolds holds = cache_->TakeHolds();
    cache_->EndStep(holds);
    now_us_ += passed_us;
    cache_->BeginStep(now_us_, kMaxCopies);
  }

  // Makes `count` device blocks be evicted, and gives them back empty.
  void Evict(std::int32_t count) {
    BlockChain chain = NewChain();
    cache_->Extend(chain, cache_->device().num_clean() + count);
    cache_->Release(chain, {}, 0);
  }

  static std::span<const TokenId> Block(const Tokens& tokens, std::size_t index) {
    return std::span(tokens).subspan(index * kBlockTokens, kBlockTokens);
  }

  std::int64_t now_us_ = 1'000;
  ScopeTable scopes_;
  std::unique_ptr<KvCache> cache_;
};

}  // namespace antiphon
