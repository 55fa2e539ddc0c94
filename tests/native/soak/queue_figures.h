#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "antiphon/types.h"

namespace antiphon::soak {

// How long requests waited for their first row, in steps and by the size of the prompt, and how
// many later ones of no higher priority started before them.
//
// Not thread-safe.
class QueueFigures {
 public:
  static constexpr std::array<const char*, 3> kClassNames = {"small", "medium", "large"};

  struct Waits {
    std::uint32_t p50 = 0;
    std::uint32_t p99 = 0;
    std::uint32_t max = 0;
  };

  // Follows: it waits for another on purpose, and so is not bypassed.
  void OnSubmit(Handle handle, std::int32_t priority, std::int32_t num_prompt, bool follows);
  void OnStart(Handle handle, std::int64_t num_steps_waited);
  void OnGone(Handle handle);
  // Whoever rests by the caller's wish is bypassed by nobody, and comes back to his place; who was
  // held has to be passed over anew.
  void OnHold(Handle handle);
  void OnSitOut(Handle handle);
  // Neither holds any more.
  void OnReturn(Handle handle);

  std::int32_t max_bypass() const { return max_bypass_; }
  void Add(const QueueFigures& other);

  Waits WaitsOf(std::size_t size_class) const;

 private:
  struct Waiting {
    Handle handle;
    std::uint64_t arrival;
    std::int32_t priority;
    std::int32_t num_prompt;
    bool follows;
    std::int32_t num_bypasses;
  };

  void Remove(Handle handle);

  std::vector<Waiting> waiting_;
  std::unordered_map<Handle, std::size_t> places_;
  std::unordered_map<Handle, Waiting> resting_;
  std::array<std::vector<std::uint32_t>, 3> waits_;
  std::uint64_t next_arrival_ = 0;
  std::int32_t max_bypass_ = 0;
};

}  // namespace antiphon::soak
