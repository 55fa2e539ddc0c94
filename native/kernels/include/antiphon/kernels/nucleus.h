// Draws from the heaviest tokens that together reach a weight (top-p).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace antiphon::kernels {

// The memory that draws work in. One thread at a time.
class NucleusDraw {
 public:
  NucleusDraw();

  // Returns the index that `uniform`, in [0, 1), picks from the smallest set of the heaviest
  // weights that reach `limit` together, heaviest first and the first of equals first. The heaviest
  // one is always in the set. Depends on its arguments alone, to the last bit.
  //
  // Sorts only weights close to the two that are looked for: it adds weights up by their leading
  // bits.
  //
  // REQUIRES: weights from 0 to 1, one of them 1.
  std::size_t operator()(std::span<const float> weights, double limit, double uniform);

 private:
  struct Crossing {
    std::size_t bin;
    double before;  // weight in the bins above
  };

  void add_up(std::span<const float> weights);
  Crossing find(double target) const;
  void collect(std::span<const float> weights, std::size_t bin);

  std::vector<double> bins_;
  std::vector<std::uint32_t> members_;  // of one bin, heaviest first
};

}  // namespace antiphon::kernels
