#include "antiphon/kernels/thread_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace antiphon::kernels {
namespace {

class ThreadTeamOf : public testing::TestWithParam<int> {};

TEST_P(ThreadTeamOf, RunsARegionOnEveryWorker) {
  ThreadTeam team(GetParam());
  std::vector<int> num_calls(static_cast<std::size_t>(GetParam()));
  std::vector<std::thread::id> threads(num_calls.size());

  for (int i = 0; i < 20; ++i) {
    team.run([&](Worker& worker) {
      EXPECT_EQ(worker.count(), GetParam());
      ++num_calls[static_cast<std::size_t>(worker.index())];
      threads[static_cast<std::size_t>(worker.index())] = std::this_thread::get_id();
    });
  }

  EXPECT_EQ(num_calls, std::vector<int>(num_calls.size(), 20));
  EXPECT_EQ(threads.front(), std::this_thread::get_id());
  EXPECT_EQ(std::set(threads.begin(), threads.end()).size(), threads.size());
}

// Plain integers, so that the thread sanitizer sees a barrier that orders nothing.
TEST_P(ThreadTeamOf, WhatWasWrittenBeforeABarrierIsSeenBehindIt) {
  ThreadTeam team(GetParam());
  std::vector<int> counts(static_cast<std::size_t>(GetParam()));
  std::atomic<int> num_wrong{0};

  for (int region = 0; region < 10; ++region) {
    team.run([&](Worker& worker) {
      for (int i = 1; i <= 20; ++i) {
        ++counts[static_cast<std::size_t>(worker.index())];
        worker.barrier();
        if (std::accumulate(counts.begin(), counts.end(), 0) != (region * 20 + i) * GetParam()) {
          ++num_wrong;
        }
        worker.barrier();
      }
    });
  }

  EXPECT_EQ(num_wrong, 0);
}

TEST_P(ThreadTeamOf, ACursorGivesEachTaskOnce) {
  ThreadTeam team(GetParam());
  TaskCursor cursor;
  std::vector<int> num_taken(1000);

  for (int i = 0; i < 3; ++i) {
    cursor.reset();
    team.run([&](Worker&) {
      for (std::int64_t task = cursor.next(); task < std::ssize(num_taken); task = cursor.next()) {
        ++num_taken[static_cast<std::size_t>(task)];
      }
    });
  }

  EXPECT_EQ(num_taken, std::vector<int>(1000, 3));
}

TEST_P(ThreadTeamOf, AnExceptionReachesTheCallerAndEndsTheRegion) {
  ThreadTeam team(GetParam());
  for (int thrower = 0; thrower < GetParam(); ++thrower) {
    std::atomic<int> num_behind{0};
    try {
      team.run([&](Worker& worker) {
        worker.barrier();
        if (worker.index() == thrower) {
          throw std::runtime_error("worker " + std::to_string(thrower));
        }
        worker.barrier();
        ++num_behind;
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "worker " + std::to_string(thrower));
    }
    EXPECT_EQ(num_behind, 0);
    int num_running = 0;
    team.run([&](Worker& worker) {
      worker.barrier();
      if (worker.index() == 0) {
        ++num_running;
      }
    });
    EXPECT_EQ(num_running, 1) << "the team works on";
  }
}

TEST_P(ThreadTeamOf, ScratchIsAlignedOneWorkersOwnAndKept) {
  ThreadTeam team(GetParam());
  std::vector<std::byte*> before(static_cast<std::size_t>(GetParam()));
  std::vector<std::byte*> after(before.size());

  team.run([&](Worker& worker) {
    before[static_cast<std::size_t>(worker.index())] = worker.scratch(1000);
  });
  team.run([&](Worker& worker) {
    after[static_cast<std::size_t>(worker.index())] = worker.scratch(100);
  });

  EXPECT_EQ(before, after);
  EXPECT_EQ(std::set(before.begin(), before.end()).size(), before.size());
  for (const std::byte* scratch : before) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(scratch) % kCacheLine, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadTeamOf, testing::Values(1, 2, 3, 8));

TEST(ThreadTeam, RefusesToHaveNoThreads) { EXPECT_THROW(ThreadTeam(0), std::invalid_argument); }

TEST(ThreadTeam, SleepsAndWakesBetweenRegions) {
  ThreadTeam team(2);
  for (int i = 0; i < 3; ++i) {
    // Longer than workers spin.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::atomic<int> num_calls{0};
    team.run([&](Worker&) { ++num_calls; });
    EXPECT_EQ(num_calls, 2);
  }
}

}  // namespace
}  // namespace antiphon::kernels
