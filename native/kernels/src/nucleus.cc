#include "antiphon/kernels/nucleus.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace antiphon::kernels {

namespace {

// A bin's weights differ by less than one part in 128.
constexpr int kBinShift = 16;
constexpr std::size_t kNumBins = (std::bit_cast<std::uint32_t>(1.0F) >> kBinShift) + 1;

std::size_t bin_of(float weight) {
  return std::min<std::size_t>(std::bit_cast<std::uint32_t>(weight) >> kBinShift, kNumBins - 1);
}

}  // namespace

NucleusDraw::NucleusDraw() : bins_(kNumBins) {}

void NucleusDraw::add_up(std::span<const float> weights) {
  std::fill(bins_.begin(), bins_.end(), 0.0);
  for (const float weight : weights) {
    bins_[bin_of(weight)] += weight;
  }
}

// The first bin from above with which the sum is above the target; else the last that has weight.
NucleusDraw::Crossing NucleusDraw::find(double target) const {
  Crossing found = {kNumBins - 1, 0.0};
  double before = 0.0;
  for (std::size_t bin = kNumBins; bin-- > 0;) {
    if (bins_[bin] == 0.0) {
      continue;
    }
    found = {bin, before};
    before += bins_[bin];
    if (before > target) {
      break;
    }
  }
  return found;
}

void NucleusDraw::collect(std::span<const float> weights, std::size_t bin) {
  members_.clear();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (bin_of(weights[i]) == bin && weights[i] > 0) {
      members_.push_back(static_cast<std::uint32_t>(i));
    }
  }
  std::stable_sort(members_.begin(), members_.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return weights[a] > weights[b]; });
}

std::size_t NucleusDraw::operator()(std::span<const float> weights, double limit, double uniform) {
  add_up(weights);
  // A weight is kept while those before it have not reached the limit: the next below is so too.
  const Crossing end = find(std::nextafter(limit, 0.0));
  collect(weights, end.bin);
  double kept = end.before;
  std::size_t num_kept = 0;
  for (const std::uint32_t member : members_) {
    if (num_kept > 0 && kept >= limit) {
      break;
    }
    kept += weights[member];
    ++num_kept;
  }
  const double target = std::min(uniform * kept, std::nextafter(kept, 0.0));
  const Crossing drawn = find(target);
  if (drawn.bin != end.bin) {
    collect(weights, drawn.bin);
    num_kept = members_.size();
  }
  double sum = drawn.before;
  for (std::size_t i = 0; i < num_kept; ++i) {
    sum += weights[members_[i]];
    if (sum > target) {
      return members_[i];
    }
  }
  return members_[num_kept - 1];
}

}  // namespace antiphon::kernels
