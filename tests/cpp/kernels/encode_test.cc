// encode_row: the record against its definition, and every ISA level against the scalar one.
#include <cmath>
#include <limits>

#include "kernels/matmul_case.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

constexpr ActivationKind kKinds[] = {ActivationKind::kF32, ActivationKind::kBF16, ActivationKind::kZeroPoint128,
                                     ActivationKind::kZeroPoint8, ActivationKind::kMin, ActivationKind::kBlocks16};

class EncodeLevel : public ::testing::TestWithParam<IsaLevel> {
 protected:
  void SetUp() override { set_denormals_to_zero(); }
};

std::vector<uint8_t> encode(IsaLevel level, ActivationKind kind, const std::vector<float>& x, int k) {
  std::vector<uint8_t> row(activation_row_bytes(kind, k) + 1 + 64, 0x5a);
  matmul_kernels(level).encode_row(kind, x.data(), k, row.data() + 1);
  return row;
}

TEST_P(EncodeLevel, EqualsScalarAndWritesNothingElse) {
  std::mt19937 rng(3);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (int k : {1, 2, 15, 16, 17, 31, 32, 33, 64, 95, 1024})
    for (int variant = 0; variant < 8; variant++) {
      std::vector<float> x = random_activations(1, k, rng, variant == 1 ? -149 : variant == 2 ? -126 : -8,
                                                variant == 1 ? -120 : variant == 2 ? -118 : 8);
      if (variant == 3) std::fill(x.begin(), x.end(), 0.f);
      if (variant == 4) x[rng() % x.size()] = inf;
      if (variant == 5) x[rng() % x.size()] = nan;
      if (variant == 6) x[rng() % x.size()] = std::numeric_limits<float>::max();
      if (variant == 7)
        for (auto& v : x) v = float(int(rng() % 509) - 254) * 0.5f;  // ties of the rounding
      for (ActivationKind kind : kKinds)
        EXPECT_EQ(encode(GetParam(), kind, x, k), encode(IsaLevel::kScalar, kind, x, k))
            << "kind " << int(kind) << ", k " << k << ", variant " << variant;
    }
}

INSTANTIATE_TEST_SUITE_P(Levels, EncodeLevel, ::testing::ValuesIn(supported_isa_levels()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

TEST(Encode, RecordHoldsScaleCodesAndCorrections) {
  set_denormals_to_zero();
  std::mt19937 rng(4);
  const int k = 96;
  std::vector<float> x = random_activations(1, k, rng);
  std::fill(x.begin() + 32, x.begin() + 64, 0.f);
  for (ActivationKind kind : {ActivationKind::kZeroPoint128, ActivationKind::kZeroPoint8, ActivationKind::kMin,
                              ActivationKind::kBlocks16}) {
    const auto row = encode(IsaLevel::kScalar, kind, x, k);
    for (int b = 0; b < 3; b++) {
      const uint8_t* record = row.data() + 1 + b * (kind == ActivationKind::kBlocks16 ? 44 : 40);
      float s, tail;
      int32_t c[2];
      std::memcpy(&s, record + 32, 4);
      std::memcpy(&tail, record + 36, 4);
      std::memcpy(c, record + 36, 8);
      double largest = 0;
      int sum[2] = {0, 0};
      for (int j = 0; j < 32; j++) {
        largest = std::max(largest, std::fabs(double(x[size_t(b * 32 + j)])));
        sum[j / 16] += int8_t(record[j]);
        EXPECT_LE(std::fabs(x[size_t(b * 32 + j)] - double(s) * int8_t(record[j])), 0.5001 * s);
      }
      EXPECT_EQ(s, float(largest) / 127.f);
      const int magic = 0x4B400000, total = sum[0] + sum[1];
      switch (kind) {
        case ActivationKind::kZeroPoint128: EXPECT_EQ(c[0], magic - 128 * total); break;
        case ActivationKind::kZeroPoint8: EXPECT_EQ(c[0], magic - 8 * total); break;
        case ActivationKind::kMin: EXPECT_EQ(tail, s * float(total)); break;
        default:
          EXPECT_EQ(c[0], magic - 32 * sum[0]);
          EXPECT_EQ(c[1], magic - 32 * sum[1]);
      }
    }
  }
}

TEST(Encode, Bf16RoundsToNearestEvenAndFlushesDenormals) {
  set_denormals_to_zero();
  const std::vector<float> x = {1.f, 1.00390625f, 1.01171875f, -1.004f, 0x1p-130f, -0x1p-130f, 3.4e38f};
  const auto row = encode(IsaLevel::kScalar, ActivationKind::kBF16, x, 7);
  const uint16_t expected[8] = {0x3f80, 0x3f80, 0x3f82, 0xbf81, 0, 0x8000, 0x7f80, 0};
  EXPECT_EQ(std::memcmp(row.data() + 1, expected, sizeof expected), 0);
}

}  // namespace
}  // namespace freetoken
