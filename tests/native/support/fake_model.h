// A model that is a hash. The KV cell of a position is a chain over the scope and all tokens up to
// there, so that a cell tells whether everything before it was right; the next token is a hash of
// the last cell and of the row's uniform draw. So a prompt alone says what its stream must be.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "antiphon/random.h"
#include "antiphon/types.h"

namespace antiphon::ghost {

using Chain = std::uint64_t;

// What a cell holds that was never written.
inline constexpr Chain kUnwritten = 0;

constexpr Chain RootOf(ScopeId scope) {
  return Mix64(static_cast<std::uint64_t>(scope) + kGoldenGamma);
}

constexpr Chain Append(Chain chain, TokenId token) {
  return Mix64(chain + (static_cast<std::uint64_t>(token) + 1) * kGoldenGamma);
}

constexpr TokenId NextToken(Chain chain, double uniform, std::int32_t vocabulary) {
  const std::uint64_t bits = Mix64(chain ^ std::bit_cast<std::uint64_t>(uniform));
  return static_cast<TokenId>(bits % static_cast<std::uint64_t>(vocabulary));
}

// What picks a request's draws.
struct Draws {
  std::uint64_t seed = 0;
  std::int32_t output_index = 0;

  double At(std::int32_t output_position) const {
    return Uniform(seed, static_cast<std::uint32_t>(output_index),
                   static_cast<std::uint32_t>(output_position));
  }
};

// The tokens of one request, as far as they are asked for: its prompt, then what the model says.
class Stream {
 public:
  Stream(ScopeId scope, std::span<const TokenId> prompt, Draws draws, std::int32_t vocabulary)
      : root_(RootOf(scope)),
        num_prompt_(static_cast<std::int32_t>(prompt.size())),
        draws_(draws),
        vocabulary_(vocabulary),
        tokens_(prompt.begin(), prompt.end()) {
    Chain chain = root_;
    chains_.reserve(tokens_.size() + 16);
    for (const TokenId token : prompt) {
      chain = Append(chain, token);
      chains_.push_back(chain);
    }
  }

  std::int32_t num_prompt() const { return num_prompt_; }
  Chain root() const { return root_; }
  const Draws& draws() const { return draws_; }

  TokenId token(std::int32_t position) {
    ExtendTo(position + 1);
    return tokens_[static_cast<std::size_t>(position)];
  }

  // The first `count` tokens, or the cells that they leave. Good until the next call.
  std::span<const TokenId> tokens(std::int32_t count) {
    ExtendTo(count);
    return std::span(tokens_).first(static_cast<std::size_t>(count));
  }
  std::span<const Chain> chains(std::int32_t count) {
    ExtendTo(count);
    return std::span(chains_).first(static_cast<std::size_t>(count));
  }

 private:
  void ExtendTo(std::int32_t count) {
    while (static_cast<std::int32_t>(tokens_.size()) < count) {
      const auto position = static_cast<std::int32_t>(tokens_.size()) - num_prompt_;
      const TokenId token = NextToken(chains_.back(), draws_.At(position), vocabulary_);
      tokens_.push_back(token);
      chains_.push_back(Append(chains_.back(), token));
    }
  }

  Chain root_;
  std::int32_t num_prompt_;
  Draws draws_;
  std::int32_t vocabulary_;
  std::vector<TokenId> tokens_;
  std::vector<Chain> chains_;  // as long as tokens_
};

}  // namespace antiphon::ghost
