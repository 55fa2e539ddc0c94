#pragma once

#include <cstdint>
#include <vector>

#include "antiphon/kv_cache.h"
#include "antiphon/types.h"

namespace antiphon {

enum class RequestState : std::uint8_t {
  kFree,        // no request
  kQueued,      // waits for memory, a slot and budget
  kWaitLeader,  // waits for another request's prompt
  kPrefill,     // admitted; its prompt is being computed
  kDecode,      // admitted; every step gives a token
  kDraining,    // ended, with a row in flight: its blocks are held until that step is committed
};

const char* StateName(RequestState state);

// One output that is being made. Counts are tokens unless they say otherwise.
struct Request {
  Handle handle = 0;
  RequestState state = RequestState::kFree;
  std::uint32_t epoch = 0;  // grows whenever rows that are in flight become void

  std::uint64_t arrival = 0;
  std::int32_t priority = 0;
  Handle leader = 0;
  std::vector<Handle> followers;

  std::vector<TokenId> tokens;  // prompt, then output
  std::vector<std::uint64_t> prompt_hashes;
  std::int32_t num_prompt = 0;
  std::int32_t num_computed = 0;  // leading tokens whose KV is there or being computed
  std::int32_t num_inflight = 0;  // of those: planned, not committed
  std::int32_t num_steps = 0;

  std::int32_t max_output = 0;    // what the caller allows
  std::int32_t output_limit = 0;  // the same, cut to the context
  std::vector<TokenId> end_ids;   // sorted
  std::vector<TokenId> stop_ids;  // sorted

  std::uint64_t seed = 0;
  std::int32_t output_index = 0;
  std::uint32_t flags = 0;
  std::int32_t adapter = 0;

  SlotId slot = kNoSlot;
  std::int32_t num_wanted = 0;         // while it drains: leading tokens worth keeping
  std::int32_t num_blocks_needed = 0;  // to completion
  BlockChain chain;

  std::int32_t num_known() const { return static_cast<std::int32_t>(tokens.size()); }
  std::int32_t num_output() const { return num_known() - num_prompt; }
  std::int32_t num_settled() const { return num_computed - num_inflight; }
  bool waiting() const {
    return state == RequestState::kQueued || state == RequestState::kWaitLeader;
  }
  bool running() const { return state == RequestState::kPrefill || state == RequestState::kDecode; }
  // Whether it has not ended: it waits or runs.
  bool live() const { return waiting() || running(); }
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

  // REQUIRES: the request holds no blocks and no slot
  void Remove(Request& request);

  std::int32_t num_requests() const;

  // For checks and dumps: all places, free ones included.
  const std::vector<Request>& places() const { return places_; }

  // Checks the invariants above, O(places).
  void CheckInvariants() const;

 private:
  std::vector<Request> places_;
  std::vector<std::uint32_t> generations_;
  std::vector<std::uint32_t> free_;  // LIFO
};

}  // namespace antiphon
