#include "antiphon/request_times.h"

#include <algorithm>

namespace antiphon {

void RequestTimes::Reset(Handle new_handle, std::int64_t now_ns) {
  handle = new_handle;
  arrival_ns = now_ns;
  num_steps = num_preemptions = num_rests = max_batch_rows = 0;
  rest_ns = num_batch_rows = 0;
  num_device_reused = num_host_reused = num_recomputed = num_chunks = 0;
  is_resting = false;
}

void RequestTimes::AddChunk(const PrefillChunk& chunk) {
  if (num_chunks < kMaxChunks) {
    chunks[static_cast<std::size_t>(num_chunks++)] = chunk;
    return;
  }
  PrefillChunk& last = chunks[kMaxChunks - 1];
  PrefillChunk& merged = chunks[kMaxChunks - 2];
  merged.end_ns = last.end_ns;
  merged.num_steps += last.num_steps;
  merged.num_tokens += last.num_tokens;
  merged.num_rows = std::max(merged.num_rows, last.num_rows);
  last = chunk;
}

void RequestTimes::StartRest(std::int64_t now_ns, bool held) {
  EndRest(now_ns);
  is_resting = true;
  rest = {.start_ns = now_ns, .end_ns = now_ns, .held = held};
}

void RequestTimes::EndRest(std::int64_t now_ns) {
  if (!is_resting) {
    return;
  }
  is_resting = false;
  rest.end_ns = now_ns;
  rest_ns += rest.end_ns - rest.start_ns;
  if (num_rests < kMaxRests) {
    rests[static_cast<std::size_t>(num_rests)] = rest;
  }
  ++num_rests;
}

}  // namespace antiphon
