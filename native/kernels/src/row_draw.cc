#include "antiphon/kernels/row_draw.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "row_kernels.h"

namespace antiphon::kernels {

namespace {

// Tokens whose largest is known: only chunks that reach what is looked for are looked through.
constexpr std::size_t kChunk = 128;
// Tokens whose weights are added up first.
constexpr std::size_t kSumChunk = 512;
// Sorting more takes longer than to add weights up by their magnitude.
constexpr std::size_t kMaxSorted = 512;
// Far below any logit, yet differences and quotients stay finite.
constexpr float kFloor = -1e30F;
// The exponential of less is zero in double precision: nothing below is ever drawn.
constexpr float kWeightless = -746.0F;

void make_finite(std::span<float> logits) {
  for (float& logit : logits) {
    if (std::isnan(logit)) {
      logit = kFloor;
    }
    logit = std::clamp(logit, kFloor, -kFloor);
  }
}

// Halving adds element by element, so that no compiler's choice of an order enters.
float sum_by_halves(std::array<float, kSumChunk>& values) {
  for (std::size_t half = kSumChunk / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) {
      values[i] += values[half + i];
    }
  }
  return values[0];
}

std::span<const float> chunk_of(std::span<const float> row, std::size_t first, std::size_t size) {
  return row.subspan(first, std::min(size, row.size() - first));
}

// The first of rising sums that is above the target. That is taken below the last one, so that
// rounding never leads past the end, nor to a token of weight zero.
std::size_t first_above(const std::vector<double>& sums, double target) {
  const double last = std::nextafter(sums.back(), -std::numeric_limits<double>::infinity());
  const auto found = std::upper_bound(sums.begin(), sums.end(), std::min(target, last));
  return static_cast<std::size_t>(found - sums.begin());
}

}  // namespace

RowDraw::RowDraw(Isa isa) : kernels_(row_kernels(isa)) {}

std::size_t RowDraw::draw(std::span<float> logits, const DrawParams& params) {
  temperature_ = params.temperature;
  find_largest(logits);
  if (params.top_k > 0 || params.min_p > 0.0) {
    return draw_from_candidates(logits, params);
  }
  if (params.top_p < 1.0) {
    return draw_from_nucleus(logits, params.top_p, params.uniform);
  }
  return draw_from_all(logits, params.uniform);
}

std::size_t RowDraw::likeliest(std::span<float> logits) {
  find_largest(logits);
  const auto chunk = std::find(maxima_.begin(), maxima_.end(), largest_) - maxima_.begin();
  const auto from = logits.begin() + chunk * static_cast<std::ptrdiff_t>(kChunk);
  return static_cast<std::size_t>(std::find(from, logits.end(), largest_) - logits.begin());
}

// Finds the largest of the row and of its chunks.
void RowDraw::find_largest(std::span<float> logits) {
  if (!read_maxima(logits)) {
    make_finite(logits);
    read_maxima(logits);
  }
  largest_ = *std::max_element(maxima_.begin(), maxima_.end());
}

// Returns whether all logits are finite.
bool RowDraw::read_maxima(Row logits) {
  maxima_.clear();
  bool is_finite = true;
  for (std::size_t first = 0; first < logits.size(); first += kChunk) {
    const Row chunk = chunk_of(logits, first, kChunk);
    const float largest = kernels_.largest(chunk.data(), std::ssize(chunk));
    is_finite = is_finite && std::isfinite(largest);
    maxima_.push_back(largest);
  }
  return is_finite;
}

// Weighs tokens, the likeliest 1.
void RowDraw::weigh(Row logits, std::span<float> out) const {
  kernels_.weigh(logits.data(), std::ssize(logits), largest_, temperature_, out.data());
}

// Returns what all tokens weigh.
double RowDraw::add_up_chunks(Row logits) {
  chunk_sums_.clear();
  double total = 0.0;
  std::array<float, kSumChunk> weights;
  for (std::size_t first = 0; first < logits.size(); first += kSumChunk) {
    const Row chunk = chunk_of(logits, first, kSumChunk);
    weigh(chunk, weights);
    std::fill(weights.begin() + std::ssize(chunk), weights.end(), 0.0F);
    total += sum_by_halves(weights);
    chunk_sums_.push_back(total);
  }
  return total;
}

// By the inverse of the cumulative distribution over all tokens, in order of their places: the sums
// of chunks are searched first and then one chunk, which spares adding every token up in double
// precision.
std::size_t RowDraw::draw_from_all(Row logits, double uniform) {
  const double target = uniform * add_up_chunks(logits);
  const std::size_t chunk = first_above(chunk_sums_, target);
  const double before = chunk == 0 ? 0.0 : chunk_sums_[chunk - 1];
  const Row inside = chunk_of(logits, chunk * kSumChunk, kSumChunk);
  weights_.resize(inside.size());
  weigh(inside, weights_);
  sums_.clear();
  double sum = 0.0;
  for (const float weight : weights_) {
    sum += weight;
    sums_.push_back(sum);
  }
  return chunk * kSumChunk + first_above(sums_, target - before);
}

// From what top-p alone leaves.
std::size_t RowDraw::draw_from_nucleus(Row logits, double share, double uniform) {
  const double total = add_up_chunks(logits);
  // Tokens that weigh less, even if nearly all did, weigh less together than what is dropped.
  const double least = (1.0 - share) * total / static_cast<double>(logits.size());
  constexpr float kRounding = 1e-3F;
  collect(logits, std::max(static_cast<float>(std::log(least)) - kRounding, kWeightless));
  if (candidates_.size() <= kMaxSorted) {
    keep_likeliest(candidates_.size());
    add_up_candidates();
    return pick(share * total, uniform);
  }
  weights_.clear();
  for (const Candidate& candidate : candidates_) {
    weights_.push_back(candidate.scaled);
  }
  kernels_.weigh(weights_.data(), std::ssize(weights_), 0.0F, 1.0F, weights_.data());
  return candidates_[nucleus_(weights_, share * total, uniform)].place;
}

// From what the filters leave, top-k or min-p one of them.
std::size_t RowDraw::draw_from_candidates(Row logits, const DrawParams& params) {
  float lowest = kWeightless;
  if (params.min_p > 0.0) {
    // 0 at most, so the likeliest reaches it.
    lowest = std::max(lowest, static_cast<float>(std::min(std::log(params.min_p), 0.0)));
  }
  if (params.top_k > 0) {
    lowest = std::max(lowest, bound_of_likeliest(static_cast<std::size_t>(params.top_k)));
  }
  collect(logits, lowest);
  keep_likeliest(params.top_k > 0 ? static_cast<std::size_t>(params.top_k) : candidates_.size());
  const double total = add_up_candidates();
  const double weight = params.top_p < 1.0 ? params.top_p * total : total;
  return pick(weight, params.uniform);
}

// Brings the tokens that reach a bound.
void RowDraw::collect(Row logits, float lowest) {
  candidates_.clear();
  std::size_t num = 0;
  for (std::size_t chunk = 0; chunk < maxima_.size(); ++chunk) {
    if (scaled(maxima_[chunk]) < lowest) {
      continue;
    }
    // Each is written, and stays where it reaches the bound: no branch to be foretold wrongly.
    const std::size_t first = chunk * kChunk;
    const std::size_t end = std::min(first + kChunk, logits.size());
    candidates_.resize(num + (end - first));
    for (std::size_t i = first; i < end; ++i) {
      const float value = scaled(logits[i]);
      candidates_[num] = {value, static_cast<std::uint32_t>(i)};
      num += value >= lowest ? 1 : 0;
    }
    candidates_.resize(num);
  }
}

// Keeps so many candidates at most, and brings them in order.
void RowDraw::keep_likeliest(std::size_t num) {
  const auto comes_before = [](const Candidate& a, const Candidate& b) {
    return a.scaled != b.scaled ? a.scaled > b.scaled : a.place < b.place;
  };
  if (num < candidates_.size()) {
    const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(num);
    std::nth_element(candidates_.begin(), end, candidates_.end(), comes_before);
    candidates_.erase(end, candidates_.end());
  }
  std::sort(candidates_.begin(), candidates_.end(), comes_before);
}

// Returns what the candidates weigh.
double RowDraw::add_up_candidates() {
  sums_.clear();
  double total = 0.0;
  for (const Candidate& candidate : candidates_) {
    total += std::exp(static_cast<double>(candidate.scaled));
    sums_.push_back(total);
  }
  return total;
}

// Draws from the candidates that reach a weight together: one is kept while those before it have
// not reached it.
std::size_t RowDraw::pick(double weight, double uniform) {
  const auto reached = std::lower_bound(sums_.begin(), sums_.end(), weight);
  if (reached != sums_.end()) {
    sums_.erase(reached + 1, sums_.end());
  }
  return candidates_[first_above(sums_, uniform * sums_.back())].place;
}

// Returns what at least so many tokens reach, since the largest of as many chunks do.
float RowDraw::bound_of_likeliest(std::size_t num) {
  if (num > maxima_.size()) {
    return kWeightless;
  }
  ordered_maxima_ = maxima_;
  const auto last = ordered_maxima_.begin() + static_cast<std::ptrdiff_t>(num - 1);
  std::nth_element(ordered_maxima_.begin(), last, ordered_maxima_.end(), std::greater<>());
  return scaled(*last);
}

}  // namespace antiphon::kernels
