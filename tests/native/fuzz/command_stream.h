#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "ghost_engine.h"

namespace antiphon::fuzz {

// Reads bytes as numbers; behind their end, everything is 0.
class Bytes {
 public:
  explicit Bytes(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }

  std::int32_t Next() {
    if (bytes_.empty()) {
      return 0;
    }
    const std::uint8_t byte = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return byte;
  }

  // In [low, high].
  std::int32_t Between(std::int32_t low, std::int32_t high) {
    return low + Next() % (high - low + 1);
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

// Makes of bytes a core with a pool of a few blocks and commands to it: submit, abort, finish,
// hold, release, sit out, rejoin, plan, execute, withhold, commit, sessions, clock, flush. All
// state is checked after every command, all reads by the ghost device; at the end everything must
// come to its end, first whoever does not sit out, and leave nothing behind.
//
// Throws ghost::Contradiction or what the core throws where something is wrong.
class CommandStream : public ghost::Listener {
 public:
  explicit CommandStream(std::span<const std::uint8_t> bytes);

  // Returns false if the bytes make no core.
  bool Run();

  void OnStart(Handle handle, std::int32_t num_reused) override;
  void OnToken(Handle handle, std::int32_t num_output) override;
  void OnEnd(Handle handle, ghost::Stream& stream, std::int32_t num_output) override;

 private:
  CoreConfig ReadConfig();
  void Obey();
  void Submit();
  void Abort();
  void Finish();
  void Rest(std::int32_t command);
  void Withhold();
  void Plan();
  void Session();
  void ReadEvents();
  bool Turn();
  void RunToTheEnd();

  Handle SomeHandle();
  std::vector<TokenId> SomePrompt(std::uint64_t session);
  void CheckEvents();

  Bytes bytes_;
  CoreConfig config_;
  std::unique_ptr<ghost::GhostEngine> engine_;
  std::int64_t now_us_ = 0;
  std::vector<Handle> handles_;                         // all that were given
  std::map<Handle, std::uint64_t> sessions_;            // of live requests that have one
  std::map<Handle, std::int32_t> num_outputs_;          // of live requests
  std::map<std::uint64_t, std::vector<TokenId>> logs_;  // of sessions
  std::map<std::uint64_t, KvEvent> blocks_;             // that events tell of, by path
  std::int64_t last_event_ = 0;
  bool knows_blocks_ = true;  // blocks_ is what events say; false where some were lost
};

}  // namespace antiphon::fuzz
