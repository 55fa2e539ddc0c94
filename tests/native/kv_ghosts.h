// Ghost KV: what each position of each block would hold, so that a test sees what is read.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "antiphon/kv_cache.h"
#include "antiphon/prefix_index.h"
#include "kv_naive_tiers.h"

namespace antiphon {

class GhostKv {
 public:
  explicit GhostKv(const KvCacheConfig& config)
      : width_(static_cast<std::size_t>(config.block_tokens)),
        device_(static_cast<std::size_t>(config.num_blocks) * width_),
        host_(static_cast<std::size_t>(config.num_host_blocks + 1) * width_) {}

  // Carries a step's copies out, those of a kind in any order.
  void Copy(std::vector<CopyOp> copies, std::mt19937& random) {
    std::shuffle(copies.begin(), copies.end(), random);
    std::ranges::stable_sort(copies, {}, &CopyOp::kind);
    for (const CopyOp& copy : copies) {
      const std::vector<std::uint64_t>& from = copy.source_tier == Tier::kHost ? host_ : device_;
      std::vector<std::uint64_t>& to = copy.kind == CopyKind::kOffload ? host_ : device_;
      for (std::size_t i = 0; i < static_cast<std::size_t>(copy.num_tokens); ++i) {
        to[Place(copy.destination, i)] = from[Place(copy.source, i)];
      }
    }
  }

  // Reads the first `num_claimed` positions of a request, which must be its own, and writes the
  // others.
  void Compute(ScopeId scope, std::span<const TokenId> tokens, std::int32_t num_claimed,
               const std::vector<BlockId>& table) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::uint64_t& ghost = device_[Place(table[i / width_], i % width_)];
      const std::uint64_t expected = GhostOf(scope, tokens.first(i + 1));
      if (i < static_cast<std::size_t>(num_claimed)) {
        ASSERT_EQ(ghost, expected) << "position " << i;
      } else {
        ghost = expected;
      }
    }
  }

  // Checks the copies of a node whose block begins at position `start` of its path.
  void CheckBlock(ScopeId scope, std::span<const TokenId> path, std::size_t start,
                  const NaiveNode& node) const {
    for (std::size_t i = start; i < path.size(); ++i) {
      const std::uint64_t expected = GhostOf(scope, path.first(i + 1));
      if (node.device != kNoBlock) {
        ASSERT_EQ(device_[Place(node.device, i - start)], expected);
      }
      if (node.host != kNoBlock) {
        ASSERT_EQ(host_[Place(node.host, i - start)], expected);
      }
    }
  }

 private:
  // KV at a position depends on the scope and on all tokens up to there.
  static std::uint64_t GhostOf(ScopeId scope, std::span<const TokenId> prefix) {
    return ExtendPathHash(static_cast<std::uint64_t>(scope), HashTokens(prefix));
  }

  std::size_t Place(BlockId block, std::size_t position) const {
    return static_cast<std::size_t>(block) * width_ + position;
  }

  std::size_t width_;
  std::vector<std::uint64_t> device_;  // [block, position]
  std::vector<std::uint64_t> host_;
};

}  // namespace antiphon
