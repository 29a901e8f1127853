// The wide kernels against the baseline, bit for bit, and the baseline against plain double arithmetic.
#include "sample/scan_kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace freetoken {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(ScanKernels, EveryLevelGivesTheSameBits) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 20.0f);
  const float odd[] = {kInf, -kInf, std::numeric_limits<float>::quiet_NaN(), 0.0f, -0.0f, 1e-42f, 3e38f, -3e38f};
  for (int round = 0; round < 3000; round++) {
    std::vector<float> x(random() % 300);
    for (float& v : x) v = random() % 16 == 0 ? odd[random() % 8] : normal(random);
    const int n = int(x.size());
    const float max = baseline_scan_kernels().max(x.data(), n), wide_max = scan_kernels().max(x.data(), n);
    ASSERT_EQ(std::bit_cast<uint32_t>(max), std::bit_cast<uint32_t>(wide_max));
    for (const float inv_temperature : {1.0f, 0.37f, 1e9f, 1e-6f, 1e38f}) {
      const float sum = baseline_scan_kernels().sum(x.data(), n, max, inv_temperature);
      const float wide_sum = scan_kernels().sum(x.data(), n, max, inv_temperature);
      ASSERT_EQ(std::bit_cast<uint32_t>(sum), std::bit_cast<uint32_t>(wide_sum));
      ASSERT_TRUE(std::isfinite(sum));
      std::vector<float> weights(x.size()), wide_weights(x.size());
      baseline_scan_kernels().weigh(x.data(), n, max, inv_temperature, weights.data());
      scan_kernels().weigh(x.data(), n, max, inv_temperature, wide_weights.data());
      for (int i = 0; i < n; i++) {
        ASSERT_EQ(std::bit_cast<uint32_t>(weights[size_t(i)]), std::bit_cast<uint32_t>(wide_weights[size_t(i)]));
        ASSERT_EQ(weights[size_t(i)], scan_weight(x[size_t(i)], max, inv_temperature));
      }
    }
  }
}

TEST(ScanKernels, MaxSkipsNaN) {
  const std::vector<float> x = {std::numeric_limits<float>::quiet_NaN(), -3.0f, std::numeric_limits<float>::quiet_NaN(), -5.0f};
  EXPECT_EQ(scan_kernels().max(x.data(), 4), -3.0f);
  EXPECT_EQ(scan_kernels().max(x.data(), 1), -kInf);
  EXPECT_EQ(scan_kernels().max(x.data(), 0), -kInf);
}

TEST(ScanKernels, SumIsThePlainSum) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  for (const int n : {1, 15, 16, 17, 100, 256}) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = normal(random);
    const float max = scan_kernels().max(x.data(), n);
    double exact = 0;
    for (const float v : x) exact += std::exp((double(v) - double(max)) * 0.5);
    // 256 weights on 16 lanes: at most 20 additions and one exp (0.9 ulp of argument rounding of up to 12) each 6e-8.
    EXPECT_NEAR(scan_kernels().sum(x.data(), n, max, 0.5f), exact, exact * 4e-6);
  }
}

}  // namespace
}  // namespace freetoken
