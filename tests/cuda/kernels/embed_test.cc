// Embedding rows against the scalar decoder, bit for bit: every format, odd widths, tokens given and tokens drawn.
#include "cuda/kernels/embed.h"

#include "cuda/kernels/rows_support.h"

namespace freetoken::cuda {
namespace {

using freetoken::testing::random_rows;
using testing::DeviceArray;
using testing::DeviceStep;
using testing::Rows2d;
using testing::same_bits;

struct Case {
  WeightFormat format;
  int n, k;
  float scale;
};

void PrintTo(const Case& c, std::ostream* os) { *os << traits(c.format).name << " " << c.n << "x" << c.k << " * " << c.scale; }

class Embed : public ::testing::TestWithParam<Case> {};

TEST_P(Embed, EqualsTheScalarDecoder) {
  const Case c = GetParam();
  std::mt19937 rng(7);
  const std::vector<uint8_t> source = random_rows(c.format, c.n, c.k, rng);
  std::vector<uint8_t> packed(packed_bytes(c.format, c.n, c.k));
  pack_matrix(c.format, c.n, c.k, source.data(), packed.data());
  const DeviceArray<uint8_t> table(packed);

  const std::vector<int32_t> sampled = {c.n - 1, -1, c.n / 2};
  std::vector<int32_t> tokens = {0, c.n - 1, ~0, ~1, ~2, c.n / 3};
  for (int half = 0; half < std::min(c.n, 40); half += 13) tokens.push_back(half);
  std::vector<DeviceStep::Row> rows;
  for (const int32_t token : tokens) rows.push_back({.token = token});
  const DeviceStep step(rows, {}, sampled);
  const Rows2d empty(int(tokens.size()), c.k);
  const DeviceArray<float> out(empty.values);
  FT_EXPECT_CUDA(launch_embed(step.view(), step.rows(), c.format, table.data(), c.k, c.scale, out.data(), empty.stride, nullptr));
  Rows2d got = empty;
  got.values = out.read();
  EXPECT_TRUE(got.marks_stay());
  for (int r = 0; r < got.rows; r++) {
    const int32_t token = tokens[size_t(r)] >= 0 ? tokens[size_t(r)] : sampled[size_t(~tokens[size_t(r)])];
    if (token < 0) {
      for (int i = 0; i < c.k; i++) EXPECT_TRUE(std::isnan(got.row(r)[i])) << r << " " << i;
      continue;
    }
    std::vector<float> expected(static_cast<size_t>(c.k));
    decode_row(c.format, c.k, source.data() + size_t(token) * source_row_bytes(c.format, c.k), expected.data());
    for (float& v : expected) v = v * c.scale;
    EXPECT_TRUE(same_bits(got.row(r), expected.data(), c.k)) << "row " << r << ", token " << token;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Embed,
                         ::testing::Values(Case{WeightFormat::kF32, 70, 37, 1.0f}, Case{WeightFormat::kF32, 1, 1, 3.7f},
                                           Case{WeightFormat::kF16, 33, 51, 1.0f}, Case{WeightFormat::kBF16, 97, 300, 11.3f},
                                           Case{WeightFormat::kBF16, 32, 257, 1.0f}, Case{WeightFormat::kQ8_0, 65, 96, 0.3f},
                                           Case{WeightFormat::kQ4_0, 64, 32, 1.0f}, Case{WeightFormat::kQ4_0, 95, 288, 5.5f},
                                           Case{WeightFormat::kQ4_1, 40, 64, 0.7f}, Case{WeightFormat::kQ6_K, 70, 512, 1.7f}));

TEST(Embed, NoRowsIsNoLaunch) {
  FT_EXPECT_CUDA(launch_embed({}, 0, WeightFormat::kBF16, nullptr, 64, 1.0f, nullptr, 64, nullptr));
}

}  // namespace
}  // namespace freetoken::cuda
