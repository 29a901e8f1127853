// A plain sampler in double precision with full sorts: the oracle of cpp/sample.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace freetoken::test {

struct ReferenceRow {
  std::vector<int> kept;             // most likely first, ties to the lowest id
  std::vector<double> probability;   // of kept, sums to 1
  double margin = 1.0;               // distance of top_p and min_p from the nearest number they cut at: how clear it is
};

inline ReferenceRow filter_row(const std::vector<float>& logits, const std::vector<uint8_t>& usable, double temperature, int top_k,
                               double top_p, double min_p = 0.0) {
  ReferenceRow row;
  for (int id = 0; id < int(logits.size()); id++)
    if (usable[size_t(id)] && logits[size_t(id)] > -std::numeric_limits<float>::infinity()) row.kept.push_back(id);
  std::stable_sort(row.kept.begin(), row.kept.end(), [&](int a, int b) { return logits[size_t(a)] > logits[size_t(b)]; });
  if (top_k > 0 && size_t(top_k) < row.kept.size()) row.kept.resize(size_t(top_k));
  const double max = logits[size_t(row.kept[0])];
  double total = 0;
  for (const int id : row.kept) {
    row.probability.push_back(std::exp((double(logits[size_t(id)]) - max) / temperature));
    total += row.probability.back();
  }
  for (double& p : row.probability) p /= total;
  if (top_p < 1) {
    double sum = 0;
    size_t n = 0;
    while (n < row.kept.size() && sum < top_p) {
      sum += row.probability[n++];
      row.margin = std::min(row.margin, std::fabs(sum - top_p));
    }
    row.kept.resize(n), row.probability.resize(n);
  }
  if (min_p > 0) {
    size_t n = 0;
    for (; n < row.kept.size(); n++) {
      const double distance = row.probability[n] / row.probability[0] - min_p;
      if (n > 0) row.margin = std::min(row.margin, std::fabs(distance));
      if (distance < 0) break;
    }
    row.kept.resize(n), row.probability.resize(n);
  }
  if (top_p < 1 || min_p > 0) {
    const double mass = std::accumulate(row.probability.begin(), row.probability.end(), 0.0);
    for (double& p : row.probability) p /= mass;
  }
  return row;
}

inline double log_softmax(const std::vector<float>& logits, int token) {
  double max = -std::numeric_limits<double>::infinity(), total = 0;
  for (const float x : logits) max = std::max(max, double(x));
  for (const float x : logits) total += std::exp(double(x) - max);
  return double(logits[size_t(token)]) - max - std::log(total);
}

}  // namespace freetoken::test
