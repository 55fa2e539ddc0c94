#include <sstream>

#include "soak.h"

namespace antiphon::soak {

namespace {

// The fields of a JSON object, in the order in which they come.
class Fields {
 public:
  template <typename T>
  Fields& Put(const std::string& name, const T& value) {
    text_ << (empty_ ? "" : ", ") << '"' << name << "\": " << value;
    empty_ = false;
    return *this;
  }
  Fields& PutText(const std::string& name, const std::string& value) {
    text_ << (empty_ ? "" : ", ") << '"' << name << "\": \"" << value << '"';
    empty_ = false;
    return *this;
  }
  std::string Object() const {
    std::string object = text_.str();
    object.insert(object.begin(), '{');
    object.push_back('}');
    return object;
  }

 private:
  std::ostringstream text_;
  bool empty_ = true;
};

double Ratio(double part, double whole) { return whole == 0 ? 0 : part / whole; }
double Ratio(std::int64_t part, std::int64_t whole) {
  return Ratio(static_cast<double>(part), static_cast<double>(whole));
}

void AddCounts(TrafficCounts& sum, const TrafficCounts& other) {
  sum.num_submitted += other.num_submitted;
  sum.num_refused += other.num_refused;
  sum.num_ended += other.num_ended;
  sum.num_aborted += other.num_aborted;
  sum.num_finished += other.num_finished;
  sum.num_holds += other.num_holds;
  sum.num_sit_outs += other.num_sit_outs;
  sum.num_scored += other.num_scored;
  sum.num_turns += other.num_turns;
  sum.num_forks += other.num_forks;
  sum.num_rewinds += other.num_rewinds;
  sum.num_closes += other.num_closes;
  sum.num_prompt_tokens += other.num_prompt_tokens;
  sum.num_reused_tokens += other.num_reused_tokens;
}

void AddWork(ghost::Work& sum, const ghost::Work& other) {
  sum.num_steps += other.num_steps;
  sum.num_rows += other.num_rows;
  sum.num_computed_tokens += other.num_computed_tokens;
  sum.num_recomputed_tokens += other.num_recomputed_tokens;
  sum.num_void_samples += other.num_void_samples;
  sum.num_withheld += other.num_withheld;
  sum.num_outputs += other.num_outputs;
  sum.num_resumptions += other.num_resumptions;
  sum.core_cpu_s += other.core_cpu_s;
}

void AddStats(CoreStats& sum, const CoreStats& other) {
  sum.num_preemptions_total += other.num_preemptions_total;
  sum.num_evictions_total += other.num_evictions_total;
  sum.num_offloads_total += other.num_offloads_total;
  sum.num_onloads_total += other.num_onloads_total;
  sum.num_copies_on_write_total += other.num_copies_on_write_total;
  sum.num_deferrals_total += other.num_deferrals_total;
  sum.num_bypasses_total += other.num_bypasses_total;
}

std::string WaitsJson(const QueueFigures& queue) {
  Fields classes;
  for (std::size_t i = 0; i < QueueFigures::kClassNames.size(); ++i) {
    const QueueFigures::Waits waits = queue.WaitsOf(i);
    Fields fields;
    fields.Put("p50", waits.p50).Put("p99", waits.p99).Put("max", waits.max);
    classes.Put(QueueFigures::kClassNames[i], fields.Object());
  }
  return classes.Object();
}

}  // namespace

void Report::Add(const Report& other) {
  num_variants += other.num_variants;
  AddWork(work, other.work);
  AddCounts(counts, other.counts);
  AddStats(stats, other.stats);
  queue.Add(other.queue);
  wall_s += other.wall_s;
}

std::string Report::Json(const std::string& policy) const {
  Fields fields;
  fields.PutText("policy", policy)
      .Put("num_requests", counts.num_submitted)
      .Put("num_refused", counts.num_refused)
      .Put("num_ended", counts.num_ended)
      .Put("num_aborted", counts.num_aborted)
      .Put("num_stop_strings", counts.num_finished)
      .Put("num_holds", counts.num_holds)
      .Put("num_sit_outs", counts.num_sit_outs)
      .Put("num_withheld", work.num_withheld)
      .Put("num_scored", counts.num_scored)
      .Put("num_turns", counts.num_turns)
      .Put("num_forks", counts.num_forks)
      .Put("num_rewinds", counts.num_rewinds)
      .Put("num_steps", work.num_steps)
      .Put("steps_per_s",
           static_cast<std::int64_t>(Ratio(static_cast<double>(work.num_steps), work.core_cpu_s)))
      .Put("core_us_per_row", Ratio(work.core_cpu_s * 1e6, static_cast<double>(work.num_rows)))
      .Put("rows_per_step", Ratio(work.num_rows, work.num_steps))
      .Put("num_outputs", work.num_outputs)
      .Put("reuse_rate", Ratio(counts.num_reused_tokens, counts.num_prompt_tokens))
      .Put("recomputed_share", Ratio(work.num_recomputed_tokens, work.num_computed_tokens))
      .Put("void_sample_share",
           Ratio(work.num_void_samples, work.num_void_samples + work.num_outputs))
      .Put("num_pauses", stats.num_preemptions_total)
      .Put("num_resumptions", work.num_resumptions)
      .Put("num_evictions", stats.num_evictions_total)
      .Put("num_offloads", stats.num_offloads_total)
      .Put("num_onloads", stats.num_onloads_total)
      .Put("num_copies_on_write", stats.num_copies_on_write_total)
      .Put("num_deferrals", stats.num_deferrals_total)
      .Put("num_bypasses", stats.num_bypasses_total)
      .Put("max_bypass", queue.max_bypass())
      .Put("queue_steps", WaitsJson(queue))
      .Put("wall_s", wall_s);
  return fields.Object();
}

}  // namespace antiphon::soak
