// A fuzzer for compilers without libFuzzer. Runs the corpus, then inputs made by changing those
// that are kept; an input is kept if it reached code that none before it did (where the core is
// built to tell). Bounded by a count. An input that fails is written to a file, smaller if it can
// be, and the exit status is 1.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "dice.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using antiphon::ghost::Dice;
using Input = std::vector<std::uint8_t>;

// Edges of the core that the input at work has passed, and those that any has.
constexpr std::size_t kNumEdges = 1U << 16;
std::array<std::uint8_t, kNumEdges> edges_now;
std::array<std::uint8_t, kNumEdges> edges_ever;
std::uintptr_t last_place;

// Where an input goes on which the process ends before it can be caught.
std::string crash_path = "fuzz-crash";
const Input* input_at_work;

void Save(const Input& input) {
  std::ofstream file(crash_path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(input.data()),
             static_cast<std::streamsize>(input.size()));
}

void SaveInputAtWork() {
  if (input_at_work != nullptr) {
    Save(*input_at_work);
    std::fprintf(stderr, "the input is in %s\n", crash_path.c_str());
  }
}

// Returns what is wrong, or nothing.
std::string Try(const Input& input) {
  edges_now.fill(0);
  last_place = 0;
  input_at_work = &input;
  std::string wrong;
  try {
    LLVMFuzzerTestOneInput(input.data(), input.size());
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  input_at_work = nullptr;
  return wrong;
}

// Whether the last input passed an edge, or passed it so many times, as none before it did.
bool ReachedMore() {
  bool more = false;
  for (std::size_t edge = 0; edge < kNumEdges; ++edge) {
    std::uint8_t bucket = 0;
    for (std::uint8_t count = edges_now[edge]; count != 0; count >>= 1) {
      bucket = static_cast<std::uint8_t>(bucket + 1);
    }
    const auto bit = static_cast<std::uint8_t>(bucket == 0 ? 0 : 1U << (bucket - 1));
    more = more || (bit & ~edges_ever[edge]) != 0;
    edges_ever[edge] = static_cast<std::uint8_t>(edges_ever[edge] | bit);
  }
  return more;
}

// REQUIRES: `kept` is not empty
Input Changed(const std::vector<Input>& kept, std::size_t max_size, Dice& dice) {
  Input input = kept[dice.Bits() % kept.size()];
  for (std::int32_t left = dice.Between(1, 8); left > 0; --left) {
    const std::size_t place = input.empty() ? 0 : dice.Bits() % input.size();
    const auto at = input.begin() + static_cast<std::ptrdiff_t>(place);
    const auto byte = static_cast<std::uint8_t>(dice.Bits());
    switch (dice.Below(input.empty() ? 1 : 5)) {
      case 0:
        for (std::int32_t i = dice.Between(1, 24); i > 0; --i) {
          input.push_back(static_cast<std::uint8_t>(dice.Bits()));
        }
        break;
      case 1:
        *at = byte;
        break;
      case 2:
        input.insert(at, byte);
        break;
      case 3:
        input.erase(at, at + std::min<std::ptrdiff_t>(dice.Between(1, 8), input.end() - at));
        break;
      default: {
        // The rest of another.
        const Input& other = kept[dice.Bits() % kept.size()];
        input.resize(place);
        const std::size_t from = std::min(place, other.size());
        input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
      }
    }
  }
  input.resize(std::min(input.size(), max_size));
  return input;
}

// Leaves out what the failure does not need.
Input Shrunk(Input input, const std::string& wrong) {
  for (std::size_t size = std::max<std::size_t>(input.size() / 2, 1); size >= 1; size /= 2) {
    for (std::size_t begin = 0; begin + size <= input.size();) {
      Input less = input;
      const auto at = less.begin() + static_cast<std::ptrdiff_t>(begin);
      less.erase(at, at + static_cast<std::ptrdiff_t>(size));
      if (Try(less) == wrong) {
        input = less;
      } else {
        begin += size;
      }
    }
  }
  return input;
}

std::vector<Input> Corpus(const std::vector<std::string>& paths) {
  std::vector<std::filesystem::path> files;
  for (const std::string& path : paths) {
    if (std::filesystem::is_directory(path)) {
      for (const auto& entry : std::filesystem::directory_iterator(path)) {
        files.push_back(entry.path());
      }
    } else {
      files.emplace_back(path);
    }
  }
  std::ranges::sort(files);
  std::vector<Input> inputs;
  for (const std::filesystem::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

template <typename T>
bool Read(std::string_view argument, std::string_view name, T& value) {
  if (!argument.starts_with(name)) {
    return false;
  }
  argument.remove_prefix(name.size());
  return std::from_chars(argument.begin(), argument.end(), value).ptr == argument.end();
}

int Fail(const Input& input, const std::string& wrong) {
  std::fprintf(stderr, "%s\n", wrong.c_str());
  const Input small = Shrunk(input, wrong);
  Save(small);
  std::fprintf(stderr, "%zu bytes that fail are in %s\n", small.size(), crash_path.c_str());
  return 1;
}

}  // namespace

extern "C" {

void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

// Called by code that is built with -fsanitize-coverage=trace-pc.
void __sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  std::uint8_t& count = edges_now[((place >> 1) ^ last_place) % kNumEdges];
  count = static_cast<std::uint8_t>(count + (count < 255 ? 1 : 0));
  last_place = place;
}
}

int main(int num_arguments, char** arguments) {
  std::uint64_t num_runs = 10000;
  std::uint64_t seed = 1;
  std::size_t max_size = 400;
  std::vector<std::string> paths;
  for (int i = 1; i < num_arguments; ++i) {
    const std::string_view argument = arguments[i];
    if (argument.starts_with("-crash=")) {
      crash_path = argument.substr(7);
    } else if (!Read(argument, "-runs=", num_runs) && !Read(argument, "-seed=", seed) &&
               !Read(argument, "-max_len=", max_size)) {
      paths.emplace_back(argument);
    }
  }
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(SaveInputAtWork);
  }
  Dice dice(seed);
  std::vector<Input> kept;
  for (const Input& input : Corpus(paths)) {
    if (const std::string wrong = Try(input); !wrong.empty()) {
      return Fail(input, wrong);
    }
    ReachedMore();
    kept.push_back(input);
  }
  const std::size_t num_given = kept.size();
  if (kept.empty()) {
    kept.emplace_back();
  }
  for (std::uint64_t run = 0; run < num_runs; ++run) {
    const Input input = Changed(kept, max_size, dice);
    if (const std::string wrong = Try(input); !wrong.empty()) {
      return Fail(input, wrong);
    }
    if (ReachedMore() || kept.size() < num_given + 16) {
      kept.push_back(input);
    }
    if ((run + 1) % 10000 == 0) {
      std::fprintf(stderr, "%llu runs, %zu inputs kept\n", static_cast<unsigned long long>(run + 1),
                   kept.size());
    }
  }
  std::fprintf(stderr, "%zu given and %llu random inputs: nothing is wrong\n", num_given,
               static_cast<unsigned long long>(num_runs));
  return 0;
}
