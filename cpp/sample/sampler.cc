#include "sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "core/math.h"
#include "sample/philox.h"
#include "sample/scan_kernels.h"

namespace freetoken {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

}  // namespace

Sampler::Sampler(const std::vector<uint8_t>& usable) : scan_(usable) {}

int32_t Sampler::sample(const float* logits, const SamplerState& state, std::span<const int32_t> ahead,
                        uint32_t position, uint32_t sample_index) {
  scan_.load(logits);
  state.adjust(logits, ahead, scan_);
  return draw(state.params(), position, sample_index);
}

int32_t Sampler::sample(const float* logits, const SampleParams& params, uint32_t position, uint32_t sample_index) {
  scan_.load(logits);
  return draw(params, position, sample_index);
}

int32_t Sampler::draw(const SampleParams& params, uint32_t position, uint32_t sample_index) {
  scan_.scan_max();
  if (scan_.row_argmax() < 0 || params.greedy() || scan_.row_max() == kInfinity) return scan_.row_argmax();
  const float u = draw_uniform(params.seed, position, sample_index), inv_temperature = 1.0f / params.temperature;
  if (params.top_k > 0 && params.top_k < scan_.vocab()) {
    gather(kth_bound(params.top_k));
    candidates_.keep_count(size_t(params.top_k));
    const double total = candidates_.weigh(scan_.row_max(), inv_temperature);
    if (params.top_p < 1.0f) candidates_.keep_mass(double(params.top_p) * total);
    if (params.min_p > 0.0f) candidates_.keep_weight(params.min_p);
  } else if (params.min_p > 0.0f) {
    // Top-p and min-p both cut the order of likelihood at one place, so the one that leaves fewer may go first: what
    // matters is that top-p's share is one of the whole row.
    gather_likely(params);
    candidates_.weigh(scan_.row_max(), inv_temperature);
    candidates_.keep_weight(params.min_p);
    if (params.top_p < 1.0f) {
      scan_.scan_sum(inv_temperature);
      candidates_.keep_mass(double(params.top_p) * scan_.total());
    }
  } else if (params.top_p < 1.0f) {
    gather_nucleus(params.top_p, inv_temperature);
  } else {
    return draw_row(u, inv_temperature);
  }
  return candidates_.draw(u);
}

RowLogprobs Sampler::logprobs(const float* logits, int32_t token, int top_n) {
  RowLogprobs result;
  result.token_logprob = kNaN;
  const float max = row_maximum(logits, scan_.vocab());
  if (max == kInfinity || max == -kInfinity) return result;
  const float log_total = log_f32(float(row_total(logits, scan_.vocab(), max)));
  result.token_logprob = (logits[token] - max) - log_total;
  if (top_n <= 0) return result;
  scan_.load(logits);
  scan_.scan_max();
  gather(kth_bound(top_n));
  candidates_.keep_count(size_t(top_n));
  candidates_.sort_by_likelihood();
  for (size_t i = 0; i < candidates_.size(); i++)
    result.top.emplace_back(candidates_.id(i), (candidates_.logit(i) - max) - log_total);
  return result;
}

// Each block's maximum is an id of its own, so k of them reach the k-th largest maximum.
float Sampler::kth_bound(int k) {
  if (k > scan_.blocks()) return -kInfinity;
  bounds_.resize(size_t(scan_.blocks()));
  for (int block = 0; block < scan_.blocks(); block++) bounds_[size_t(block)] = scan_.block_max(block);
  std::nth_element(bounds_.begin(), bounds_.begin() + (k - 1), bounds_.end(), std::greater<float>());
  return bounds_[size_t(k - 1)];
}

void Sampler::gather(float bound) {
  candidates_.clear();
  for (int block = 0; block < scan_.blocks(); block++) {
    if (!(scan_.block_max(block) >= bound)) continue;
    const float* x = scan_.block_data(block);
    for (int i = 0; i < scan_.block_size(block); i++)
      if (x[i] >= bound && x[i] > -kInfinity) candidates_.add(x[i], block * kScanBlock + i);
  }
}

// Gathers with a falling bound until the mass is there, so that a peaked row looks at a few ids and not the vocabulary.
void Sampler::gather_nucleus(float top_p, float inv_temperature) {
  scan_.scan_sum(inv_temperature);
  const double needed = double(top_p) * scan_.total();
  for (const float depth : {6.0f, 14.0f, kInfinity}) {
    gather(scan_.row_max() - depth / inv_temperature);
    if (candidates_.weigh(scan_.row_max(), inv_temperature) >= needed) break;
  }
  candidates_.keep_mass(needed);
}

// The bound lies low enough for every rounding of a weight (relative errors of 1e-6 against this 1e-3).
void Sampler::gather_likely(const SampleParams& params) {
  const double depth = double(params.temperature) * (std::log(double(params.min_p)) - 1e-3);
  const double lowest = std::numeric_limits<float>::lowest();
  gather(float(std::max(double(scan_.row_max()) + depth, lowest)));
}

int32_t Sampler::draw_row(float u, float inv_temperature) {
  scan_.scan_sum(inv_temperature);
  const double target = double(u) * scan_.total();
  double sum = 0.0;
  int block = 0;
  while (block + 1 < scan_.blocks() && sum + double(scan_.block_sum(block)) <= target) sum += double(scan_.block_sum(block++));
  // Within the block the weights are added one by one, which may end a rounding error short of the block's sum: the last
  // id with any weight takes the rest.
  const float* x = scan_.block_data(block);
  int32_t last = -1;
  for (int i = 0; i < scan_.block_size(block); i++) {
    const float weight = scan_weight(x[i], scan_.row_max(), inv_temperature);
    if (weight > 0.0f) last = block * kScanBlock + i;
    sum += double(weight);
    if (sum > target) break;
  }
  return last >= 0 ? last : scan_.row_argmax();
}

}  // namespace freetoken
