#include <deque>
#include <unordered_map>

#include "dice.h"
#include "measured_core.h"
#include "measurements.h"

namespace antiphon::bench {

namespace {

constexpr std::int32_t kNumClients = 256;
constexpr std::int32_t kMinPrompt = 64;
constexpr std::int32_t kMaxPrompt = 512;
constexpr std::int32_t kMinOutput = 16;
constexpr std::int32_t kMaxOutput = 2048;
constexpr double kMedianOutput = 500;
constexpr double kOutputSpread = 2.0;
constexpr std::int32_t kMeanPrompt = (kMinPrompt + kMaxPrompt) / 2;
constexpr std::int32_t kMeanOutput = 600;

struct Client {
  std::int32_t num_output = 0;  // that the model will give
  std::int32_t num_told = 0;
  double submit_us = 0;
  double told_us = 0;
};

CoreConfig ConfigOf(const Pressure& pressure) {
  return {.num_blocks = 1 + kNumClients * (kMeanPrompt + kMeanOutput) / 2 / kBlockTokens,
          .block_tokens = kBlockTokens,
          .max_rows = kNumClients,
          .max_step_tokens = 8192,
          .max_context_tokens = kMaxPrompt + kMaxOutput,
          .max_requests = 2 * kNumClients,
          .num_buffer_sets = pressure.run_ahead + 1,
          .run_ahead = pressure.run_ahead,
          .capacity_policy = pressure.policy,
          .watermark_blocks = pressure.watermark_blocks,
          .cooldown_steps = pressure.cooldown_steps,
          .faults = {}};
}

// Time passes as the cost model says.
class Run {
 public:
  explicit Run(const Pressure& pressure)
      : pressure_(pressure), core_(ConfigOf(pressure)), dice_(3) {
    for (std::int32_t set = 0; set < pressure.run_ahead + 1; ++set) {
      const CoreConfig& config = core_.config();
      sets_.push_back(std::make_unique<StepArrays>(config.max_rows, config.max_step_tokens,
                                                   core_.min_table_deltas(),
                                                   config.max_step_copies));
      core_.RegisterBuffers(set, sets_.back()->buffers());
    }
    scope_ = core_.InternScope({.tenant = "", .cache_scope = "", .adapter = "", .weights = ""});
  }

  PressureFigures Finish() {
    for (std::int32_t i = 0; i < kNumClients; ++i) {
      Submit();
    }
    while (!clients_.empty()) {
      while (static_cast<std::int32_t>(in_flight_.size()) <= pressure_.run_ahead && Plan()) {
      }
      Check(!in_flight_.empty(), "nothing runs");
      Commit();
    }
    const CoreStats stats = core_.stats();
    return {.output_tokens_per_s = static_cast<double>(num_outputs_) / (now_us_ * 1e-6),
            .first_token_p50_s = Percentile(first_s_, 0.5),
            .first_token_p99_s = Percentile(first_s_, 0.99),
            .token_gap_p50_ms = Percentile(gap_ms_, 0.5),
            .token_gap_p99_ms = Percentile(gap_ms_, 0.99),
            .request_p50_s = Percentile(request_s_, 0.5),
            .request_p99_s = Percentile(request_s_, 0.99),
            .recomputed_share = static_cast<double>(stats.num_recomputed_tokens_total) /
                                static_cast<double>(num_computed_),
            .rows_per_step = static_cast<double>(num_rows_) / static_cast<double>(num_steps_),
            .num_pauses = stats.num_preemptions_total};
  }

 private:
  void Submit() {
    if (num_submitted_ == pressure_.num_requests) {
      return;
    }
    ++num_submitted_;
    const std::int32_t num_prompt =
        pressure_.in_lockstep ? kMeanPrompt : dice_.Between(kMinPrompt, kMaxPrompt);
    std::vector<TokenId> prompt(static_cast<std::size_t>(num_prompt));
    for (TokenId& token : prompt) {
      token = dice_.Below(1 << 17);
    }
    const std::int32_t num_output =
        pressure_.in_lockstep
            ? kMeanOutput
            : std::clamp(static_cast<std::int32_t>(dice_.LogNormal(kMedianOutput, kOutputSpread)),
                         kMinOutput, kMaxOutput);
    const TokenId end_id = MeasuredCore::kEndId;
    const Handle handle =
        core_.Submit({.prompt = prompt,
                      .scope = scope_,
                      .max_output_tokens = pressure_.lengths_are_known ? num_output : kMaxOutput,
                      .end_ids = {&end_id, 1},
                      .priority = 50,
                      .retention = {}});
    clients_[handle] = {.num_output = num_output, .submit_us = now_us_};
  }

  bool Plan() {
    const std::int32_t set = next_set_;
    const StepId step = core_.Plan(set, static_cast<std::int64_t>(now_us_ * 1e3));
    if (step == 0) {
      return false;
    }
    next_set_ = (next_set_ + 1) % (pressure_.run_ahead + 1);
    in_flight_.emplace_back(step, set);
    return true;
  }

  // The step runs, then its tokens are told.
  void Commit() {
    const auto [step, set] = in_flight_.front();
    in_flight_.pop_front();
    const StepBuffers& out = sets_[static_cast<std::size_t>(set)]->buffers();
    std::int64_t num_context = 0;
    for (std::int32_t row = 0; row < out.header[kHeaderNumRows]; ++row) {
      num_context += out.kv_len[row];
      const auto client = clients_.find(out.handle[row]);
      const bool ends =
          client != clients_.end() && out.output_position[row] + 1 == client->second.num_output;
      out.tokens[row] = ends ? MeasuredCore::kEndId : MeasuredCore::kToken;
      out.num_tokens[row] = (out.flags[row] & kFlagSample) != 0 ? 1 : 0;
    }
    const std::int32_t num_tokens = out.header[kHeaderNumTokens];
    now_us_ += pressure_.cost.step_us + pressure_.cost.token_us * num_tokens +
               pressure_.cost.context_token_us * static_cast<double>(num_context);
    num_computed_ += num_tokens;
    num_rows_ += out.header[kHeaderNumRows];
    ++num_steps_;
    core_.Commit(step);
    for (std::int32_t row = 0; row < out.header[kHeaderNumRows]; ++row) {
      const std::int32_t* result = out.result + static_cast<std::size_t>(row) * kResultColumns;
      if (result[0] == 1) {
        Tell(out.handle[row], result[1] != 0);
      }
    }
  }

  void Tell(Handle handle, bool has_ended) {
    Client& client = clients_.at(handle);
    if (client.num_told++ == 0) {
      first_s_.push_back((now_us_ - client.submit_us) * 1e-6);
    } else {
      gap_ms_.push_back((now_us_ - client.told_us) * 1e-3);
    }
    client.told_us = now_us_;
    ++num_outputs_;
    if (has_ended) {
      request_s_.push_back((now_us_ - client.submit_us) * 1e-6);
      clients_.erase(handle);
      Submit();
    }
  }

  Pressure pressure_;
  EngineCore core_;
  ghost::Dice dice_;
  std::vector<std::unique_ptr<StepArrays>> sets_;
  std::deque<std::pair<StepId, std::int32_t>> in_flight_;
  std::int32_t next_set_ = 0;
  ScopeId scope_ = 0;
  std::unordered_map<Handle, Client> clients_;
  std::int32_t num_submitted_ = 0;
  double now_us_ = 0;
  std::int64_t num_outputs_ = 0;
  std::int64_t num_computed_ = 0;
  std::int64_t num_rows_ = 0;
  std::int64_t num_steps_ = 0;
  std::vector<double> first_s_;
  std::vector<double> gap_ms_;
  std::vector<double> request_s_;
};

}  // namespace

PressureFigures RunUnderPressure(const Pressure& pressure) { return Run(pressure).Finish(); }

}  // namespace antiphon::bench
