// Dense matmuls on the device against doubles over the scalar decoder, and bit for bit against themselves: a row's bits
// do not depend on the number of rows nor on the variant that ran.
#include "cuda/kernels/matmul.h"

#include "cuda/kernels/matmul_launch.h"
#include "cuda/kernels/matmul_support.h"

namespace freetoken::cuda {
namespace {

using freetoken::testing::random_rows;
using testing::DeviceArray;
using testing::Exact;
using testing::exact_rows;
using testing::Input;
using testing::random_values;

struct Shape {
  int n, k;
};
// Ragged n (against 32 and 64), one to eight pieces of K, ends of pieces and of K inside a step.
std::vector<Shape> shapes(WeightFormat f) {
  switch (f) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return {{32, 32}, {1, 1}, {48, 33}, {33, 250}, {64, 256}, {96, 257}, {31, 535}, {129, 96}, {20, 2100}};
    case WeightFormat::kQ6_K: return {{64, 256}, {33, 512}, {100, 768}, {7, 2304}};
    default: return {{32, 32}, {64, 256}, {33, 96}, {1, 288}, {129, 64}, {100, 544}, {31, 2080}};
  }
}
constexpr int kRowCounts[] = {1, 2, 3, 7, 8, 9, 16, 33};

struct Matrix {
  WeightFormat format;
  int n, k;
  std::vector<uint8_t> source;
  DeviceArray<uint8_t> packed;

  Matrix(WeightFormat f, int n, int k, std::mt19937& rng)
      : format(f), n(n), k(k), source(random_rows(f, n, k, rng)), packed(pack()) {}
  std::vector<uint8_t> pack() const {
    std::vector<uint8_t> bytes(packed_bytes(format, n, k));
    pack_matrix(format, n, k, source.data(), bytes.data());
    return bytes;
  }
};

constexpr float kUntouched = -77.0f;

// rows x [n rounded up to 4, and one more group of 4 that must stay as it is]
struct Output {
  int stride;
  DeviceArray<float> data;
  Output(int rows, int n) : stride((n + 3) / 4 * 4 + 4), data(std::vector<float>(size_t(rows) * stride, kUntouched)) {}
  LinearTarget target(const Matrix& m, const float* bias = nullptr) const {
    return {m.packed.data(), m.format, m.n, bias, data.data(), stride};
  }
};

void expect_close(const std::vector<float>& out, int stride, int r, int n, const std::vector<Exact>& exact,
                  const char* what) {
  for (int i = 0; i < stride; i++) {
    const float v = out[size_t(r) * stride + i];
    if (i < n)
      ASSERT_LE(std::abs(v - exact[size_t(i)].value), exact[size_t(i)].bound)
          << what << " row " << r << " column " << i;
    else ASSERT_EQ(v, kUntouched) << what << " row " << r << " wrote column " << i << " of " << n;
  }
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, size_t count, const std::string& what) {
  for (size_t i = 0; i < count; i++)
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
        << what << " at " << i << ": " << a[i] << ", " << b[i];
}

class DeviceLinear : public ::testing::TestWithParam<WeightFormat> {};

TEST_P(DeviceLinear, MatchesTheScalarDecoder) {
  std::mt19937 rng(11);
  const bool round_x = mma_format(GetParam());
  for (const Shape& s : shapes(GetParam())) {
    SCOPED_TRACE(std::to_string(s.n) + " x " + std::to_string(s.k));
    const Matrix m(GetParam(), s.n, s.k, rng);
    const Input x(kRowCounts[7], s.k, rng);
    const DeviceArray<float> dx(x.values);
    const Output most(x.rows, s.n);
    const LinearTarget target = most.target(m);
    FT_EXPECT_CUDA(launch_linear({dx.data(), x.stride}, x.rows, s.k, &target, 1, nullptr));
    const std::vector<float> all = most.data.read();
    for (int r = 0; r < x.rows; r++)
      expect_close(all, most.stride, r, s.n, exact_rows(GetParam(), s.n, s.k, m.source.data(), x.row(r), round_x),
                   "linear");
    for (int rows : kRowCounts) {
      if (s.n * s.k > 16384 && rows != 1 && rows != 9) continue;  // the large ones: one row, and a block's columns and one
      const Output some(rows, s.n);
      const LinearTarget t = some.target(m);
      FT_EXPECT_CUDA(launch_linear({dx.data(), x.stride}, rows, s.k, &t, 1, nullptr));
      expect_same_bits(some.data.read(), all, size_t(rows) * some.stride, std::to_string(rows) + " rows");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, DeviceLinear,
                         ::testing::Values(WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16,
                                           WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ4_1,
                                           WeightFormat::kQ6_K),
                         testing::format_case);

class DeviceVariants : public ::testing::TestWithParam<WeightFormat> {};

TEST_P(DeviceVariants, GiveTheSameBits) {
  std::mt19937 rng(12);
  for (const Shape& s : shapes(GetParam())) {
    const Matrix m(GetParam(), s.n, s.k, rng);
    const Input x(37, s.k, rng);  // more than a block of the widest, and no multiple of 8
    const DeviceArray<float> dx(x.values);
    std::vector<float> first;
    for (const MatmulVariant v : {MatmulVariant::kDecode, MatmulVariant::kNarrow, MatmulVariant::kWide}) {
      const Output out(x.rows, s.n);
      MatmulArgs args = dense_args({dx.data(), x.stride}, x.rows, s.k, int64_t(tile_bytes(GetParam(), s.k)));
      args.targets = 1;
      args.target[0] = dense_target(out.target(m));
      FT_EXPECT_CUDA(launch_matmul(GetParam(), v, args, ceil_div(x.rows, variant_columns(v)), nullptr));
      const std::vector<float> bits = out.data.read();
      if (first.empty()) first = bits;
      expect_same_bits(bits, first, bits.size(),
                       "variant " + std::to_string(int(v)) + ", " + std::to_string(s.n) + " x " + std::to_string(s.k));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, DeviceVariants,
                         ::testing::Values(WeightFormat::kBF16, WeightFormat::kQ8_0, WeightFormat::kQ4_0,
                                           WeightFormat::kQ4_1, WeightFormat::kQ6_K),
                         testing::format_case);

// Rows with infinities and NaN spoil no other row, in any variant (33 rows: the tiles of all columns).
TEST(DeviceLinear, BadRowsStayAlone) {
  std::mt19937 rng(13);
  const int n = 40, k = 96, rows = 33;
  const Matrix m(WeightFormat::kQ4_0, n, k, rng);
  Input x(rows, k, rng);
  const DeviceArray<float> good(x.values);
  x.values[size_t(3) * x.stride + 5] = NAN;
  x.values[size_t(9) * x.stride + 95] = INFINITY;
  const DeviceArray<float> bad(x.values);
  const Output a(rows, n), b(rows, n);
  const LinearTarget ta = a.target(m), tb = b.target(m);
  FT_EXPECT_CUDA(launch_linear({good.data(), x.stride}, rows, k, &ta, 1, nullptr));
  FT_EXPECT_CUDA(launch_linear({bad.data(), x.stride}, rows, k, &tb, 1, nullptr));
  const std::vector<float> va = a.data.read(), vb = b.data.read();
  for (int r = 0; r < rows; r++)
    for (int i = 0; i < n; i++) {
      const float v = vb[size_t(r) * b.stride + i];
      if (r == 3) EXPECT_TRUE(std::isnan(v)) << i;
      else if (r == 9) EXPECT_FALSE(std::isfinite(v)) << i;
      else ASSERT_EQ(v, va[size_t(r) * a.stride + i]) << r << ", " << i;
    }
}

// One call with several outputs, of several formats and sizes, with and without bias: as one call each.
TEST(DeviceLinear, SeveralOutputsOfOneInput) {
  std::mt19937 rng(14);
  const int k = 288, rows = 3;
  const Input x(rows, k, rng);
  const DeviceArray<float> dx(x.values);
  struct Case {
    WeightFormat format;
    int n;
    bool bias;
  };
  const std::vector<Case> cases = {{WeightFormat::kQ4_0, 200, true}, {WeightFormat::kBF16, 33, false},
                                   {WeightFormat::kQ4_0, 40, false}, {WeightFormat::kF32, 8, true},
                                   {WeightFormat::kQ4_0, 65, true},  {WeightFormat::kBF16, 64, true}};
  std::vector<std::unique_ptr<Matrix>> matrices;
  std::vector<std::unique_ptr<Output>> outputs;
  std::vector<std::vector<float>> biases;
  std::vector<std::unique_ptr<DeviceArray<float>>> device_biases;
  std::vector<LinearTarget> targets;
  for (const Case& c : cases) {
    matrices.push_back(std::make_unique<Matrix>(c.format, c.n, k, rng));
    outputs.push_back(std::make_unique<Output>(rows, c.n));
    biases.push_back(random_values(size_t(c.n), rng));
    device_biases.push_back(std::make_unique<DeviceArray<float>>(biases.back()));
    targets.push_back(outputs.back()->target(*matrices.back(), c.bias ? device_biases.back()->data() : nullptr));
  }
  FT_EXPECT_CUDA(launch_linear({dx.data(), x.stride}, rows, k, targets.data(), int(targets.size()), nullptr));
  for (size_t i = 0; i < cases.size(); i++) {
    const Output alone(rows, cases[i].n);
    const LinearTarget t = alone.target(*matrices[i]);
    FT_EXPECT_CUDA(launch_linear({dx.data(), x.stride}, rows, k, &t, 1, nullptr));
    std::vector<float> expected = alone.data.read();
    for (int r = 0; r < rows; r++)
      for (int c = 0; c < cases[i].n && cases[i].bias; c++)
        expected[size_t(r) * alone.stride + c] += biases[i][size_t(c)];
    expect_same_bits(outputs[i]->data.read(), expected, expected.size(), "output " + std::to_string(i));
  }
  targets.resize(kMaxLinearTargets + 1, targets[0]);
  EXPECT_EQ(int(launch_linear({dx.data(), x.stride}, rows, k, targets.data(), int(targets.size()), nullptr)),
            int(cudaErrorInvalidValue));
}

// scale and softcap follow the bias; the cap's slope is at most 1, so it adds a few roundings of its result only.
TEST(DeviceLogits, ScaleAndSoftcap) {
  std::mt19937 rng(15);
  for (const WeightFormat f : {WeightFormat::kBF16, WeightFormat::kQ6_K, WeightFormat::kF32})
    for (const float softcap : {0.0f, 3.0f})
      for (const int rows : {1, 35}) {
        const int n = 70, k = 256;
        const float scale = 0.75f;
        const Matrix m(f, n, k, rng);
        const Input x(rows, k, rng);
        const DeviceArray<float> dx(x.values);
        const std::vector<float> bias = random_values(size_t(n), rng);
        const DeviceArray<float> device_bias(bias);
        const Output out(rows, n);
        FT_EXPECT_CUDA(
            launch_logits({dx.data(), x.stride}, rows, k, out.target(m, device_bias.data()), scale, softcap, nullptr));
        const std::vector<float> values = out.data.read();
        for (int r = 0; r < rows; r++) {
          std::vector<Exact> exact = exact_rows(f, n, k, m.source.data(), x.row(r), mma_format(f));
          for (int i = 0; i < n; i++) {
            Exact& e = exact[size_t(i)];
            e.value = scale * (e.value + bias[size_t(i)]);
            if (softcap > 0) e.value = softcap * std::tanh(e.value / softcap);
            e.bound += std::abs(e.value) * 0x1p-21 + 0x1p-22;
          }
          expect_close(values, out.stride, r, n, exact, "logits");
        }
      }
}

// x is not rounded: the reference is of fp32 x for bf16 weights too.
TEST(DeviceLinearF32, KeepsItsInput) {
  std::mt19937 rng(16);
  for (const WeightFormat f : {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16})
    for (const Shape& s : shapes(f)) {
      const Matrix m(f, s.n, s.k, rng);
      const Input x(5, s.k, rng);
      const DeviceArray<float> dx(x.values);
      std::vector<float> most;
      for (const int rows : {5, 1, 4}) {
        const Output out(rows, s.n);
        FT_EXPECT_CUDA(launch_linear_f32({dx.data(), x.stride}, rows, s.k, out.target(m), nullptr));
        const std::vector<float> values = out.data.read();
        if (most.empty()) most = values;
        expect_same_bits(values, most, values.size(), "rows");
        for (int r = 0; r < rows; r++)
          expect_close(values, out.stride, r, s.n, exact_rows(f, s.n, s.k, m.source.data(), x.row(r), false),
                       "linear_f32");
      }
    }
  EXPECT_FALSE(linear_f32_supports(WeightFormat::kQ4_0));
  const LinearTarget q4{nullptr, WeightFormat::kQ4_0, 32, nullptr, nullptr, 32};
  EXPECT_EQ(int(launch_linear_f32({nullptr, 0}, 1, 32, q4, nullptr)), int(cudaErrorNotSupported));
}

class DeviceGated : public ::testing::TestWithParam<WeightFormat> {};

double silu(double v) { return v / (1 + std::exp(-v)); }

// gate and up rows interleaved by 16, inner ragged; silu's slope is below 1.1, exp and the division add a few
// roundings.
TEST_P(DeviceGated, MatchesTheScalarDecoder) {
  std::mt19937 rng(17);
  const int block = traits(GetParam()).block_k;
  for (const int inner : {16, 40, 75})
    for (const bool with_bias : {false, true}) {
      const int k = std::max(block, 96) * 3, tiles = ceil_div(inner, 16);
      const size_t row_bytes = source_row_bytes(GetParam(), k);
      const std::vector<uint8_t> gate = random_rows(GetParam(), inner, k, rng),
                                 up = random_rows(GetParam(), inner, k, rng);
      std::vector<uint8_t> packed(size_t(tiles) * tile_bytes(GetParam(), k));
      for (int t = 0; t < tiles; t++) {
        const uint8_t* rows[kTileRows];
        for (int i = 0; i < 16; i++) {
          const int r = t * 16 + i;
          rows[i] = r < inner ? gate.data() + r * row_bytes : nullptr;
          rows[16 + i] = r < inner ? up.data() + r * row_bytes : nullptr;
        }
        pack_tile(GetParam(), k, rows, packed.data() + size_t(t) * tile_bytes(GetParam(), k));
      }
      const DeviceArray<uint8_t> weight(packed);
      const std::vector<float> gate_bias = random_values(size_t(inner), rng),
                               up_bias = random_values(size_t(inner), rng);
      const DeviceArray<float> device_gate_bias(gate_bias), device_up_bias(up_bias);
      const Input x(33, k, rng);
      const DeviceArray<float> dx(x.values);
      std::vector<float> most;
      for (const int rows : {33, 1, 9}) {
        const Output out(rows, inner);
        const GatedTarget target{weight.data(),
                                 GetParam(),
                                 inner,
                                 with_bias ? device_gate_bias.data() : nullptr,
                                 with_bias ? device_up_bias.data() : nullptr,
                                 out.data.data(),
                                 out.stride};
        FT_EXPECT_CUDA(launch_gated({dx.data(), x.stride}, rows, k, target, nullptr));
        const std::vector<float> values = out.data.read();
        if (most.empty()) most = values;
        expect_same_bits(values, most, values.size(), "rows");
      }
      for (int r = 0; r < x.rows; r++) {
        const std::vector<Exact> g = exact_rows(GetParam(), inner, k, gate.data(), x.row(r), true);
        const std::vector<Exact> u = exact_rows(GetParam(), inner, k, up.data(), x.row(r), true);
        std::vector<Exact> exact(static_cast<size_t>(inner));
        for (size_t i = 0; i < exact.size(); i++) {
          const double gv = g[i].value + (with_bias ? gate_bias[i] : 0), uv = u[i].value + (with_bias ? up_bias[i] : 0);
          const double ge = g[i].bound + std::abs(gv) * 0x1p-24, ue = u[i].bound + std::abs(uv) * 0x1p-24;
          exact[i].value = silu(gv) * uv;
          // exp(-v) errs by its own ulps and by the rounding of its argument: |v| 2^-24 of itself.
          exact[i].bound = 1.1 * ge * (std::abs(uv) + ue) + std::abs(silu(gv)) * ue +
                           std::abs(exact[i].value) * (8 + std::abs(gv)) * 0x1p-23 + 1e-30;
        }
        expect_close(most, (inner + 3) / 4 * 4 + 4, r, inner, exact, "gated");
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Formats, DeviceGated,
                         ::testing::Values(WeightFormat::kBF16, WeightFormat::kQ8_0, WeightFormat::kQ4_0,
                                           WeightFormat::kQ4_1, WeightFormat::kQ6_K),
                         testing::format_case);

TEST(DeviceGatedRows, MatchesSilu) {
  std::mt19937 rng(18);
  const int rows = 3, n = 300, stride = 304;
  std::vector<float> gate = random_values(size_t(rows) * stride, rng, 20.0f),
                     up = random_values(size_t(rows) * stride, rng);
  gate[0] = -200.0f, gate[1] = 200.0f;  // exp overflows, exp vanishes
  const DeviceArray<float> device_gate(gate), device_up(up), out(std::vector<float>(size_t(rows) * stride, kUntouched));
  FT_EXPECT_CUDA(launch_gated_rows({device_gate.data(), stride}, {device_up.data(), stride}, rows, n, out.data(),
                                   stride, nullptr));
  const std::vector<float> values = out.read();
  for (int i = 0; i < rows * stride; i++) {
    if (i % stride >= n) {
      ASSERT_EQ(values[size_t(i)], kUntouched);
      continue;
    }
    const double expected = silu(gate[size_t(i)]) * double(up[size_t(i)]);
    ASSERT_NEAR(values[size_t(i)], expected, std::abs(expected) * (8 + std::abs(gate[size_t(i)])) * 0x1p-23 + 1e-37)
        << i;
  }
}

TEST(DeviceMatmul, PiecesCoverK) {
  for (int k = 1; k < 9000; k++) {
    const int pieces = matmul_partitions(k), length = matmul_partition_k(k);
    ASSERT_EQ(pieces, std::clamp((k + 255) / 256, 1, 8));
    ASSERT_EQ(length % 32, 0);
    ASSERT_GE(pieces * length, k);
    ASSERT_LT((pieces - 1) * length, std::max(k, 32 * pieces)) << k;
  }
}

}  // namespace
}  // namespace freetoken::cuda
