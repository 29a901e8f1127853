#include "sample/candidates.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "sample/scan_kernels.h"

namespace freetoken {
namespace {

// Unsigned numbers in the order of floats; -0 and +0 are one.
uint32_t order_key(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Digit {
  int shift;
  uint32_t mask;
};
constexpr Digit kDigits[] = {{21, 0x7ff}, {10, 0x7ff}, {0, 0x3ff}};
constexpr size_t kBins = 2048;
constexpr size_t kSortedSize = 256;  // up to here a sort is faster than three passes over the bins

}  // namespace

void Candidates::clear() {
  logits_.clear();
  ids_.clear();
}

double Candidates::weigh(float max, float inv_temperature) {
  weights_.resize(size());
  scan_kernels().weigh(logits_.data(), int(size()), max, inv_temperature, weights_.data());
  double total = 0.0;
  for (const float weight : weights_) total += double(weight);
  return total;
}

void Candidates::keep_count(size_t k) {
  if (k < size()) keep_prefix(false, double(k));
}

void Candidates::keep_mass(double needed) {
  if (size() > 1) keep_prefix(true, needed);
}

void Candidates::keep_weight(float min) {
  size_t kept = 0;
  for (size_t i = 0; i < size(); i++) {
    if (!(weights_[i] >= min)) continue;
    logits_[kept] = logits_[i], ids_[kept] = ids_[i], weights_[kept] = weights_[i];
    kept++;
  }
  logits_.resize(kept);
  ids_.resize(kept);
  weights_.resize(kept);
}

void Candidates::keep_prefix(bool by_weight, double needed) {
  const Cut cut = size() <= kSortedSize ? cut_by_sort(by_weight, needed) : cut_by_digits(by_weight, needed);
  size_t kept = 0;
  for (size_t i = 0; i < size(); i++) {
    const uint32_t key = order_key(logits_[i]);
    if (key < cut.key || (key == cut.key && ids_[i] > cut.id)) continue;
    logits_[kept] = logits_[i], ids_[kept] = ids_[i];
    if (by_weight) weights_[kept] = weights_[i];
    kept++;
  }
  logits_.resize(kept);
  ids_.resize(kept);
  if (by_weight) weights_.resize(kept);
}

Candidates::Cut Candidates::cut_by_sort(bool by_weight, double needed) {
  order_.resize(size());
  std::iota(order_.begin(), order_.end(), 0u);
  std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
    return logits_[a] > logits_[b] || (logits_[a] == logits_[b] && a < b);
  });
  double sum = 0.0;
  size_t last = 0;
  for (size_t i = 0; i < size() && sum < needed; i++) {
    last = order_[i];
    sum += by_weight ? double(weights_[last]) : 1.0;
  }
  return {order_key(logits_[last]), ids_[last]};
}

// Radix selection: three passes over the digits of the order key, each choosing the bin in which the sum of values, from
// the most likely down, reaches `needed`. Of 150,000 candidates this takes 1.5 ms; a full sort takes 12.
Candidates::Cut Candidates::cut_by_digits(bool by_weight, double needed) {
  uint32_t prefix = 0, prefix_mask = 0;
  double sum = 0.0;
  for (const Digit& digit : kDigits) {
    bins_.assign(kBins, -1.0);  // -1 = empty, so that a bin of zero weights is not
    for (size_t i = 0; i < size(); i++) {
      const uint32_t key = order_key(logits_[i]);
      if ((key & prefix_mask) != prefix) continue;
      double& bin = bins_[(key >> digit.shift) & digit.mask];
      bin = std::max(bin, 0.0) + (by_weight ? double(weights_[i]) : 1.0);
    }
    int chosen = 0;
    double above = sum;
    for (int b = int(digit.mask); b >= 0 && sum < needed; b--) {
      if (bins_[size_t(b)] < 0.0) continue;
      chosen = b;
      above = sum;
      sum += bins_[size_t(b)];
    }
    sum = above;
    prefix |= uint32_t(chosen) << digit.shift;
    prefix_mask |= digit.mask << digit.shift;
  }
  Cut cut = {prefix, 0};  // what is left are ties, in order of id
  for (size_t i = 0; i < size() && sum < needed; i++) {
    if (order_key(logits_[i]) != prefix) continue;
    cut.id = ids_[i];
    sum += by_weight ? double(weights_[i]) : 1.0;
  }
  return cut;
}

int32_t Candidates::draw(float u) const {
  const double total = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  const double target = double(u) * total;
  double sum = 0.0;
  int32_t last = -1;
  for (size_t i = 0; i < size(); i++) {
    if (weights_[i] > 0.0f) last = ids_[i];
    sum += double(weights_[i]);
    if (sum > target) break;
  }
  return last;
}

void Candidates::sort_by_likelihood() {
  std::vector<std::pair<float, int32_t>> order;
  for (size_t i = 0; i < size(); i++) order.emplace_back(-logits_[i], ids_[i]);
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < size(); i++) logits_[i] = -order[i].first, ids_[i] = order[i].second;
}

}  // namespace freetoken
