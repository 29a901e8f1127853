// CostModel: how long a step takes, learnt from the steps that were run.
//
// step = decode(rows) + prefill + slice units * tokens * (time of one)
// prefill = tokens * a + positions * b, positions = the sum of the tokens' positions: what their attention reads
//
// decode() is a table over powers of two of the number of rows, between which it is interpolated: with experts it is far
// from linear, because few rows touch few experts. a and b are fitted by recursive least squares that forget (weight 0.85 a
// step); the others are running averages that weigh the last observation by 1/4. So all follow what slowly changes.
#pragma once
#include <array>
#include <cstdint>

namespace freetoken {

struct StepCost {
  int decode_rows = 0;           // of running requests, drafts included
  int prefill_tokens = 0;        // in the same batch
  int64_t prefill_positions = 0;
  int slice_tokens = 0, slice_units = 0;  // of the resumable batch
};

// Sum of the positions first .. first + count - 1.
constexpr int64_t position_sum(int first, int count) { return int64_t(count) * first + int64_t(count) * (count - 1) / 2; }

class CostModel {
 public:
  void observe(const StepCost& step, double us);

  // Predictions, in us; 0 while nothing like it was seen.
  double decode_us(int rows) const;
  double prefill_us(int first_position, int tokens) const;
  double slice_unit_us(int tokens) const { return slice_token_unit_us_ * tokens; }
  bool knows_prefill() const { return prefill_seen_; }
  bool knows_slices() const { return slice_token_unit_us_ > 0; }
  // The most tokens from first_position on that take at most `us`.
  int prefill_tokens_within(double us, int first_position) const;

 private:
  static constexpr int kBuckets = 17;  // 1, 2, 4, .. 65536 rows

  void fit_prefill(double tokens, double positions, double us);

  std::array<double, kBuckets> decode_{};
  bool prefill_seen_ = false;
  double token_us_ = 0, position_us_ = 0;              // a, b
  double tt_ = 0, tp_ = 0, pp_ = 0, ty_ = 0, py_ = 0;  // weighted sums of products of tokens, positions and times
  double slice_token_unit_us_ = 0;                     // per token and unit
};

}  // namespace freetoken
