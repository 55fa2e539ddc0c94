// What is said when nothing runs although requests wait.
#include <string>

#include "antiphon/engine_core.h"

namespace antiphon {

namespace {

// Requests that are listed one by one.
constexpr int kMaxListed = 16;

std::string Named(const char* name, std::int64_t value) {
  return std::string(" ") + name + "=" + std::to_string(value);
}

}  // namespace

std::string EngineCore::Census() const {
  std::string text = "Nothing runs although requests wait:";
  text += Named("running", static_cast<std::int64_t>(running_.size()));
  text += Named("waiting", num_waiting_) + Named("paused", num_paused_);
  text += Named("held", num_held_);
  text += Named("steps_in_flight", num_steps_in_flight_);
  text += Named("free_slots", static_cast<std::int64_t>(free_slots_.size()));
  text += Named("blocks", config_.num_blocks - 1);
  text += Named("available", cache_.num_available()) + Named("promised", capacity_.reserved());
  text += std::string(" policy=") + PolicyName(config_.capacity_policy) + ".";
  int num_listed = 0;
  for (const Request& request : requests_.places()) {
    // Whoever is held waits for his caller alone.
    if (request.state == RequestState::kFree || request.state == RequestState::kHeld ||
        ++num_listed > kMaxListed) {
      continue;
    }
    text += std::string(" [") + StateName(request.state);
    text += Named("request", static_cast<std::int64_t>(request.handle & 0xffffffffU));
    text += Named("priority", request.priority) + Named("known", request.num_known());
    text += Named("computed", request.num_computed) + Named("holds", request.num_blocks());
    text += Named("needs", BlocksToPromise(request)) +
            Named("to_completion", request.blocks_to_completion) + "]";
  }
  if (num_listed > kMaxListed) {
    text += " and " + std::to_string(num_listed - kMaxListed) + " more.";
  }
  return text +
         " This is a fault of the engine's: its requests fail, and it has to be restarted. "
         "Until it is mended, more KV blocks or fewer rows make it rarer.";
}

}  // namespace antiphon
