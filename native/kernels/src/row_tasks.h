#pragma once

#include <algorithm>
#include <cstdint>

#include "antiphon/kernels/activations.h"
#include "antiphon/kernels/thread_team.h"

namespace antiphon::kernels {

// Calls `body(row)` for each of `num_rows` rows that fall to this worker: a few at a time, but so
// that every worker gets some where there are enough.
template <class Body>
void for_each_row(const Worker& worker, TaskCursor& cursor, std::int64_t num_rows, Body body) {
  constexpr std::int64_t kMaxRowsPerTask = 16;
  constexpr std::int64_t kTasksPerWorker = 4;
  const std::int64_t rows_per_task =
      std::clamp(num_rows / (kTasksPerWorker * worker.count()), std::int64_t{1}, kMaxRowsPerTask);
  for (std::int64_t first = cursor.next() * rows_per_task; first < num_rows;
       first = cursor.next() * rows_per_task) {
    const std::int64_t end = std::min(first + rows_per_task, num_rows);
    for (std::int64_t row = first; row < end; ++row) {
      body(row);
    }
  }
}

inline const void* element(const void* data, Type type, std::int64_t index) {
  return static_cast<const char*>(data) + index * element_bytes(type);
}

inline void* element(void* data, Type type, std::int64_t index) {
  return static_cast<char*>(data) + index * element_bytes(type);
}

}  // namespace antiphon::kernels
