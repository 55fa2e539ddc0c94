#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "antiphon/engine_core.h"
#include "ghost_engine.h"
#include "queue_figures.h"
#include "traffic.h"

namespace antiphon::soak {

// One way to run a policy.
struct Variant {
  std::string name;
  CoreConfig core;
  std::int64_t num_requests = 0;
  std::uint64_t seed = 0;
};

struct Report {
  std::int64_t num_variants = 0;
  ghost::Work work;
  TrafficCounts counts;
  QueueFigures queue;
  CoreStats stats;  // at the end, summed
  double wall_s = 0;

  void Add(const Report& other);
  // One line.
  std::string Json(const std::string& policy) const;
};

// The ways in which a policy is run: each depth of run-ahead, with and without a host tier, under
// pools from tight to roomy, which share out `num_requests`.
std::vector<Variant> VariantsOf(CapacityPolicy policy, std::int64_t num_requests,
                                std::uint64_t seed);

// Runs a variant to its end, then checks that nothing is left. Calls `progress` now and then with
// the requests that were submitted. Throws ghost::Contradiction or what the core throws.
Report RunVariant(const Variant& variant, const std::function<void(std::int64_t)>& progress);

}  // namespace antiphon::soak
