// Ids, enumerations and errors that every part of the core shares.
#pragma once

#include <cstdint>
#include <limits>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace antiphon {

using TokenId = std::int32_t;
using BlockId = std::int32_t;
using NodeId = std::int32_t;
using SlotId = std::int32_t;
using ScopeId = std::int64_t;  // from 1, never used twice
using StepId = std::int64_t;   // from 1
using Handle = std::uint64_t;  // index | generation << 32, never 0

// Block 0 belongs to no request: rows that pad a step write there.
inline constexpr BlockId kScratchBlock = 0;
inline constexpr TokenId kUnknownToken = -1;  // a step in flight will bring it
inline constexpr std::int32_t kAllTokens = std::numeric_limits<std::int32_t>::max();
inline constexpr BlockId kNoBlock = -1;
inline constexpr NodeId kNoNode = -1;
inline constexpr SlotId kNoSlot = -1;

// Where a block lies.
enum class Tier : std::uint8_t { kDevice = 0, kHost = 1 };

// What a copy is for. A step's copies run before its computation: first those that offload, then
// those that onload, then those on write, each group in any order.
enum class CopyKind : std::uint8_t { kOffload = 1, kOnload = 2, kOnWrite = 3 };

struct CopyOp {
  CopyKind kind;
  Tier source_tier;
  BlockId source;
  BlockId destination;  // on the host where the kind is kOffload, else on the device
  std::int32_t num_tokens;
  bool operator==(const CopyOp&) const = default;
};

// How long a request's blocks should outlive it. A hint: memory pressure always wins.
struct Retention {
  static constexpr std::int32_t kDefaultPriority = 50;
  static constexpr std::int32_t kMaxPriority = 100;

  std::int32_t priority = kDefaultPriority;  // 0 (first to go) to kMaxPriority
  std::int64_t duration_us = 0;              // afterwards the priority falls to 0; 0: never
};

enum class FinishReason : std::uint8_t {
  kNone = 0,
  kEndId = 1,
  kStopId = 2,
  kMaxOutputTokens = 3,
  kContextFull = 4,
};

// Bits of StepBuffers::flags. Those from kFirstCallerFlag on are the caller's and echoed.
enum RowFlag : std::uint16_t {
  kFlagPrefill = 1U << 0,
  kFlagSample = 1U << 1,
  kFlagFirst = 1U << 2,
  kFlagResumed = 1U << 3,
  kFirstCallerFlag = 1U << 8,
  kFlagLogprobs = 1U << 8,
  kFlagPenalties = 1U << 9,
  kFlagBias = 1U << 10,
  kFlagMinTokens = 1U << 11,
  kFlagGuided = 1U << 12,
  kFlagPromptLogprobs = 1U << 13,
};

// Indices of StepBuffers::header.
enum HeaderField : std::uint8_t {
  kHeaderNumRows = 0,
  kHeaderNumTokens = 1,
  kHeaderNumTableDeltas = 2,
  kHeaderNumCopies = 3,
  kHeaderNumPrefillRows = 4,
  kHeaderNumDecodeRows = 5,
  kHeaderNumSamples = 6,
  kHeaderNumSlotInits = 7,
  kHeaderStepId = 8,  // the low 31 bits
  kHeaderSize = 16,
};

// The core contradicts itself, or its caller broke the protocol. Nothing can be trusted afterwards.
class InvariantError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// A request that could not run even alone.
class NeverFitsError : public std::invalid_argument {
 public:
  NeverFitsError(std::int64_t needed, std::int64_t available)
      : std::invalid_argument("The request needs " + std::to_string(needed) +
                              " KV blocks and the pool has " + std::to_string(available)),
        needed_(needed),
        available_(available) {}

  std::int64_t needed() const { return needed_; }
  std::int64_t available() const { return available_; }

 private:
  std::int64_t needed_;
  std::int64_t available_;
};

// Requests wait, nothing runs, and nothing is on its way that would change that.
class StalledError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// As many requests as the core can hold are there already.
class QueueFullError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn, gnu::cold, gnu::noinline]] inline void ThrowInvariantError(
    std::string_view what, const std::source_location& where) {
  throw InvariantError(std::string(what) + " (" + where.file_name() + ":" +
                       std::to_string(where.line()) + ")");
}

// Throws InvariantError unless `holds`. `what` names what is broken.
inline void Check(bool holds, std::string_view what,
                  std::source_location where = std::source_location::current()) {
  if (!holds) [[unlikely]] {
    ThrowInvariantError(what, where);
  }
}

// Guards against programmer errors; stays on in release builds.
#define ANTIPHON_CHECK(condition) ::antiphon::Check(static_cast<bool>(condition), #condition)

// Blocks that `num_tokens` tokens take.
constexpr std::int32_t BlocksFor(std::int64_t num_tokens, std::int32_t block_tokens) {
  return static_cast<std::int32_t>((num_tokens + block_tokens - 1) / block_tokens);
}

}  // namespace antiphon
