#include "antiphon/kernels/thread_team.h"

#include <pthread.h>
#include <sched.h>

#include <csignal>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace antiphon::kernels {

namespace {

// Longer than the time between two ops, shorter than what waking from sleep costs several times.
constexpr std::chrono::microseconds kSpin{30};
constexpr int kPausesPerLook = 8;

// Ends the region of a worker whose mate's has failed.
struct Unwind {};

void pause_core() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

std::vector<int> allowed_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) {
        cores.push_back(core);
      }
    }
  }
  return cores;
}

// Where it is refused the thread runs anywhere, which is slower and no error.
void pin_to(std::thread& thread, int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
}

// Signals are for the threads of the program, which know what to do with them.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

int Worker::count() const { return team_.num_threads(); }

void Worker::barrier() { team_.barrier(); }

void Worker::Free::operator()(std::byte* bytes) const {
  ::operator delete(bytes, std::align_val_t{kCacheLine});
}

std::byte* Worker::scratch(std::size_t num_bytes) {
  if (num_bytes > scratch_size_) {
    scratch_.reset();
    scratch_size_ = 0;
    scratch_.reset(
        static_cast<std::byte*>(::operator new(num_bytes, std::align_val_t{kCacheLine})));
    scratch_size_ = num_bytes;
  }
  return scratch_.get();
}

ThreadTeam::ThreadTeam(int num_threads, bool pin) {
  if (num_threads < 1) {
    throw std::invalid_argument("a team has at least one thread, not " +
                                std::to_string(num_threads));
  }
  for (int index = 0; index < num_threads; ++index) {
    workers_.push_back(std::make_unique<Worker>(*this, index));
  }
  try {
    start_threads(pin);
  } catch (...) {
    stop();
    throw;
  }
}

ThreadTeam::~ThreadTeam() { stop(); }

void ThreadTeam::start_threads(bool pin) {
  const std::vector<int> cores = allowed_cores();
  const bool has_cores = cores.size() >= workers_.size();
  if (has_cores) {
    spin_ = kSpin;
  }
  const SignalsBlocked blocked;
  threads_.reserve(workers_.size() - 1);
  for (int index = 1; index < num_threads(); ++index) {
    threads_.emplace_back([this, index] { serve(index); });
    if (pin && has_cores) {
      pin_to(threads_.back(), cores[static_cast<std::size_t>(index)]);
    }
    // The kernel keeps 15 characters of it.
    const std::string name = ("kernels-" + std::to_string(index)).substr(0, 15);
    pthread_setname_np(threads_.back().native_handle(), name.c_str());
  }
}

void ThreadTeam::stop() {
  stopping_ = true;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void ThreadTeam::serve(int index) {
  // Not read from `epoch_`: a region may have begun before this thread got to run.
  for (std::uint32_t seen = 0;; ++seen) {
    await_change(epoch_, seen);
    if (stopping_) {
      return;
    }
    enter_region(*workers_[static_cast<std::size_t>(index)]);
    if (num_running_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      num_running_.notify_one();
    }
  }
}

void ThreadTeam::run_on_all(Entry entry, const void* context) {
  entry_ = entry;
  context_ = context;
  num_running_.store(static_cast<std::uint32_t>(threads_.size()), std::memory_order_relaxed);
  if (!threads_.empty()) {
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }
  enter_region(*workers_.front());
  for (;;) {
    const std::uint32_t num_running = num_running_.load(std::memory_order_acquire);
    if (num_running == 0) {
      break;
    }
    await_change(num_running_, num_running);
  }
  if (failed_.load(std::memory_order_relaxed)) {
    failed_.store(false, std::memory_order_relaxed);
    num_arrived_.store(0, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void ThreadTeam::enter_region(Worker& worker) {
  try {
    entry_(context_, worker);
  } catch (const Unwind&) {
    // The first error is kept already.
  } catch (...) {
    fail(std::current_exception());
  }
}

void ThreadTeam::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(error_mutex_);
    if (!error_) {
      error_ = std::move(error);
    }
  }
  failed_.store(true, std::memory_order_release);
  // Wakes those at a barrier that this worker will never come to.
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
}

void ThreadTeam::barrier() {
  const std::uint32_t generation = generation_.load(std::memory_order_acquire);
  if (failed_.load(std::memory_order_acquire)) {
    throw Unwind{};
  }
  if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == workers_.size()) {
    num_arrived_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
  } else {
    await_change(generation_, generation);
  }
  if (failed_.load(std::memory_order_acquire)) {
    throw Unwind{};
  }
}

// `word` is a counter: it never comes back to `seen` while somebody waits.
void ThreadTeam::await_change(const std::atomic<std::uint32_t>& word, std::uint32_t seen) const {
  if (spin_.count() > 0) {
    const auto end = std::chrono::steady_clock::now() + spin_;
    do {
      for (int i = 0; i < kPausesPerLook; ++i) {
        if (word.load(std::memory_order_acquire) != seen) {
          return;
        }
        pause_core();
      }
    } while (std::chrono::steady_clock::now() < end);
  }
  word.wait(seen, std::memory_order_acquire);
}

}  // namespace antiphon::kernels
