#include "antiphon/request_table.h"

namespace antiphon {

const char* StateName(RequestState state) {
  switch (state) {
    case RequestState::kFree:
      return "free";
    case RequestState::kQueued:
      return "queued";
    case RequestState::kWaitLeader:
      return "wait_leader";
    case RequestState::kPaused:
      return "paused";
    case RequestState::kHeld:
      return "held";
    case RequestState::kOnload:
      return "onload";
    case RequestState::kPrefill:
      return "prefill";
    case RequestState::kDecode:
      return "decode";
    case RequestState::kDraining:
      return "draining";
  }
  return "unknown";
}

RequestTable::RequestTable(std::int32_t max_requests) {
  ANTIPHON_CHECK(max_requests >= 1);
  const auto size = static_cast<std::uint32_t>(max_requests);
  places_.resize(size);
  times_.resize(size);
  generations_.resize(size, 0);
  free_.reserve(size);
  for (std::uint32_t place = size; place > 0; --place) {
    free_.push_back(place - 1);
  }
}

Request& RequestTable::Add() {
  if (free_.empty()) {
    throw QueueFullError("All " + std::to_string(places_.size()) + " request places are taken");
  }
  const std::uint32_t place = free_.back();
  free_.pop_back();
  // Generation 0 is left out, so that no handle is 0.
  if (++generations_[place] == 0) {
    generations_[place] = 1;
  }
  Request& request = places_[place];
  request.handle = static_cast<Handle>(generations_[place]) << 32 | place;
  request.state = RequestState::kQueued;
  times_[place].Reset(request.handle, 0);
  return request;
}

Request* RequestTable::Find(Handle handle) {
  return const_cast<Request*>(static_cast<const RequestTable*>(this)->Find(handle));
}

const Request* RequestTable::Find(Handle handle) const {
  const std::size_t place = PlaceOf(handle);
  if (place >= places_.size() || handle == 0 || places_[place].handle != handle) {
    return nullptr;
  }
  return &places_[place];
}

const RequestTimes* RequestTable::FindTimes(Handle handle) const {
  const std::size_t place = PlaceOf(handle);
  if (place >= times_.size() || handle == 0 || times_[place].handle != handle) {
    return nullptr;
  }
  return &times_[place];
}

void RequestTable::Remove(Request& request) {
  ANTIPHON_CHECK(Find(request.handle) == &request);
  ANTIPHON_CHECK(request.chain.blocks.empty() && request.slot == kNoSlot);
  const auto place = static_cast<std::uint32_t>(request.handle & 0xffffffffULL);
  request = Request{};
  free_.push_back(place);
}

std::vector<Handle> RequestTable::HandlesOf(std::uint64_t session) const {
  std::vector<Handle> handles;
  for (const Request& request : places_) {
    if (session != 0 && request.session == session) {
      handles.push_back(request.handle);
    }
  }
  return handles;
}

std::int32_t RequestTable::num_requests() const {
  return static_cast<std::int32_t>(places_.size() - free_.size());
}

void RequestTable::CheckInvariants() const {
  std::vector<bool> is_free(places_.size(), false);
  for (const std::uint32_t place : free_) {
    Check(!is_free[place], "I5: a place was freed twice");
    is_free[place] = true;
  }
  for (std::size_t place = 0; place < places_.size(); ++place) {
    const Request& request = places_[place];
    Check((request.state == RequestState::kFree) == is_free[place],
          "I5: a place is free and taken at once");
    Check(!is_free[place] || (request.chain.blocks.empty() && request.slot == kNoSlot),
          "I5: a free place holds blocks or a slot");
    Check(is_free[place] || (request.handle & 0xffffffffULL) == place,
          "I5: a handle names another place");
  }
}

}  // namespace antiphon
