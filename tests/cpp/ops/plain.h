// The plain arithmetic that operations are compared with: one output of one row at a time, on the scalar kernels (which have
// oracles of their own in tests/cpp/kernels), and the same in double.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/fp_env.h"
#include "kernels/matmul.h"
#include "kernels/row_ops.h"
#include "model/tiny_weights.h"

namespace freetoken::testing {

using Values = std::vector<float>;

inline bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && (a.empty() || !std::memcmp(a.data(), b.data(), a.size() * sizeof(float)));
}

// The largest difference, as a part of the largest expected value. Infinite where one of them is no number.
inline double relative_difference(const Values& got, const Values& expected) {
  if (got.size() != expected.size()) return HUGE_VAL;
  double difference = 0, largest = 1e-30;
  for (size_t i = 0; i < got.size(); i++) {
    if (!std::isfinite(got[i]) || !std::isfinite(expected[i])) return HUGE_VAL;
    difference = std::max(difference, std::fabs(double(got[i]) - double(expected[i])));
    largest = std::max(largest, std::fabs(double(expected[i])));
  }
  return difference / largest;
}

inline ActivationKind kind_of(WeightFormat f, bool float32) {
  return float32 ? ActivationKind::kF32 : traits(f).activation;
}

// w x, one row of inputs, all outputs.
inline Values plain_matmul(const TestWeight& w, const Values& x, bool float32) {
  set_denormals_to_zero();
  const MatmulKernels& kernels = matmul_kernels(IsaLevel::kScalar);
  const ActivationKind kind = kind_of(w.format, float32);
  std::vector<uint8_t> row(activation_row_bytes(kind, w.k) + 64);
  kernels.encode_row(kind, x.data(), w.k, row.data());
  Values out(size_t(tile_count(w.n)) * kTileRows);
  const uint8_t* in = row.data();
  float* to = out.data();
  kernels.matmul_tiles({w.format, w.n, w.k, w.packed()}, 0, tile_count(w.n), 1, kind, &in, &to, nullptr);
  out.resize(size_t(w.n));
  return out;
}

inline void plain_add(Values& y, const TestWeight* bias) {
  if (bias)
    for (size_t i = 0; i < y.size(); i++) y[i] = y[i] + bias->values[i];
}

struct FeedForward {
  TestWeight gate, up, down;
  const TestWeight *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
};
inline Values plain_feed_forward(const FeedForward& f, const Values& x, bool float32) {
  Values g = plain_matmul(f.gate, x, float32), u = plain_matmul(f.up, x, float32);
  plain_add(g, f.gate_bias);
  plain_add(u, f.up_bias);
  row_kernels(IsaLevel::kScalar).gated(g.data(), u.data(), int(g.size()), g.data());
  Values y = plain_matmul(f.down, g, float32);
  plain_add(y, f.down_bias);
  return y;
}

// The same in double on the decoded weights: w x, with the sum of the sizes of its terms.
inline std::vector<double> exact_matmul(const TestWeight& w, const std::vector<double>& x,
                                        std::vector<double>* sizes = nullptr) {
  std::vector<double> y(size_t(w.n), 0.0);
  if (sizes) sizes->assign(size_t(w.n), 0.0);
  for (int i = 0; i < w.n; i++)
    for (int k = 0; k < w.k; k++) {
      const double term = double(w.values[size_t(i) * size_t(w.k) + size_t(k)]) * x[size_t(k)];
      y[size_t(i)] += term;
      if (sizes) (*sizes)[size_t(i)] += std::fabs(term);
    }
  return y;
}

}  // namespace freetoken::testing
