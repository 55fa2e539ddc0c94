#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "antiphon/types.h"

namespace antiphon {

// A binary min-heap over the ids 0 .. size-1, each in it at most once, that knows where each lies:
// an id can leave the middle or change its key. `Key` has operator<; equal keys go by id, so that
// the order is total.
//
// Looking at the least is O(1), everything else O(log n). Never allocates after construction.
// Not thread-safe.
template <typename Key>
class IndexedHeap {
 public:
  explicit IndexedHeap(std::size_t size) : places_(size, kNowhere), keys_(size) {
    heap_.reserve(size);
  }

  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }
  bool Contains(std::int32_t id) const { return places_[Index(id)] != kNowhere; }

  // REQUIRES: !empty()
  std::int32_t top() const { return heap_.front(); }
  const Key& top_key() const { return keys_[Index(heap_.front())]; }

  // REQUIRES: Contains(id)
  const Key& key(std::int32_t id) const { return keys_[Index(id)]; }

  // Puts `id` in with `key`, or gives it that key.
  void Set(std::int32_t id, const Key& key) {
    keys_[Index(id)] = key;
    if (!Contains(id)) {
      places_[Index(id)] = static_cast<std::int32_t>(heap_.size());
      heap_.push_back(id);
    }
    MoveDown(MoveUp(static_cast<std::size_t>(places_[Index(id)])));
  }

  // Takes `id` out if it is in.
  void Remove(std::int32_t id) {
    if (!Contains(id)) {
      return;
    }
    const auto place = static_cast<std::size_t>(places_[Index(id)]);
    const std::int32_t last = heap_.back();
    heap_.pop_back();
    places_[Index(id)] = kNowhere;
    if (last != id) {
      Put(place, last);
      MoveDown(MoveUp(place));
    }
  }

  // For checks: the ids in it, in no order.
  const std::vector<std::int32_t>& ids() const { return heap_; }

 private:
  static constexpr std::int32_t kNowhere = -1;
  static std::size_t Index(std::int32_t id) { return static_cast<std::size_t>(id); }

  bool Less(std::int32_t a, std::int32_t b) const {
    const Key& key_a = keys_[Index(a)];
    const Key& key_b = keys_[Index(b)];
    if (key_a < key_b) {
      return true;
    }
    return !(key_b < key_a) && a < b;
  }

  void Put(std::size_t place, std::int32_t id) {
    heap_[place] = id;
    places_[Index(id)] = static_cast<std::int32_t>(place);
  }

  std::size_t MoveUp(std::size_t place) {
    const std::int32_t id = heap_[place];
    while (place > 0 && Less(id, heap_[(place - 1) / 2])) {
      Put(place, heap_[(place - 1) / 2]);
      place = (place - 1) / 2;
    }
    Put(place, id);
    return place;
  }

  void MoveDown(std::size_t place) {
    const std::int32_t id = heap_[place];
    for (std::size_t child = 2 * place + 1; child < heap_.size(); child = 2 * place + 1) {
      if (child + 1 < heap_.size() && Less(heap_[child + 1], heap_[child])) {
        ++child;
      }
      if (!Less(heap_[child], id)) {
        break;
      }
      Put(place, heap_[child]);
      place = child;
    }
    Put(place, id);
  }

  std::vector<std::int32_t> heap_;
  std::vector<std::int32_t> places_;
  std::vector<Key> keys_;
};

}  // namespace antiphon
