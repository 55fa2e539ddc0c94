// Draws a token from a row of logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "antiphon/kernels/cpu_features.h"
#include "antiphon/kernels/nucleus.h"

namespace antiphon::kernels {

struct RowKernels;

// Each filter sees what the one before it left: min-p keeps tokens at least so likely relative to
// the likeliest, top-k the so many likeliest, top-p the smallest set of the likeliest that reaches
// its share of what the two left. The likeliest token always stays.
struct DrawParams {
  float temperature = 1.0F;  // above 0
  std::int64_t top_k = 0;    // 0: off
  double top_p = 1.0;        // 1: off
  double min_p = 0.0;        // to 1; 0: off
  double uniform = 0.0;      // in [0, 1): which point of the distribution
};

// The memory that draws work in; it grows to what the longest row takes. One thread at a time.
//
// A result depends on the row and the parameters alone, to the last bit on one `isa`. Among equal
// logits the first comes first. What is no number counts as least, an infinite logit as one of a
// large magnitude.
class RowDraw {
 public:
  explicit RowDraw(Isa isa = best_isa());

  // Returns the place of what is drawn; overwrites what isn't finite.
  // REQUIRES: there are logits.
  std::size_t draw(std::span<float> logits, const DrawParams& params);

  // Returns the place of the largest; overwrites what isn't finite.
  // REQUIRES: there are logits.
  std::size_t likeliest(std::span<float> logits);

 private:
  using Row = std::span<const float>;
  struct Candidate {
    float scaled;
    std::uint32_t place;
  };

  void find_largest(std::span<float> logits);
  bool read_maxima(Row logits);
  float scaled(float logit) const { return (logit - largest_) / temperature_; }
  void weigh(Row logits, std::span<float> out) const;
  double add_up_chunks(Row logits);
  std::size_t draw_from_all(Row logits, double uniform);
  std::size_t draw_from_nucleus(Row logits, double share, double uniform);
  std::size_t draw_from_candidates(Row logits, const DrawParams& params);
  void collect(Row logits, float lowest);
  void keep_likeliest(std::size_t num);
  double add_up_candidates();
  std::size_t pick(double weight, double uniform);
  float bound_of_likeliest(std::size_t num);

  const RowKernels& kernels_;
  NucleusDraw nucleus_;
  float temperature_ = 1.0F;
  float largest_ = 0.0F;
  std::vector<float> maxima_;  // of each chunk of the row
  std::vector<float> ordered_maxima_;
  std::vector<Candidate> candidates_;
  std::vector<double> sums_;  // of candidates, or inside of one chunk
  std::vector<double> chunk_sums_;
  std::vector<float> weights_;
};

}  // namespace antiphon::kernels
