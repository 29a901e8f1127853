// CostModel: how long a step takes, learnt from the steps that were run.
//
// step = decode(rows) + prefill tokens * (time of one) + slice units * (time of one)
//
// decode() is a table over powers of two of the number of rows, between which it is interpolated: with experts it is far
// from linear, because few rows touch few experts. The other two are running averages, which follow what slowly changes
// (context length, clock). All averages weigh the last observation by 1/4.
#pragma once
#include <array>

namespace freetoken {

struct StepCost {
  int decode_rows = 0;      // of running requests, drafts included
  int prefill_tokens = 0;   // in the same batch
  int slice_tokens = 0, slice_units = 0;  // of the resumable batch
};

class CostModel {
 public:
  void observe(const StepCost& step, double us);

  // Predictions, in us; 0 while nothing like it was seen.
  double decode_us(int rows) const;
  double prefill_us(int tokens) const { return prefill_token_us_ * tokens; }
  double slice_unit_us(int tokens) const { return slice_token_unit_us_ * tokens; }
  bool knows_prefill() const { return prefill_token_us_ > 0; }
  bool knows_slices() const { return slice_token_unit_us_ > 0; }

 private:
  static constexpr int kBuckets = 17;  // 1, 2, 4, .. 65536 rows
  std::array<double, kBuckets> decode_{};
  double prefill_token_us_ = 0;
  double slice_token_unit_us_ = 0;     // per token and unit
};

}  // namespace freetoken
