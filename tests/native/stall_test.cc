// A core that finds nothing to run although requests wait says so, and does not go on for ever.
#include <gtest/gtest.h>

#include <string>

#include "small_engine.h"

namespace antiphon {
namespace {

CoreConfig AdmittingOnce() {
  return SmallWith([](CoreConfig& config) {
    config.faults.max_admissions = 1;
    config.stall_passes = 5;
  });
}

TEST(Stall, IsToldAfterSoManyEmptyPlansWithWhoWaits) {
  Engine engine(AdmittingOnce());
  engine.Submit(3, 2);
  engine.SubmitFrom(20, 4, 2);
  while (engine.Step()) {
  }  // the first ends; the last of these plans is the first empty one
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(engine.Plan(), 0);
  }

  try {
    engine.Plan();
    FAIL();
  } catch (const StalledError& error) {
    const std::string census = error.what();
    EXPECT_NE(census.find("running=0 waiting=1"), std::string::npos) << census;
    EXPECT_NE(census.find("[queued"), std::string::npos) << census;
    EXPECT_NE(census.find("known=4"), std::string::npos) << census;
  }
}

TEST(Stall, AStepBetweenOrAnEndOfAllWaitingBeginsTheCountAnew) {
  Engine engine(AdmittingOnce());
  const Handle waiting = engine.SubmitFrom(20, 4, 2);
  engine.Run();
  const Handle stuck = engine.Submit(3, 2);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(engine.Plan(), 0);
  }

  engine.core().Hold(stuck);
  EXPECT_EQ(engine.Plan(), 0);
  engine.core().Release(stuck);

  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(engine.Plan(), 0);
  }
  EXPECT_THROW(engine.Plan(), StalledError);
  EXPECT_FALSE(engine.core().Abort(waiting));
}

}  // namespace
}  // namespace antiphon
