// The scalar level against fp64 on the decoded weights, with tolerances that follow from the roundings made.
#include <cmath>

#include "kernels/matmul_case.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

constexpr double kUlp = 0x1p-24;  // largest relative error of one fp32 rounding

struct Sums {
  double dot = 0, magnitude = 0, weights = 0;  // sum w x, sum |w x|, sum of |w| * (largest error of x)
};

// Error of x after encoding, as a bound: fp32 none, bf16 half of its last bit, int8 half a step of its block.
double encoding_error(ActivationKind kind, const float* x, int k, int i) {
  if (kind == ActivationKind::kF32) return 0;
  if (kind == ActivationKind::kBF16) return std::fabs(double(x[i])) * 0x1p-8;
  double largest = 0;
  for (int j = i / 32 * 32; j < k && j < i / 32 * 32 + 32; j++) largest = std::max(largest, std::fabs(double(x[j])));
  return largest / 127 * (0.5 + 1e-4);  // 1e-4: s and x * (127 / max) are rounded themselves
}

class MatmulOracle : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_denormals_to_zero(); }
};

// Tolerance: the encoding error of each x times |w|, plus n fp32 roundings of a sum that never exceeds sum |w x|: an
// fma per element or per block (with the rounding of its scale product) makes at most k + 3 of them, Q4_1's m twice
// as many.
TEST_P(MatmulOracle, ScalarIsWithinTheRoundingBound) {
  const WeightFormat f = WeightFormat(GetParam());
  std::mt19937 rng(5);
  const int n = 40, k = traits(f).block_k == 1 ? 301 : 768, m = 3;
  const Matrix w(f, n, k, random_rows(f, n, k, rng));
  const std::vector<float> decoded = w.decoded(), x = random_activations(m, k, rng);
  for (ActivationKind kind : kinds_of(f)) {
    const MatmulKernels& kernels = matmul_kernels(IsaLevel::kScalar);
    const Activations a(kernels, kind, x, m, k);
    Outputs out(m, n);
    kernels.matmul_tiles(w.view(), 0, 2, m, kind, a.rows.data(), out.rows.data(), nullptr);
    double worst = 0;
    for (int i = 0; i < m; i++)
      for (int c = 0; c < n; c++) {
        Sums sums;
        for (int j = 0; j < k; j++) {
          const double weight = decoded[size_t(c) * size_t(k) + size_t(j)];
          const double value = x[size_t(i) * size_t(k) + size_t(j)];
          const double error = encoding_error(kind, x.data() + size_t(i) * size_t(k), k, j);
          sums.dot += weight * value;
          sums.magnitude += std::fabs(weight) * (std::fabs(value) + error);
          sums.weights += std::fabs(weight) * error;
        }
        const double tolerance = sums.weights + 2 * (k + 3) * kUlp * sums.magnitude;
        const double difference = std::fabs(double(out.rows[size_t(i)][c]) - sums.dot);
        ASSERT_LE(difference, tolerance) << traits(f).name << " row " << i << " column " << c;
        worst = std::max(worst, difference / tolerance);
      }
    EXPECT_GT(worst, 1e-4) << "a bound this loose would hide an error";
  }
}

// The exact value of the definition in fp64 from the encoded record itself: only fp32 roundings remain, so a wrong zero
// point, scale or order of halves cannot hide behind the error of int8.
TEST_P(MatmulOracle, ScalarMatchesTheEncodedActivations) {
  const WeightFormat f = WeightFormat(GetParam());
  const ActivationKind kind = traits(f).activation;
  if (kind == ActivationKind::kF32) return;
  std::mt19937 rng(6);
  const int n = 32, k = 512, m = 2;
  const Matrix w(f, n, k, random_rows(f, n, k, rng));
  const std::vector<float> decoded = w.decoded(), x = random_activations(m, k, rng);
  const MatmulKernels& kernels = matmul_kernels(IsaLevel::kScalar);
  const Activations a(kernels, kind, x, m, k);
  Outputs out(m, n);
  kernels.matmul_tiles(w.view(), 0, 1, m, kind, a.rows.data(), out.rows.data(), nullptr);
  for (int i = 0; i < m; i++)
    for (int c = 0; c < n; c++) {
      double dot = 0, magnitude = 0;
      for (int j = 0; j < k; j++) {
        double value = 0;
        if (kind == ActivationKind::kBF16) {
          uint16_t h;
          std::memcpy(&h, a.rows[size_t(i)] + 2 * j, 2);
          value = bf16_to_f32(h);
        } else {
          const uint8_t* record = a.rows[size_t(i)] + j / 32 * (kind == ActivationKind::kBlocks16 ? 44 : 40);
          float s;
          std::memcpy(&s, record + 32, 4);
          value = double(int8_t(record[j % 32])) * s;
        }
        const double product = decoded[size_t(c) * size_t(k) + size_t(j)] * value;
        dot += product;
        magnitude += std::fabs(product);
      }
      // Q4_1 multiplies code * d and m apart, which may both be larger than their sum: m adds at most 16 d |x|.
      const double slack = f == WeightFormat::kQ4_1 ? 64 : 1;
      ASSERT_NEAR(out.rows[size_t(i)][c], dot, slack * (k / 16 + 6) * kUlp * magnitude) << i << " " << c;
    }
}

INSTANTIATE_TEST_SUITE_P(Formats, MatmulOracle, ::testing::Range(0, kWeightFormats),
                         [](const auto& info) { return std::string(traits(WeightFormat(info.param)).name); });

}  // namespace
}  // namespace freetoken
