#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "antiphon/kv_cache.h"
#include "antiphon/random.h"
#include "antiphon/request_times.h"
#include "antiphon/types.h"

namespace antiphon {

enum class RequestState : std::uint8_t {
  kFree,        // no request
  kQueued,      // waits for memory, a slot and budget
  kWaitLeader,  // waits for another request's prompt
  kPaused,      // ran, and had to make room; waits like kQueued
  kHeld,        // has neither blocks nor a place in line until it is released
  kOnload,      // admitted; blocks of its prefix are still being brought from the host
  kPrefill,     // admitted; known tokens are being computed
  kDecode,      // admitted; every step gives a token
  kDraining,    // ended, with a row in flight: its blocks are held until that step is committed
};

const char* StateName(RequestState state);

// Why a waiting request was not admitted when it was last looked at. While it can't have changed,
// the request isn't looked at again.
struct Refusal {
  bool stands = false;
  std::uint64_t num_changes = 0;  // of the cache
  std::int32_t headroom = 0;      // blocks
  std::int32_t num_matched = 0;   // whole blocks of its prefix that were found
  NodeId tip = kNoNode;           // the last of those
  std::uint64_t tip_uid = 0;
};

// A token's bit in a filter of 64: where it isn't set, the token is none of the filter's.
constexpr std::uint64_t FilterBit(TokenId token) {
  return std::uint64_t{1} << (static_cast<std::uint32_t>(token) % 64);
}

// One output that is being made. Counts are tokens unless they say otherwise.
struct alignas(64) Request {
  // What each step reads and writes of one that decodes comes first, up to the chain's parts of
  // that kind: three lines of the memory cache.
  Handle handle = 0;
  RequestState state = RequestState::kFree;
  bool held = false;        // gets no rows; kHeld as soon as none is in flight
  bool sits_out = false;    // gets no rows, and keeps what it has
  bool started = false;     // has had its first row
  bool new_slot = false;    // its next row is the first in its slot
  std::uint32_t epoch = 0;  // grows whenever rows that are in flight become void
  std::uint32_t flags = 0;
  SlotId slot = kNoSlot;
  std::int32_t adapter = 0;
  std::int32_t num_prompt = 0;
  std::int64_t planned_in = 0;      // the plan that last gave it a row or passed it over
  std::int32_t num_computed = 0;    // leading tokens whose KV is there or being computed
  std::int32_t num_inflight = 0;    // of those: planned, not committed
  std::int32_t num_pending = 0;     // output tokens that steps in flight will bring
  std::int32_t num_steps = 0;       // committed
  std::int32_t output_limit = 0;    // what the caller allows, cut to the context
  std::int32_t max_batch_rows = 0;  // of the steps that worked on it
  std::uint64_t end_filter = 0;     // FilterBit of every token that ends it
  std::int64_t num_batch_rows = 0;  // over those steps
  Draws draws;
  std::vector<TokenId> tokens;  // prompt, then output
  BlockChain chain;

  std::int32_t blocks_promised = 0;         // while it runs
  std::vector<std::uint64_t> block_hashes;  // of whole blocks, as far as they were needed
  std::int32_t max_output = 0;              // what the caller allows
  std::int32_t num_reached = 0;             // the most that were computed before its last pause
  std::int32_t num_reusable = kAllTokens;   // leading tokens that others may have computed for it
  std::int32_t num_claimed = 0;             // of its prefix, on the device when it was let in
  std::vector<TokenId> end_ids;             // sorted
  std::vector<TokenId> stop_ids;            // sorted

  std::uint64_t arrival = 0;
  std::int32_t priority = 0;
  std::uint64_t session = 0;  // 0: none
  Handle leader = 0;
  std::vector<Handle> followers;

  std::int32_t blocks_to_completion = 0;
  std::int32_t num_valid = 0;     // while it drains: leading tokens with KV when it ended
  std::int32_t num_wanted = 0;    // while it drains: leading tokens worth keeping
  std::int64_t refused_in = 0;    // the plan that first refused it for want of memory; 0: none
  std::int32_t num_bypassed = 0;  // requests behind it that were admitted since
  Refusal refusal;

  std::int32_t num_known() const { return static_cast<std::int32_t>(tokens.size()); }
  std::int32_t num_output() const { return num_known() - num_prompt; }
  std::int32_t num_settled() const { return num_computed - num_inflight; }
  // Tokens to compute, those included that are not known yet.
  std::int32_t num_remaining() const { return num_known() + num_pending - num_computed; }
  // The most leading tokens that it may take from the cache. What it has computed itself is among
  // them; and one token is always left, since its logits give the next output token.
  std::int32_t max_reused() const {
    return std::min(num_known() - 1, std::max(num_reusable, num_reached));
  }
  std::int32_t num_blocks() const { return static_cast<std::int32_t>(chain.blocks.size()); }
  // Blocks that it was promised and has yet to take.
  std::int32_t num_reserved() const { return std::max(blocks_promised - num_blocks(), 0); }
  // Copies what is counted in every step, and so lies here, to where the rest of its times is.
  void TellSteps(RequestTimes& times) const {
    times.num_steps = num_steps;
    times.num_batch_rows = num_batch_rows;
    times.max_batch_rows = max_batch_rows;
  }
  bool waiting() const {
    return state == RequestState::kQueued || state == RequestState::kWaitLeader ||
           state == RequestState::kPaused;
  }
  bool running() const {
    return state == RequestState::kOnload || state == RequestState::kPrefill ||
           state == RequestState::kDecode;
  }
  // Whether it has not ended: it waits, runs or is held.
  bool live() const { return waiting() || running() || state == RequestState::kHeld; }
  // Whether its blocks can't be freed now, because a step in flight uses them.
  bool fenced() const { return num_inflight > 0; }
  // Whether a step may give it a row.
  bool may_run(std::int64_t num_plans) const {
    return !held && !sits_out && planned_in != num_plans;
  }
  // Whether its right to run is higher than another's.
  bool precedes(const Request& other) const {
    return priority != other.priority ? priority > other.priority : arrival < other.arrival;
  }
};

// A slab of requests. A handle names one request for ever: its place is used again with a new
// generation, so that a late handle finds nothing.
//
// Invariants:
//  1. A place is free or holds one request, never both; free places hold no blocks and no slot.
//  2. No two requests ever have the same handle (of 2^32 a place).
//
// Not thread-safe. References stay good until the request is removed.
class RequestTable {
 public:
  // REQUIRES: max_requests >= 1
  explicit RequestTable(std::int32_t max_requests);

  // Adds an empty request in state kQueued.
  // Throws QueueFullError where all places are taken.
  Request& Add();

  // Returns the request, or nullptr if it is gone.
  Request* Find(Handle handle);
  const Request* Find(Handle handle) const;

  // What happened to the request so far, to be added to. Stays until the place is used again.
  RequestTimes& times(const Request& request) { return times_[PlaceOf(request.handle)]; }

  // What happened to a request so far, also to one that has ended; nullptr where its place has been
  // used again.
  const RequestTimes* FindTimes(Handle handle) const;

  // REQUIRES: the request holds no blocks and no slot
  void Remove(Request& request);

  // The requests of a session, O(places).
  std::vector<Handle> HandlesOf(std::uint64_t session) const;

  std::int32_t num_requests() const;

  // For checks and dumps: all places, free ones included.
  const std::vector<Request>& places() const { return places_; }

  // Checks the invariants above, O(places).
  void CheckInvariants() const;

 private:
  static std::size_t PlaceOf(Handle handle) { return handle & 0xffffffffULL; }

  std::vector<Request> places_;
  // Apart, since steps that decode touch a request and not its times.
  std::vector<RequestTimes> times_;
  std::vector<std::uint32_t> generations_;
  std::vector<std::uint32_t> free_;  // LIFO
};

}  // namespace antiphon
