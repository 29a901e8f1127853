// Oracle: double-precision libm, whose error is below 1e-8 fp32 ulp.
#include "core/math.h"
#include "core/worse.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace freetoken {
namespace {

double ulp(double value) {
  const float at = std::fabs(float(value));
  return double(std::nextafter(at, std::numeric_limits<float>::infinity())) - double(at);
}

// Every 97th float (a prime, so all low bits occur). All floats were measured once; the bounds are those of math.h.
TEST(Math, ExpWithinItsBound) {
  double worst = 0;
  for (const float limit : {-87.0f, 88.0f}) {
    const uint32_t sign = limit < 0 ? 0x80000000u : 0, last = std::bit_cast<uint32_t>(std::fabs(limit));
    for (uint32_t bits = 0x30000000u; bits <= last; bits += 97) {
      const float x = std::bit_cast<float>(bits | sign);
      const double exact = std::exp(double(x));
      worst = testing::worse(worst, exp_f32(x) / ulp(exact), exact / ulp(exact));
    }
  }
  EXPECT_LE(worst, kExpMaxUlp);
  EXPECT_GT(worst, 0.5) << "the measurement measures";
}

TEST(Math, ExpEdges) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  EXPECT_GT(exp_f32(-87.0f), std::numeric_limits<float>::min());
  EXPECT_EQ(exp_f32(std::nextafter(-87.0f, -kInf)), 0.0f);
  EXPECT_EQ(exp_f32(-kInf), 0.0f);
  EXPECT_EQ(exp_f32(1e30f), exp_f32(88.0f));
  EXPECT_EQ(exp_f32(kInf), exp_f32(88.0f));
  EXPECT_TRUE(std::isnan(exp_f32(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Math, LogWithinItsBound) {
  double worst = 0;
  for (uint32_t bits = 0x00800000u; bits < 0x7f800000u; bits += bits > 0x3f000000u && bits < 0x40000000u ? 23 : 1201) {
    const float x = std::bit_cast<float>(bits);
    const double exact = std::log(double(x));
    if (exact == 0) {
      EXPECT_EQ(log_f32(x), 0.0f);
    } else {
      worst = testing::worse(worst, log_f32(x) / ulp(exact), exact / ulp(exact));
    }
  }
  EXPECT_LE(worst, kLogMaxUlp);
  EXPECT_GT(worst, 0.5) << "the measurement measures";
}

TEST(Math, LogEdges) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(log_f32(1.0f), 0.0f);
  EXPECT_EQ(log_f32(0.0f), -kInf);
  EXPECT_EQ(log_f32(-0.0f), -kInf);
  EXPECT_EQ(log_f32(1e-40f), -kInf);
  EXPECT_EQ(log_f32(kInf), kInf);
  EXPECT_TRUE(std::isnan(log_f32(-1.0f)));
  EXPECT_TRUE(std::isnan(log_f32(-kInf)));
  EXPECT_TRUE(std::isnan(log_f32(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace freetoken
