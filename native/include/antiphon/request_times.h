#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "antiphon/types.h"

namespace antiphon {

// Part of a prompt's computation: one step, or several next to each other that were merged.
struct PrefillChunk {
  std::int64_t start_ns = 0;  // the first step was planned
  std::int64_t end_ns = 0;    // the last was committed
  StepId step = 0;            // the first
  std::int32_t num_steps = 0;
  std::int32_t num_tokens = 0;
  std::int32_t num_rows = 0;  // of the step's batch; of several, the most
};

// A time between two rows of a request in which it had no memory.
struct Rest {
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;  // its next row was planned, it lost memory again, or it ended
  bool held = false;        // at its caller's wish; else it was paused to make room
};

// What happened to one request and when, in bounded room. Instants are those that Plan and Commit
// were told last when it happened. A row that came to nothing is no step and no chunk.
struct RequestTimes {
  static constexpr std::int32_t kMaxChunks = 34;
  static constexpr std::int32_t kMaxRests = 16;

  Handle handle = 0;
  std::int64_t arrival_ns = 0;
  std::int32_t num_steps = 0;
  std::int32_t num_preemptions = 0;
  std::int32_t num_rests = 0;       // those too that are not in `rests`
  std::int64_t rest_ns = 0;         // likewise
  std::int64_t num_batch_rows = 0;  // over the batches of its steps
  std::int32_t max_batch_rows = 0;
  std::int32_t num_device_reused = 0;  // tokens
  std::int32_t num_host_reused = 0;
  std::int32_t num_recomputed = 0;
  std::int32_t num_chunks = 0;  // entries of `chunks`
  bool is_resting = false;
  Rest rest;  // the one that lasts
  // Until the first output token. The first ones and the last are as they were; when there is no
  // room, the last but one takes in its neighbour.
  std::array<PrefillChunk, kMaxChunks> chunks;
  std::array<Rest, kMaxRests> rests;  // the first ones

  // Makes it another request's. What lies behind the counts is left as it is.
  void Reset(Handle new_handle, std::int64_t now_ns);

  void AddChunk(const PrefillChunk& chunk);
  // Ends the one that lasts: its request had memory again, and lost it before it got a row.
  void StartRest(std::int64_t now_ns, bool held);
  // Does nothing where none lasts.
  void EndRest(std::int64_t now_ns);

  std::span<const PrefillChunk> known_chunks() const {
    return std::span(chunks).first(static_cast<std::size_t>(num_chunks));
  }
  std::span<const Rest> known_rests() const {
    return std::span(rests).first(
        static_cast<std::size_t>(num_rests < kMaxRests ? num_rests : kMaxRests));
  }
};

}  // namespace antiphon
