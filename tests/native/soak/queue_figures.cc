#include "queue_figures.h"

#include <algorithm>

namespace antiphon::soak {

namespace {

constexpr std::int32_t kSmallPrompt = 64;
constexpr std::int32_t kMediumPrompt = 256;

std::size_t ClassOf(std::int32_t num_prompt) {
  return num_prompt <= kSmallPrompt ? 0 : num_prompt <= kMediumPrompt ? 1 : 2;
}

std::uint32_t Percentile(std::vector<std::uint32_t>& values, double share) {
  if (values.empty()) {
    return 0;
  }
  const auto place = static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + place, values.end());
  return values[static_cast<std::size_t>(place)];
}

}  // namespace

void QueueFigures::OnSubmit(Handle handle, std::int32_t priority, std::int32_t num_prompt,
                            bool follows) {
  places_[handle] = waiting_.size();
  waiting_.push_back({.handle = handle,
                      .arrival = next_arrival_++,
                      .priority = priority,
                      .num_prompt = num_prompt,
                      .follows = follows,
                      .num_bypasses = 0});
}

void QueueFigures::OnStart(Handle handle, std::int64_t num_steps_waited) {
  const auto found = places_.find(handle);
  if (found == places_.end()) {
    return;
  }
  const Waiting started = waiting_[found->second];
  waits_[ClassOf(started.num_prompt)].push_back(static_cast<std::uint32_t>(num_steps_waited));
  max_bypass_ = std::max(max_bypass_, started.num_bypasses);
  Remove(handle);
  for (Waiting& waiting : waiting_) {
    if (waiting.arrival < started.arrival && waiting.priority >= started.priority &&
        !waiting.follows) {
      ++waiting.num_bypasses;
    }
  }
}

void QueueFigures::OnGone(Handle handle) {
  resting_.erase(handle);
  if (places_.contains(handle)) {
    Remove(handle);
  }
}

void QueueFigures::OnHold(Handle handle) {
  OnSitOut(handle);
  if (const auto found = resting_.find(handle); found != resting_.end()) {
    found->second.num_bypasses = 0;
  }
}

void QueueFigures::OnSitOut(Handle handle) {
  if (const auto found = places_.find(handle); found != places_.end()) {
    resting_.emplace(handle, waiting_[found->second]);
    Remove(handle);
  }
}

void QueueFigures::OnReturn(Handle handle) {
  if (const auto found = resting_.find(handle); found != resting_.end()) {
    places_[handle] = waiting_.size();
    waiting_.push_back(found->second);
    resting_.erase(found);
  }
}

void QueueFigures::Add(const QueueFigures& other) {
  for (std::size_t i = 0; i < waits_.size(); ++i) {
    waits_[i].insert(waits_[i].end(), other.waits_[i].begin(), other.waits_[i].end());
  }
  max_bypass_ = std::max(max_bypass_, other.max_bypass_);
}

QueueFigures::Waits QueueFigures::WaitsOf(std::size_t size_class) const {
  std::vector<std::uint32_t> values = waits_[size_class];
  return {.p50 = Percentile(values, 0.5),
          .p99 = Percentile(values, 0.99),
          .max = Percentile(values, 1.0)};
}

void QueueFigures::Remove(Handle handle) {
  const std::size_t place = places_.at(handle);
  places_.erase(handle);
  if (place + 1 < waiting_.size()) {
    waiting_[place] = waiting_.back();
    places_[waiting_[place].handle] = place;
  }
  waiting_.pop_back();
}

}  // namespace antiphon::soak
