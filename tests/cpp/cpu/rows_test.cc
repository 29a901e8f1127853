// The other operations of CpuOps: embed, norm, add, gather, read, sample's tokens, and the weights it holds.
#include <gtest/gtest.h>

#include "cpu/cpu_case.h"
#include "model/tiny_spec.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

constexpr int kRows = 11;

class CpuRows : public ::testing::TestWithParam<int> {
 protected:
  CpuRows() : ops(options_of({GetParam(), supported_isa_levels().back(), false}, kVocab)), queue(ops.make_queue()) {}
  void begin(const std::vector<int32_t>& tokens) {
    std::vector<BatchRow> rows;
    for (int32_t t : tokens) rows.push_back({0, int32_t(rows.size()), t, false});
    const BatchSequence sequence{0, int32_t(rows.size()), nullptr};
    ops.begin_step(*queue, {rows, {&sequence, 1}});
  }
  static constexpr int kVocab = 75;
  CpuOps ops;
  std::unique_ptr<Queue> queue;
  std::mt19937 rng{1};
};

TEST_P(CpuRows, EmbeddingIsTheDecodedRow) {
  for (int f = 0; f < kWeightFormats; f++)
    for (int k : {1, 33, 256}) {
      const auto format = WeightFormat(f);
      if (k % traits(format).block_k) continue;
      const TestWeight table = random_matrix(format, kVocab, k, rng);
      const std::string name = "embed." + std::to_string(f) + "." + std::to_string(k);
      TinyWeights weights;
      weights.add(name, table);
      weights.fill(ops);
      const std::vector<int32_t> tokens = {0, 74, 31, 32, 33, 63, 64, 5, 5, 73, 1};
      begin(tokens);
      for (float scale : {1.0f, 11.3137085f}) {
        const Tensor out = make_tensor(ops, kRows, k);
        ops.embed(*queue, ops.weight(name), scale, out);
        for (int r = 0; r < kRows; r++) {
          Values expected(table.values.begin() + long(tokens[size_t(r)]) * k,
                          table.values.begin() + long(tokens[size_t(r)] + 1) * k);
          if (scale != 1.0f)
            for (float& v : expected) v = v * scale;
          EXPECT_TRUE(same_bits(values_of(out, r), expected)) << traits(format).name << " " << k << ", row " << r;
        }
      }
    }
}

// token -1 - i stands for what row i of the last sample() drew.
TEST_P(CpuRows, SampledTokensCanBeEmbeddedWithoutTheHost) {
  const TestWeight table = random_matrix(WeightFormat::kBF16, kVocab, 16, rng);
  TinyWeights weights;
  weights.add("embed", table);
  weights.fill(ops);
  const Tensor logits = random_tensor(ops, 4, kVocab, rng), out = make_tensor(ops, 3, 16);
  std::vector<SampleRow> rows(4);
  std::vector<SampleResult> results(4);
  for (int i = 0; i < 4; i++) rows[size_t(i)] = {.logits_row = 3 - i, .target = i == 2 ? 42 : -1};
  EXPECT_TRUE(ops.wait(*queue, ops.sample(*queue, logits, rows, results)).ok());
  for (int i = 0; i < 4; i++) {
    const Values row = values_of(logits, 3 - i);
    EXPECT_EQ(results[size_t(i)].token, i == 2 ? 42 : int32_t(std::max_element(row.begin(), row.end()) - row.begin()));
  }
  begin({~3, ~2, 7});
  ops.embed(*queue, ops.weight("embed"), 1.0f, out);
  const int32_t expected[] = {results[3].token, 42, 7};
  for (int r = 0; r < 3; r++)
    EXPECT_TRUE(same_bits(values_of(out, r), Values(table.values.begin() + expected[r] * 16,
                                                    table.values.begin() + expected[r] * 16 + 16)));
}

TEST_P(CpuRows, NormsAreTheRowKernels) {
  const RowKernels& scalar = row_kernels(IsaLevel::kScalar);
  for (int cols : {1, 50, 64})
    for (int rows : {1, 2, kRows})
      for (NormKind kind : {NormKind::kRms, NormKind::kLayer})
        for (bool with : {false, true}) {
          const NormSpec spec{.kind = kind,
                              .plus_one = with && kind == NormKind::kRms,
                              .has_weight = with,
                              .has_bias = with,
                              .eps = 1e-5f};
          const Tensor x = random_tensor(ops, rows, cols, rng), w = random_tensor(ops, 1, cols, rng),
                       b = random_tensor(ops, 1, cols, rng);
          const Tensor out = make_tensor(ops, rows, cols);
          std::vector<Values> expected(static_cast<size_t>(rows), Values(size_t(cols)));
          for (int r = 0; r < rows; r++)
            if (kind == NormKind::kRms)
              scalar.rms_norm(row_of(x, r), with ? row_of(w, 0) : nullptr, spec.plus_one, spec.eps, cols,
                              expected[size_t(r)].data());
            else
              scalar.layer_norm(row_of(x, r), with ? row_of(w, 0) : nullptr, with ? row_of(b, 0) : nullptr, spec.eps,
                                cols, expected[size_t(r)].data());
          ops.norm(*queue, x, spec, with ? w : Tensor{}, with ? b : Tensor{}, out);
          for (int r = 0; r < rows; r++)
            EXPECT_TRUE(same_bits(values_of(out, r), expected[size_t(r)])) << cols << " " << rows;
        }
}

TEST_P(CpuRows, AddGatherAndRead) {
  for (int rows : {1, 2, kRows}) {
    const int cols = 45;
    const Tensor x = random_tensor(ops, rows, cols, rng), y = random_tensor(ops, rows, cols, rng);
    std::vector<Values> expected;
    for (int r = 0; r < rows; r++) {
      expected.push_back(values_of(x, r));
      for (int c = 0; c < cols; c++)
        expected.back()[size_t(c)] = std::fmaf(row_of(y, r)[c], 0.7f, expected.back()[size_t(c)]);
    }
    ops.add(*queue, x, y, 0.7f);
    for (int r = 0; r < rows; r++) EXPECT_TRUE(same_bits(values_of(x, r), expected[size_t(r)]));

    const std::vector<int32_t> picked = {rows - 1, 0, rows - 1};
    const Tensor to = make_tensor(ops, 3, cols);
    ops.gather(*queue, x, picked, to);
    Values read(3 * size_t(cols));
    EXPECT_TRUE(ops.wait(*queue, ops.read(*queue, to, read)).ok());
    for (int i = 0; i < 3; i++)
      EXPECT_TRUE(same_bits(Values(read.begin() + i * cols, read.begin() + (i + 1) * cols),
                            expected[size_t(picked[size_t(i)])]));
  }
}

TEST_P(CpuRows, BuffersAreZeroedAndPaddedToTiles) {
  const Tensor t = make_tensor(ops, 3, 33);
  EXPECT_EQ(t.row_bytes, 64 * 4);
  EXPECT_EQ(t.address % 64, 0u);
  for (int r = 0; r < 3; r++)
    for (int c = 0; c < 64; c++) EXPECT_EQ(row_of(t, r)[c], 0.0f);
  EXPECT_FALSE(ops.allocate(DType::kF32, 1 << 30, 1 << 30).ok()) << "4 EiB";
}

TEST_P(CpuRows, WeightsAreFoundByNameAndKind) {
  TinyWeights weights;
  weights.add("matrix", random_matrix(WeightFormat::kQ8_0, 40, 64, rng));
  weights.add("vector", random_vector(5, 0, 1, rng));
  weights.fill(ops);
  EXPECT_EQ(ops.weight_bytes(), int64_t(packed_bytes(WeightFormat::kQ8_0, 40, 64)) + 20);
  EXPECT_TRUE(ops.weight("matrix").valid());
  EXPECT_EQ(ops.weight("matrix").n, 40);
  EXPECT_FALSE(ops.weight("vector").valid());
  EXPECT_FALSE(ops.vector("matrix").valid());
  EXPECT_EQ(ops.vector("vector").cols, 5);
  EXPECT_FALSE(ops.weight("neither").valid());
  EXPECT_EQ(ops.expert_layout("matrix"), nullptr);
  EXPECT_EQ(ops.extent_address("matrix"), 0u);

  ExtentInfo odd{"layers.0.1.experts.0", 4096, {{{"layers.0.1.experts.0.extra", false, WeightFormat::kF32, 32, 4}, 0}}};
  const auto refused = ops.open_extent(odd);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(refused.status().message().find("layers.0.1.experts.0.extra"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Threads, CpuRows, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace freetoken
