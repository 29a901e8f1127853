// Norms against doubles; the fused form and rows in a batch against themselves, bit for bit.
#include "cuda/kernels/norm.h"

#include "cuda/kernels/rows.h"
#include "cuda/kernels/rows_support.h"

namespace freetoken::cuda {
namespace {

using testing::DeviceArray;
using testing::random_values;
using testing::Rows2d;
using testing::same_bits;

struct Case {
  bool layer, plus_one, weight, bias;
  int rows, cols;
};
void PrintTo(const Case& c, std::ostream* os) {
  *os << (c.layer ? "layer" : "rms") << (c.plus_one ? " +1" : "") << (c.weight ? " w" : "") << (c.bias ? " b" : "") << " "
      << c.rows << "x" << c.cols;
}

// Value and bound of one element. A sum of a row rounds at most 4 * ceil(cols / 1024) times in a thread, 5 in the warp, 8 over
// warps. Its relative error halves under the root; the root, the quotient and the products round once each.
struct Exact {
  double value, bound;
};
Exact exact(const Case& c, const float* x, const float* w, const float* b, float eps, int i) {
  constexpr double kUnit = 0x1p-24;
  const double sum_error = (4 * ((c.cols + 1023) / 1024) + 13) * kUnit;
  double mean = 0.0, magnitude = 0.0, square = 0.0;
  if (c.layer)
    for (int j = 0; j < c.cols; j++) mean += x[j] / double(c.cols), magnitude += std::fabs(x[j]) / c.cols;
  for (int j = 0; j < c.cols; j++) square += (x[j] - mean) * (x[j] - mean) / c.cols;
  const double inverse = 1.0 / std::sqrt(square + double(eps));
  const double factor = w ? double(w[i]) + (c.plus_one ? 1.0 : 0.0) : 1.0, normed = (x[i] - mean) * inverse * factor;
  const double mean_error = c.layer ? (sum_error + kUnit) * magnitude : 0.0;
  // The centre's error enters each difference, and the sum of squares to second order.
  const double bound = mean_error * inverse * std::fabs(factor) + std::fabs(normed) * (sum_error / 2 + 8 * kUnit) +
                       (b ? kUnit * std::fabs(normed + b[i]) : 0.0) + mean_error * mean_error * inverse * inverse * std::fabs(normed);
  return {normed + (b ? b[i] : 0.0), bound};
}

class Norm : public ::testing::TestWithParam<Case> {};

TEST_P(Norm, IsNearTheExactValueAndFusesAndBatchesToTheSameBits) {
  const Case c = GetParam();
  std::mt19937 rng(3);
  constexpr float kEps = 1e-5f;
  Rows2d x(c.rows, c.cols), y(c.rows, c.cols);
  x.fill(rng, 3.0f);
  y.fill(rng);
  if (c.layer)
    for (int r = 0; r < c.rows; r++)
      for (int i = 0; i < c.cols; i++) x.row(r)[i] += 2.0f;
  const std::vector<float> w = random_values(size_t(c.cols), rng), b = random_values(size_t(c.cols), rng);
  const DeviceArray<float> device_w(w), device_b(b);
  const NormArgs norm{c.layer, c.plus_one, kEps, c.weight ? device_w.data() : nullptr, c.bias ? device_b.data() : nullptr};

  const DeviceArray<float> in(x.values), out(Rows2d(c.rows, c.cols).values);
  FT_EXPECT_CUDA(launch_norm(norm, in.data(), x.stride, c.rows, c.cols, out.data(), x.stride, nullptr));
  Rows2d got(c.rows, c.cols);
  got.values = out.read();
  EXPECT_TRUE(got.marks_stay());
  for (int r = 0; r < c.rows; r++)
    for (int i = 0; i < c.cols; i++) {
      const Exact e = exact(c, x.row(r), c.weight ? w.data() : nullptr, c.bias ? b.data() : nullptr, kEps, i);
      ASSERT_LE(std::fabs(got.row(r)[i] - e.value), e.bound) << "row " << r << ", column " << i << ", exact " << e.value;
    }

  // Each row alone, over its input.
  for (int r = 0; r < c.rows; r++) {
    const DeviceArray<float> alone(std::vector<float>(x.row(r), x.row(r) + x.stride));
    FT_EXPECT_CUDA(launch_norm(norm, alone.data(), x.stride, 1, c.cols, alone.data(), x.stride, nullptr));
    EXPECT_TRUE(same_bits(alone.read().data(), got.row(r), c.cols)) << "row " << r;
  }

  // Fused with the residual.
  const DeviceArray<float> apart(x.values), fused(x.values), added(y.values), two(Rows2d(c.rows, c.cols).values),
      one(Rows2d(c.rows, c.cols).values);
  FT_EXPECT_CUDA(launch_add(apart.data(), x.stride, added.data(), y.stride, 0.7f, c.rows, c.cols, nullptr));
  FT_EXPECT_CUDA(launch_norm(norm, apart.data(), x.stride, c.rows, c.cols, two.data(), x.stride, nullptr));
  FT_EXPECT_CUDA(launch_add_norm(norm, fused.data(), x.stride, added.data(), y.stride, 0.7f, c.rows, c.cols, one.data(),
                                 x.stride, nullptr));
  EXPECT_TRUE(same_bits(fused.read().data(), apart.read().data(), int(x.values.size())));
  EXPECT_TRUE(same_bits(one.read().data(), two.read().data(), int(x.values.size())));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Norm,
                         ::testing::Values(Case{false, false, true, false, 5, 64}, Case{false, false, false, false, 2, 1},
                                           Case{false, true, true, false, 3, 2050}, Case{false, false, true, false, 1, 1023},
                                           Case{true, false, true, true, 4, 130}, Case{true, false, true, false, 2, 1029},
                                           Case{true, false, false, false, 1, 7}));

TEST(Norm, RefusesRowsThatAreNotAligned) {
  const DeviceArray<float> x(size_t(64));
  const NormArgs norm{false, false, 1e-6f, nullptr, nullptr};
  EXPECT_EQ(int(launch_norm(norm, x.data() + 1, 16, 2, 8, x.data() + 32, 16, nullptr)), int(cudaErrorInvalidValue));
  EXPECT_EQ(int(launch_norm(norm, x.data(), 15, 2, 8, x.data() + 32, 16, nullptr)), int(cudaErrorInvalidValue));
  FT_EXPECT_CUDA(launch_norm(norm, x.data(), 16, 0, 8, x.data(), 16, nullptr));
}

}  // namespace
}  // namespace freetoken::cuda
