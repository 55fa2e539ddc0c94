#pragma once

#include <vector>

#include "antiphon/engine_core.h"

namespace antiphon {

// What is under way while a step is planned.
struct EngineCore::Step {
  PlanWriter writer;
  std::vector<PlannedRow>& rows;
  Load load = {};
  bool has_paused = false;
  bool any_onloading = false;
};

}  // namespace antiphon
