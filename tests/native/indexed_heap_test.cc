#include "antiphon/indexed_heap.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace antiphon {
namespace {

std::vector<std::int32_t> Drain(IndexedHeap<int>& heap) {
  std::vector<std::int32_t> ids;
  while (!heap.empty()) {
    ids.push_back(heap.top());
    heap.Remove(heap.top());
  }
  return ids;
}

TEST(IndexedHeap, GivesTheLeastFirst) {
  IndexedHeap<int> heap(5);
  heap.Set(0, 30);
  heap.Set(3, 10);
  heap.Set(4, 20);

  EXPECT_EQ(heap.top_key(), 10);
  EXPECT_EQ(Drain(heap), (std::vector<std::int32_t>{3, 4, 0}));
}

TEST(IndexedHeap, EqualKeysGoById) {
  IndexedHeap<int> heap(4);
  for (const std::int32_t id : {2, 0, 3, 1}) {
    heap.Set(id, 7);
  }

  EXPECT_EQ(Drain(heap), (std::vector<std::int32_t>{0, 1, 2, 3}));
}

TEST(IndexedHeap, AKeyCanChangeBothWays) {
  IndexedHeap<int> heap(3);
  for (const std::int32_t id : {0, 1, 2}) {
    heap.Set(id, id);
  }

  heap.Set(0, 9);
  heap.Set(2, -1);

  EXPECT_EQ(heap.size(), 3U);
  EXPECT_EQ(Drain(heap), (std::vector<std::int32_t>{2, 1, 0}));
}

TEST(IndexedHeap, AnIdCanLeaveTheMiddleAndComeBack) {
  IndexedHeap<int> heap(4);
  for (const std::int32_t id : {0, 1, 2, 3}) {
    heap.Set(id, id);
  }

  heap.Remove(1);
  heap.Remove(1);
  EXPECT_FALSE(heap.Contains(1));
  heap.Set(1, 5);

  EXPECT_EQ(Drain(heap), (std::vector<std::int32_t>{0, 2, 3, 1}));
}

TEST(IndexedHeap, AgreesWithASortedMapUnderRandomUse) {
  constexpr std::int32_t kSize = 50;
  std::mt19937 random(1);
  IndexedHeap<int> heap(kSize);
  std::map<std::int32_t, int> keys;
  for (int i = 0; i < 20'000; ++i) {
    const auto id = static_cast<std::int32_t>(random() % kSize);
    if (random() % 3 == 0) {
      heap.Remove(id);
      keys.erase(id);
    } else {
      keys[id] = static_cast<int>(random() % 20);
      heap.Set(id, keys[id]);
    }
    ASSERT_EQ(heap.size(), keys.size());
    if (!keys.empty()) {
      std::pair<int, std::int32_t> least = {1000, 0};
      for (const auto& [each, key] : keys) {
        least = std::min(least, {key, each});
      }
      ASSERT_EQ(heap.top(), least.second);
      ASSERT_EQ(heap.top_key(), least.first);
    }
  }
}

}  // namespace
}  // namespace antiphon
