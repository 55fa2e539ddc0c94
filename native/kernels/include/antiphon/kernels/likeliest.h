// Where the largest of each row stands: the likeliest token of logits.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "antiphon/kernels/activations.h"
#include "antiphon/kernels/thread_team.h"

namespace antiphon::kernels {

// What workers have found of rows that aren't looked through yet. One for each place where rows are
// looked through.
class LikeliestWorkspace {
 public:
  // For rows of `width` columns, from 1 to 2^31 - 1, up to `max_rows` at once.
  LikeliestWorkspace(std::int64_t max_rows, std::int64_t width);

  // To be called before `find_likeliest`, by one thread, where a region may have ended early.
  void reset();

 private:
  friend void find_likeliest(Worker& worker, TaskCursor& cursor, LikeliestWorkspace& workspace,
                             const Rows& rows, std::int32_t* columns);

  const std::int64_t max_rows_;
  const std::int64_t width_;
  const std::int64_t num_parts_;  // of a row
  std::unique_ptr<float[]> maxima_;
  std::unique_ptr<std::atomic<std::int64_t>[]> num_done_;  // parts of each row
};

// Writes the column of each row's largest, of equals the first. What is no number is never the
// largest; of a row that has nothing else, it is column 0.
//
// Has no barrier inside. `rows` are float32 and of the workspace's width. Throws
// std::invalid_argument where they are not, or are too many.
void find_likeliest(Worker& worker, TaskCursor& cursor, LikeliestWorkspace& workspace,
                    const Rows& rows, std::int32_t* columns);

}  // namespace antiphon::kernels
