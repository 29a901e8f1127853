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
  fit_prefill(step.prefill_tokens, double(step.prefill_positions), std::max(left, 0.05 * us));
}

void CostModel::fit_prefill(double tokens, double positions, double us) {
  constexpr double kForget = 0.85;
  // Relative errors count, so that a step of few tokens says as much as one of many.
  const double weight = 1.0 / (tokens * tokens);
  tt_ = kForget * tt_ + weight * tokens * tokens;
  tp_ = kForget * tp_ + weight * tokens * positions;
  pp_ = kForget * pp_ + weight * positions * positions;
  ty_ = kForget * ty_ + weight * tokens * us;
  py_ = kForget * py_ + weight * positions * us;
  prefill_seen_ = true;
  // Steps of nearly one context length do not tell a and b apart: then all is a's.
  const double determinant = tt_ * pp_ - tp_ * tp_;
  token_us_ = ty_ / tt_, position_us_ = 0;
  if (determinant < 1e-3 * tt_ * pp_) return;
  const double a = (ty_ * pp_ - py_ * tp_) / determinant, b = (py_ * tt_ - ty_ * tp_) / determinant;
  if (a > 0 && b > 0) token_us_ = a, position_us_ = b;
}

double CostModel::prefill_us(int first_position, int tokens) const {
  return token_us_ * tokens + position_us_ * double(position_sum(first_position, tokens));
}

int CostModel::prefill_tokens_within(double us, int first_position) const {
  // n (a + b first) + b n^2 / 2 = us
  const double linear = token_us_ + position_us_ * first_position;
  if (us <= 0 || linear <= 0) return us <= 0 ? 0 : INT32_MAX;
  const double tokens = position_us_ > 0 ? (std::sqrt(linear * linear + 2 * position_us_ * us) - linear) / position_us_ : us / linear;
  return int(std::min(tokens, double(INT32_MAX)));
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
