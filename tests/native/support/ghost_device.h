#pragma once

#include <cstdint>
#include <functional>
#include <source_location>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "antiphon/batch_plan.h"
#include "antiphon/engine_core.h"
#include "dice.h"
#include "fake_model.h"

namespace antiphon::ghost {

// What was observed from outside contradicts what the core promises.
class Contradiction : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Throws Contradiction unless `holds`. Builds the message only then.
void Expect(bool holds, const char* what,
            std::source_location where = std::source_location::current());

// Carries out steps like an accelerator: all it knows is a step's arrays, its own block table,
// which the deltas keep up to date, and memory in which each token's KV is a chain (fake_model.h).
// Checks that every read finds the request's own history, and that the arrays agree.
//
// Not thread-safe.
class GhostDevice {
 public:
  // Finds the stream of a row's request.
  using StreamOf = std::function<Stream&(Handle)>;

  GhostDevice(const CoreConfig& config, std::int32_t vocabulary, std::uint64_t seed);

  // Carries out a step's copies, each kind in random order. May come long before the step is
  // executed, as on a stream of its own, but in the order of the steps. Throws Contradiction.
  void Copy(const StepBuffers& step);

  // Carries out the rest of a step: reads of contexts, then computation. Writes `tokens` and
  // `num_tokens`. Rows of which `withheld`, [num_rows], says so bring no token, and nothing that
  // they computed for it can be read before it is computed again. Throws Contradiction.
  void Execute(const StepBuffers& step, const StreamOf& stream_of,
               const std::vector<bool>& withheld);

  std::int64_t num_computed_tokens() const { return num_computed_tokens_; }
  std::int64_t num_copies() const { return num_copies_; }

 private:
  void CheckShape(const StepBuffers& step);
  void CheckRow(const StepBuffers& step, std::int32_t row);
  void CheckSlotInits(const StepBuffers& step);
  void ApplyTableDeltas(const StepBuffers& step);
  void RunCopy(const std::int32_t* copy);
  void ReadContext(const StepBuffers& step, std::int32_t row, Stream& stream);
  void ComputeRow(const StepBuffers& step, std::int32_t row, Stream& stream);
  void Sample(const StepBuffers& step, std::int32_t row, Stream& stream);
  void Withhold(const StepBuffers& step, std::int32_t row);

  std::span<Chain> Block(Tier tier, BlockId block);
  BlockId& TableEntry(SlotId slot, std::int32_t block_index);
  Chain& CellAt(SlotId slot, std::int32_t position);

  CoreConfig config_;
  std::int32_t vocabulary_;
  std::int32_t max_context_blocks_;
  Dice dice_;
  std::vector<Chain> device_;             // [num_blocks, block_tokens]
  std::vector<Chain> host_;               // [num_host_blocks + 1, block_tokens]
  std::vector<BlockId> table_;            // [max_rows, max_context_blocks]
  std::vector<TokenId> last_tokens_;      // [max_rows]
  std::vector<std::int64_t> cell_steps_;  // the step that wrote a device cell last
  std::vector<std::int64_t> slot_steps_;  // the step that had a row of this slot last
  std::int64_t num_steps_ = 0;
  std::int64_t num_computed_tokens_ = 0;
  std::int64_t num_copies_ = 0;
};

}  // namespace antiphon::ghost
