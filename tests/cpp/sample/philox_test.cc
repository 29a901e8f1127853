// Known answers of the Random123 distribution (kat_vectors, philox4x32 with 10 rounds).
#include "sample/philox.h"

#include <gtest/gtest.h>

namespace freetoken {
namespace {

struct KnownAnswer {
  PhiloxBlock counter;
  std::array<uint32_t, 2> key;
  PhiloxBlock result;
};

constexpr KnownAnswer kKnownAnswers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

TEST(Philox, KnownAnswers) {
  for (const KnownAnswer& k : kKnownAnswers) EXPECT_EQ(philox4x32(k.counter, k.key), k.result);
}

TEST(Philox, UniformUsesSeedPositionAndIndex) {
  const PhiloxBlock x = philox4x32({5, 7, 0, 0}, {0x89abcdefu, 0x01234567u});
  EXPECT_EQ(draw_uniform(0x0123456789abcdefull, 5, 7), (float(x[0] >> 9) + 0.5f) / 8388608.0f);
  EXPECT_NE(draw_uniform(1, 5, 7), draw_uniform(1, 7, 5));
  EXPECT_NE(draw_uniform(1, 5, 7), draw_uniform(1ull << 32, 5, 7));
}

TEST(Philox, UniformIsOpenAtBothEnds) {
  float low = 1, high = 0;
  double sum = 0;
  constexpr int kDraws = 1 << 20;
  for (uint32_t i = 0; i < kDraws; i++) {
    const float u = draw_uniform(42, i, 0);
    low = u < low ? u : low, high = u > high ? u : high, sum += u;
  }
  EXPECT_GT(low, 0.0f);
  EXPECT_LT(high, 1.0f);
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * 0.2887 / 1024) << "five standard errors of the mean";
}

}  // namespace
}  // namespace freetoken
