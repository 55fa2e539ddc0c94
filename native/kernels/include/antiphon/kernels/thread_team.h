#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace antiphon::kernels {

inline constexpr std::size_t kCacheLine = 64;

// Hands out the numbers 0, 1, 2 … to whoever asks next: the small tasks of one op. A worker whose
// core was taken away holds up its one task, not a share of the op.
class alignas(kCacheLine) TaskCursor {
 public:
  std::int64_t next() { return next_.fetch_add(1, std::memory_order_relaxed); }

  // Begins again. Only between regions, or where barriers keep all others from `next`.
  void reset() { next_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> next_{0};
};

class ThreadTeam;

// One thread within a region. Used by that thread only.
class alignas(kCacheLine) Worker {
 public:
  Worker(ThreadTeam& team, int index) : team_(team), index_(index) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  int index() const { return index_; }  // from 0, the caller of `run`
  int count() const;                    // of the team's workers

  // Returns once all workers have called it; what they wrote before is seen after it. Spins for a
  // moment and then sleeps. Unwinds the region where another worker's has thrown.
  void barrier();

  // Memory of this worker alone, aligned to a cache line, kept from region to region. What an
  // earlier call gave is lost. Its content is whatever was there.
  std::byte* scratch(std::size_t num_bytes);

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };

  ThreadTeam& team_;
  const int index_;
  std::size_t scratch_size_ = 0;
  std::unique_ptr<std::byte, Free> scratch_;
};

// Threads that carry out regions together. The caller of `run` is worker 0. Idle workers spin for a
// moment, for the next region may follow at once, and then sleep.
//
// One thread at a time may call `run`.
class ThreadTeam {
 public:
  // Starts `num_threads` - 1 threads (`num_threads` from 1). With `pin`, and where the process may
  // use as many cores, each keeps to a core of its own; the caller is left where it is, for threads
  // that it starts later would inherit its place. Nobody spins where there are fewer cores.
  // Throws std::invalid_argument, and std::system_error where a thread can't be started.
  explicit ThreadTeam(int num_threads, bool pin = true);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()); }

  // Calls `region(worker)` on every worker, and returns when all have returned. Throws what a
  // worker has thrown first; the others then end at their next barrier. So a region lets exceptions
  // pass that it doesn't know.
  template <class Region>
  void run(Region&& region) {
    using Callable = std::remove_reference_t<Region>;
    run_on_all(
        [](const void* context, Worker& worker) {
          (*static_cast<Callable*>(const_cast<void*>(context)))(worker);
        },
        std::addressof(region));
  }

 private:
  friend class Worker;
  using Entry = void (*)(const void* context, Worker& worker);

  void run_on_all(Entry entry, const void* context);
  void start_threads(bool pin);
  void serve(int index);
  void enter_region(Worker& worker);
  void fail(std::exception_ptr error);
  void barrier();
  void await_change(const std::atomic<std::uint32_t>& word, std::uint32_t seen) const;
  void stop();

  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::thread> threads_;
  std::chrono::nanoseconds spin_{0};

  // Written by the caller before `epoch_`, read by workers behind it.
  Entry entry_ = nullptr;
  const void* context_ = nullptr;
  bool stopping_ = false;

  std::mutex error_mutex_;
  std::exception_ptr error_;

  alignas(kCacheLine) std::atomic<std::uint32_t> epoch_{0};        // one up with each region
  alignas(kCacheLine) std::atomic<std::uint32_t> num_running_{0};  // threads within the region
  alignas(kCacheLine) std::atomic<std::uint32_t> num_arrived_{0};  // at the barrier
  alignas(kCacheLine) std::atomic<std::uint32_t> generation_{0};   // one up with each barrier
  std::atomic<bool> failed_{false};
};

}  // namespace antiphon::kernels
