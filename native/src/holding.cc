// Holds: a request rests at its caller's wish. It differs from a pause in that nothing but the
// caller ends it, so that nobody may wait because of it: it is in no queue and leads nobody. One
// that sits out rests for a moment only, and so keeps what it has.
#include "antiphon/engine_core.h"

namespace antiphon {

bool EngineCore::Hold(Handle handle) {
  Request* request = requests_.Find(handle);
  if (request == nullptr || !request->live()) {
    return false;
  }
  if (request->held) {
    return true;
  }
  request->held = true;
  // They compute the prompt themselves.
  WakeFollowers(*request);
  if (request->waiting()) {
    LeaveLine(*request);
    request->state = RequestState::kHeld;
    ++num_held_;
  } else {
    LetRest(*request);
  }
  return true;
}

bool EngineCore::Release(Handle handle) {
  Request* request = requests_.Find(handle);
  if (request == nullptr || !request->live()) {
    return false;
  }
  request->held = false;
  if (request->state != RequestState::kHeld) {
    return true;
  }
  --num_held_;
  ++num_waiting_;
  if (request->started) {
    request->state = RequestState::kPaused;
    ++num_paused_;
    queue_.Add(*request);
  } else {
    Enqueue(*request);
  }
  return true;
}

bool EngineCore::SitOut(Handle handle) {
  Request* request = requests_.Find(handle);
  if (request == nullptr || !request->live()) {
    return false;
  }
  request->sits_out = true;
  return true;
}

bool EngineCore::Rejoin(Handle handle) {
  Request* request = requests_.Find(handle);
  if (request == nullptr || !request->live()) {
    return false;
  }
  request->sits_out = false;
  return true;
}

// Lets go of what a request has that is to be held, unless a row in flight uses it.
void EngineCore::LetRest(Request& request) {
  if (request.fenced()) {
    return;
  }
  const NodeId tip = Suspend(request, /*held=*/true);
  if (request.session != 0) {
    sessions_.SetTip(request.session, tip);
  }
  request.state = RequestState::kHeld;
  ++num_held_;
}

// Takes a waiting request out of the queue, or from behind its leader. It is owed nothing for the
// time it has waited.
void EngineCore::LeaveLine(Request& request) {
  --num_waiting_;
  num_paused_ -= request.state == RequestState::kPaused ? 1 : 0;
  queue_.Remove(request);
  if (Request* leader = requests_.Find(request.leader); leader != nullptr) {
    std::erase(leader->followers, request.handle);
  }
  request.refusal = {};
  request.refused_in = 0;
  request.num_bypassed = 0;
}

}  // namespace antiphon
