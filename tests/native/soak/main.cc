// Soak of the core: a long trace under each policy, on a ghost device that checks all that is read.
//
// Every policy is run in six variants (run-ahead 0 to 2, with and without a host tier), which share
// its requests out. Prints one JSON line a policy; leaves with 1 and the way to reproduce it where
// something is wrong.
#include <array>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "soak.h"

namespace {

using antiphon::CapacityPolicy;
using antiphon::soak::Report;
using antiphon::soak::Variant;

struct Options {
  std::int64_t num_requests = 1000000;
  std::uint64_t seed = 1;
  std::int64_t num_threads = 2;
  std::string policy = "all";
  std::int64_t variant = -1;  // all
  bool quiet = false;
};

constexpr std::string_view kUsage =
    "usage: antiphon_core_soak [--requests=N] [--seed=N] [--threads=N] [--policy=NAME|all]\n"
    "                          [--variant=0..5] [--quiet]\n";

template <typename T>
bool Read(std::string_view argument, std::string_view name, T& value) {
  if (!argument.starts_with(name)) {
    return false;
  }
  argument.remove_prefix(name.size());
  return std::from_chars(argument.begin(), argument.end(), value).ptr == argument.end();
}

bool ReadOption(std::string_view argument, Options& options) {
  if (argument.starts_with("--policy=")) {
    options.policy = argument.substr(9);
    return true;
  }
  if (argument == "--quiet") {
    options.quiet = true;
    return true;
  }
  return Read(argument, "--requests=", options.num_requests) ||
         Read(argument, "--seed=", options.seed) ||
         Read(argument, "--threads=", options.num_threads) ||
         Read(argument, "--variant=", options.variant);
}

// Runs variants on several threads: cores share nothing, so that each has its own.
class Crew {
 public:
  Crew(const std::vector<Variant>& variants, const Options& options)
      : variants_(variants), options_(options) {}

  // Returns false where a variant failed.
  bool Run(Report& report) {
    std::vector<std::thread> threads;
    for (std::int64_t i = 0; i < options_.num_threads; ++i) {
      threads.emplace_back([this] { RunSome(); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    report.Add(report_);
    return num_failed_ == 0;
  }

 private:
  void RunSome() {
    for (std::size_t i = next_++; i < variants_.size(); i = next_++) {
      if (options_.variant < 0 || options_.variant == static_cast<std::int64_t>(i)) {
        RunOne(i);
      }
    }
  }

  void RunOne(std::size_t number) {
    const Variant& variant = variants_[number];
    const auto progress = [&](std::int64_t num_requests) {
      if (!options_.quiet) {
        std::fprintf(stderr, "%s: %lld of %lld requests\n", variant.name.c_str(),
                     static_cast<long long>(num_requests),
                     static_cast<long long>(variant.num_requests));
      }
    };
    try {
      const Report report = antiphon::soak::RunVariant(variant, progress);
      const std::lock_guard lock(mutex_);
      report_.Add(report);
    } catch (const std::exception& error) {
      ++num_failed_;
      std::fprintf(stderr,
                   "%s: %s\nreproduce: antiphon_core_soak --requests=%lld --seed=%llu --policy=%s "
                   "--variant=%zu\n",
                   variant.name.c_str(), error.what(),
                   static_cast<long long>(options_.num_requests),
                   static_cast<unsigned long long>(options_.seed),
                   antiphon::PolicyName(variant.core.capacity_policy), number);
    }
  }

  const std::vector<Variant>& variants_;
  const Options& options_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::int64_t> num_failed_ = 0;
  std::mutex mutex_;
  Report report_;
};

}  // namespace

int main(int num_arguments, char** arguments) {
  Options options;
  for (int i = 1; i < num_arguments; ++i) {
    if (!ReadOption(arguments[i], options)) {
      std::fputs(kUsage.data(), stderr);
      return 2;
    }
  }
  bool good = true;
  bool ran = false;
  for (const CapacityPolicy policy :
       {CapacityPolicy::kGuaranteedNoEvict, CapacityPolicy::kMaxUtilization,
        CapacityPolicy::kStaticBatch}) {
    const std::string name = antiphon::PolicyName(policy);
    if (options.policy != "all" && options.policy != name) {
      continue;
    }
    ran = true;
    Report report;
    const auto variants = antiphon::soak::VariantsOf(policy, options.num_requests, options.seed);
    good = Crew(variants, options).Run(report) && good;
    std::printf("%s\n", report.Json(name).c_str());
    std::fflush(stdout);
  }
  if (!ran) {
    std::fputs(kUsage.data(), stderr);
    return 2;
  }
  return good ? 0 : 1;
}
