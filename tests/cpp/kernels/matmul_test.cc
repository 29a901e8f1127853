// Every ISA level equals the scalar level bit for bit, whatever the rows, tile range, alignment and extreme values.
#include "kernels/matmul_case.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

struct Case {
  IsaLevel level;
  WeightFormat format;
  ActivationKind kind;
};

void PrintTo(const Case& c, std::ostream* out) { *out << case_name(c.level, c.format, c.kind); }

std::vector<Case> all_cases(bool with_scalar) {
  std::vector<Case> cases;
  for (IsaLevel level : supported_isa_levels())
    for (int f = 0; f < kWeightFormats; f++)
      for (ActivationKind kind : kinds_of(WeightFormat(f)))
        if (with_scalar || level != IsaLevel::kScalar) cases.push_back({level, WeightFormat(f), kind});
  return cases;
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  return case_name(info.param.level, info.param.format, info.param.kind);
}

// Smallest block, odd sizes where the format has them, several internal K blocks with a remainder.
std::vector<int> k_values(WeightFormat f) {
  switch (traits(f).block_k) {
    case 1: return {1, 2, 3, 31, 32, 33, 130, 257, 1027};
    case 32: return {32, 64, 96, 544, 1120};
    default: return {256, 512, 1280};
  }
}

class MatmulLevel : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { set_denormals_to_zero(); }

  // Runs the level on random subsets of the rows and tiles and compares with the scalar level's result for all of them.
  void expect_equals_scalar(const Matrix& w, const std::vector<float>& x, int m, const std::vector<int>& row_counts) {
    const auto& [level, format, kind] = GetParam();
    const MatmulKernels &scalar = matmul_kernels(IsaLevel::kScalar), &kernels = matmul_kernels(level);
    const Activations a(scalar, kind, x, m, w.k);
    Outputs expected(m, w.n);
    const int tiles = tile_count(w.n);
    scalar.matmul_tiles(w.view(), 0, tiles, m, kind, a.rows.data(), expected.rows.data(), nullptr);
    for (int rows : row_counts) {
      const int first = int(rng_() % unsigned(m - rows + 1));
      const int begin = int(rng_() % unsigned(tiles)), end = begin + 1 + int(rng_() % unsigned(tiles - begin));
      Outputs got(m, w.n);
      kernels.matmul_tiles(w.view(), begin, end, rows, kind, a.rows.data() + first, got.rows.data() + first,
                           rng_() % 2 ? w.packed.data() : nullptr);
      for (int i = 0; i < m; i++)
        for (size_t c = 0; c < got.stride; c++) {
          const bool written = i >= first && i < first + rows && c >= size_t(begin) * 32 && c < size_t(end) * 32;
          ASSERT_EQ(got.bits(i, c), written ? expected.bits(i, c) : Outputs::kFill)
              << w.n << " x " << w.k << ", rows " << first << " + " << rows << ", tiles " << begin << ".." << end
              << ": row " << i << ", column " << c;
        }
    }
  }
  std::mt19937 rng_{11};
};

// With sanitizers the scalar sums alone take minutes: fewer rows, still more than two chunks of every level and a rest.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kMostRows = 29;
#else
constexpr int kMostRows = 97;
#endif

TEST_P(MatmulLevel, EqualsScalar) {
  for (int n : {1, 31, 32, 33, 96})
    for (int k : k_values(GetParam().format)) {
      if (n != 96 && k > 600) continue;
      const Matrix w(GetParam().format, n, k, random_rows(GetParam().format, n, k, rng_));
      expect_equals_scalar(w, random_activations(kMostRows, k, rng_), kMostRows,
                           {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, kMostRows * 2 / 3, kMostRows});
    }
}

// Values around the smallest normal: products, scales and sums that are flushed to zero.
TEST_P(MatmulLevel, EqualsScalarWithDenormals) {
  const WeightFormat f = GetParam().format;
  const bool wide = f == WeightFormat::kF32 || f == WeightFormat::kBF16;
  const int n = 32, k = 512, m = 14;
  const Matrix w(f, n, k, wide ? random_rows(f, n, k, rng_, -149, -20) : random_rows(f, n, k, rng_, -24, -10));
  expect_equals_scalar(w, random_activations(m, k, rng_, wide ? -130 : -149, -60), m, {1, 5, 14});
}

// All codes and activations at one end, the largest scales: the largest integer sums there are.
TEST_P(MatmulLevel, EqualsScalarAtTheExtremes) {
  const WeightFormat f = GetParam().format;
  const int n = 32, k = 512, m = 8;
  for (uint8_t fill : {0x00, 0xff, 0x80, 0x7f, 0x08, 0xf0}) {
    for (float sign : {-1.f, 1.f}) {
      std::vector<uint8_t> rows(size_t(n) * source_row_bytes(f, k), fill);
      if (traits(f).block_k > 1)
        for (size_t b = 0; b < rows.size(); b += size_t(traits(f).block_bytes)) {
          const size_t at = b + (f == WeightFormat::kQ6_K ? 208 : 0);
          rows[at] = 0xff, rows[at + 1] = 0x7b;  // 65504
          if (f == WeightFormat::kQ4_1) rows[b + 2] = 0xff, rows[b + 3] = 0xfb;
        }
      std::vector<float> x(size_t(m) * size_t(k), sign * 3e4f);
      for (int i = 0; i < m * k; i += 1 + int(rng_() % 64)) x[size_t(i)] = -x[size_t(i)];
      expect_equals_scalar(Matrix(f, n, k, rows), x, m, {1, 8});
      std::fill(x.begin(), x.end(), sign * 3e4f);
      expect_equals_scalar(Matrix(f, n, k, rows), x, m, {1, 8});
    }
  }
}

// A basis vector as input returns a column of the matrix: the layout and decoding of every position, at every level.
TEST_P(MatmulLevel, BasisVectorsReturnTheDecodedWeights) {
  const auto& [level, format, kind] = GetParam();
  if (kind != ActivationKind::kF32) return;
  const int n = 33, k = traits(format).block_k == 1 ? 67 : 2 * traits(format).block_k;
  const Matrix w(format, n, k, random_rows(format, n, k, rng_));
  const std::vector<float> decoded = w.decoded();
  std::vector<float> x(size_t(k) * size_t(k), 0.f);
  for (int i = 0; i < k; i++) x[size_t(i) * size_t(k + 1)] = 1;
  const Activations a(matmul_kernels(level), kind, x, k, k);
  Outputs out(k, n);
  matmul_kernels(level).matmul_tiles(w.view(), 0, 2, k, kind, a.rows.data(), out.rows.data(), nullptr);
  for (int i = 0; i < k; i++)
    for (int c = 0; c < 64; c++)
      ASSERT_EQ(out.rows[size_t(i)][c], c < n ? decoded[size_t(c) * size_t(k) + size_t(i)] : 0.f) << i << " " << c;
}

INSTANTIATE_TEST_SUITE_P(Levels, MatmulLevel, ::testing::ValuesIn(all_cases(true)), name_of);

}  // namespace
}  // namespace freetoken
