#include "sched/cost_model.h"

#include <algorithm>
#include <cmath>

namespace freetoken {
namespace {

void average(double* value, double sample) { *value = *value > 0 ? *value + 0.25 * (sample - *value) : sample; }

}  // namespace

void CostModel::observe(const StepCost& step, double us) {
  double left = us;
  if (step.prefill_tokens == 0 && step.slice_units == 0) {
    if (step.decode_rows == 0) return;
    const int bucket = std::min(kBuckets - 1, int(std::lround(std::log2(double(step.decode_rows)))));
    average(&decode_[bucket], us);
    return;
  }
  left -= decode_us(step.decode_rows);
  if (step.slice_units > 0 && step.prefill_tokens == 0 && step.slice_tokens > 0) {
    average(&slice_token_unit_us_, std::max(left, 0.05 * us) / (double(step.slice_tokens) * step.slice_units));
    return;
  }
  if (step.slice_units > 0) left -= slice_unit_us(step.slice_tokens) * step.slice_units;
  average(&prefill_token_us_, std::max(left, 0.05 * us) / step.prefill_tokens);
}

double CostModel::decode_us(int rows) const {
  if (rows <= 0) return 0;
  const double place = std::log2(double(rows));
  // The nearest buckets that were seen, below (or at) and above.
  int below = -1, above = -1;
  for (int b = 0; b < kBuckets; b++) {
    if (decode_[b] <= 0) continue;
    if (b <= place) below = b;
    else if (above < 0) above = b;
  }
  if (below < 0 && above < 0) return 0;
  if (below < 0) return decode_[above];
  if (above < 0) return decode_[below] * std::max(1.0, rows / std::exp2(below));  // the most it can be
  const double low = std::exp2(below), high = std::exp2(above);
  return decode_[below] + (decode_[above] - decode_[below]) * (rows - low) / (high - low);
}

}  // namespace freetoken
