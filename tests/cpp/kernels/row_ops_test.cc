// Row kernels: every ISA level equals scalar bit for bit, and scalar is within derived bounds of double precision.
#include "kernels/row_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "core/fp_env.h"
#include "core/math.h"

namespace freetoken {
namespace {

constexpr double kU = 0x1p-24;  // unit roundoff of fp32
const std::vector<int> kLengths = {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 576, 1027};

// Exact-size vectors: a read or write past the end is an AddressSanitizer report.
class Rows {
 public:
  explicit Rows(uint32_t seed) : rng_(seed) {}
  std::vector<float> normal(int n, float deviation = 1.0f, float mean = 0.0f) {
    std::normal_distribution<float> d(mean, deviation);
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = d(rng_);
    return x;
  }
  // Zeros of both signs, the smallest and largest numbers, and what exp clamps at, between normal values.
  std::vector<float> extreme(int n) {
    static const float kValues[] = {0.0f,   -0.0f,  1e-38f, -1e-38f, 1e-45f, -1e-42f, 87.0f, -87.0f, -87.00001f, 88.0f,
                                    88.01f, -88.5f, 1e4f,   -1e4f,   3e18f,  -3e18f,  3e38f, -3e38f, 0.5f,       -1.0f};
    std::vector<float> x = normal(n, 20.0f);
    for (float& v : x)
      if (rng_() % 2) v = kValues[rng_() % std::size(kValues)];
    return x;
  }
  std::mt19937& rng() { return rng_; }

 private:
  std::mt19937 rng_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || !std::memcmp(a.data(), b.data(), a.size() * sizeof(float)));
}

// Runs `body(kernels, output)` at the level and at scalar level on equal outputs and compares all of their bits.
class RowOpsLevel : public ::testing::TestWithParam<IsaLevel> {
 protected:
  void SetUp() override { set_denormals_to_zero(); }
  void expect_same(const std::vector<float>& initial, const std::function<void(const RowKernels&, float*)>& body,
                   const std::string& what) {
    std::vector<float> expected = initial, got = initial;
    body(row_kernels(IsaLevel::kScalar), expected.data());
    body(row_kernels(GetParam()), got.data());
    EXPECT_TRUE(same_bits(expected, got)) << what;
  }
};

TEST_P(RowOpsLevel, NormsEqualScalar) {
  Rows rows(1);
  for (int n : kLengths)
    for (bool extreme : {false, true})
      for (int form = 0; form < 4; form++) {
        std::vector<float> x = rows.normal(n, 2.0f, 0.7f);
        if (extreme)  // squares overflow to infinity or are flushed; all levels must agree there too
          for (float& v : x) v *= rows.rng()() % 2 ? 1e-30f : 1e15f;
        const std::vector<float> w = rows.normal(n), b = rows.normal(n);
        const float* weight = form & 1 ? w.data() : nullptr;
        const float* bias = form & 2 ? b.data() : nullptr;
        const std::string what = "n " + std::to_string(n) + ", form " + std::to_string(form);
        expect_same(
            std::vector<float>(n),
            [&](const RowKernels& k, float* out) { k.rms_norm(x.data(), weight, form & 2, 1e-6f, n, out); },
            "rms_norm " + what);
        expect_same(
            x, [&](const RowKernels& k, float* out) { k.rms_norm(out, weight, form & 2, 1e-5f, n, out); },
            "rms_norm in place " + what);
        expect_same(
            std::vector<float>(n),
            [&](const RowKernels& k, float* out) { k.layer_norm(x.data(), weight, bias, 1e-5f, n, out); },
            "layer_norm " + what);
      }
}

TEST_P(RowOpsLevel, SumsAndRotationsEqualScalar) {
  Rows rows(2);
  for (int n : kLengths)
    for (bool extreme : {false, true}) {
      const auto make = [&](int count) { return extreme ? rows.extreme(count) : rows.normal(count); };
      const std::vector<float> y = make(n);
      const std::string what = "n " + std::to_string(n) + (extreme ? ", extreme" : "");
      expect_same(
          make(n), [&](const RowKernels& k, float* x) { k.add_scaled(x, y.data(), 0.3f, n); }, "add_scaled " + what);
      expect_same(make(n), [&](const RowKernels& k, float* x) { k.add_bias(x, y.data(), n); }, "add_bias " + what);
      std::vector<float> cos(n), sin(n);
      for (int i = 0; i < n; i++) cos[i] = std::cos(float(7 * i)), sin[i] = i ? std::sin(float(7 * i)) : 0.0f;
      for (bool interleaved : {false, true})
        expect_same(
            make(2 * n), [&](const RowKernels& k, float* x) { k.rotate(x, cos.data(), sin.data(), n, interleaved); },
            "rotate " + what);
    }
}

TEST_P(RowOpsLevel, ActivationsEqualScalar) {
  Rows rows(3);
  for (int n : kLengths)
    for (bool extreme : {false, true}) {
      const auto make = [&](int count) { return extreme ? rows.extreme(count) : rows.normal(count, 5.0f); };
      const std::string what = "n " + std::to_string(n) + (extreme ? ", extreme" : "");
      const std::vector<float> gate = make(n), up = make(n);
      expect_same(
          std::vector<float>(n), [&](const RowKernels& k, float* out) { k.gated(gate.data(), up.data(), n, out); },
          "gated " + what);
      expect_same(gate, [&](const RowKernels& k, float* x) { k.gated(x, up.data(), n, x); }, "gated in place " + what);
      if (n <= 64) {
        const std::vector<float> pairs = make(32 * n), gate_bias = rows.normal(16 * n), up_bias = rows.normal(16 * n);
        for (int form = 0; form < 4; form++) {
          const float *g = form & 1 ? gate_bias.data() : nullptr, *u = form & 2 ? up_bias.data() : nullptr;
          expect_same(
              std::vector<float>(16 * n),
              [&](const RowKernels& k, float* out) { k.gated_interleaved(pairs.data(), g, u, n, out); },
              "gated_interleaved " + what);
          expect_same(
              pairs, [&](const RowKernels& k, float* x) { k.gated_interleaved(x, g, u, n, x); },
              "gated_interleaved in place " + what);
        }
      }
      expect_same(make(n), [&](const RowKernels& k, float* x) { k.softmax(x, n, x); }, "softmax " + what);
      for (float softcap : {0.0f, 30.0f})
        expect_same(
            make(n), [&](const RowKernels& k, float* x) { k.scale_softcap(x, 0.7f, softcap, n); },
            "scale_softcap " + what);
    }
}

// exp of the lanes is exp_f32: silu is written out with it. Every 4099th float (a prime), both signs, and the edges.
TEST_P(RowOpsLevel, LaneExponentialIsTheScalarOne) {
  std::vector<float> gate;
  for (uint32_t bits = 0x00800000u; bits < 0x7f800000u; bits += 4099)
    for (uint32_t sign : {0u, 0x80000000u}) gate.push_back(std::bit_cast<float>(bits | sign));
  for (float edge : {87.0f, 88.0f, 0.0f})
    for (float next : {-1e30f, edge, 1e30f})
      for (float sign : {-1.0f, 1.0f}) gate.push_back(sign * std::nextafter(edge, next));
  std::erase_if(gate, [](float g) { return std::fpclassify(g) == FP_SUBNORMAL; });
  const std::vector<float> up(gate.size(), 1.0f);
  std::vector<float> got(gate.size());
  row_kernels(GetParam()).gated(gate.data(), up.data(), int(gate.size()), got.data());
  for (size_t i = 0; i < gate.size(); i++) {
    const float expected = gate[i] / (1.0f + exp_f32(0.0f - gate[i])) * 1.0f;
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected)) << gate[i];
  }
}

std::string level_name(const ::testing::TestParamInfo<IsaLevel>& info) { return isa_name(info.param); }
INSTANTIATE_TEST_SUITE_P(Levels, RowOpsLevel, ::testing::ValuesIn(supported_isa_levels()), level_name);

class RowOpsOracle : public ::testing::Test {
 protected:
  const RowKernels& k = row_kernels(IsaLevel::kScalar);
  Rows rows{7};
};

// The sum of squares is a chain of ceil(n/16) fmas and 4 additions of positive numbers; the rest are 6 roundings.
TEST_F(RowOpsOracle, RmsNorm) {
  for (int n : kLengths)
    for (bool plus_one : {false, true}) {
      const std::vector<float> x = rows.normal(n, 3.0f), w = rows.normal(n);
      std::vector<float> out(n);
      k.rms_norm(x.data(), w.data(), plus_one, 1e-5f, n, out.data());
      double squares = 0;
      for (float v : x) squares += double(v) * v;
      const double inverse = 1 / std::sqrt(squares / n + double(1e-5f));
      for (int i = 0; i < n; i++) {
        const double exact = x[i] * inverse * (double(w[i]) + plus_one),
                     weight_error = plus_one ? std::fabs(x[i] * inverse) * kU : 0;
        ASSERT_NEAR(out[i], exact, (n / 32 + 12) * kU * std::fabs(exact) + 2 * weight_error) << "n " << n << ", " << i;
      }
    }
}

// The mean's error reaches every element; the variance's is relative, and that of a centred value at most the mean's.
TEST_F(RowOpsOracle, LayerNorm) {
  for (int n : kLengths) {
    if (n < 2) continue;  // one element is its own mean: only eps is left
    const std::vector<float> x = rows.normal(n, 2.0f, 1.5f), w = rows.normal(n), b = rows.normal(n);
    std::vector<float> out(n);
    k.layer_norm(x.data(), w.data(), b.data(), 1e-5f, n, out.data());
    double mean = 0, variance = 0, largest = 0;
    for (float v : x) mean += v, largest = std::max(largest, std::fabs(double(v)));
    mean /= n;
    for (float v : x) variance += (v - mean) * (v - mean);
    const double inverse = 1 / std::sqrt(variance / n + double(1e-5f));
    for (int i = 0; i < n; i++) {
      const double centred = (x[i] - mean) * inverse, exact = centred * w[i] + b[i];
      const double bound = (n / 16 + 12) * kU * (1 + largest * inverse) * std::max(1.0, std::fabs(centred));
      ASSERT_NEAR(out[i], exact, 2 * bound * std::fabs(w[i]) + 2 * kU * (std::fabs(exact) + std::fabs(b[i])))
          << "n " << n;
    }
  }
}

TEST_F(RowOpsOracle, SumsAreOneRounding) {
  const int n = 100;
  const std::vector<float> x = rows.normal(n), y = rows.normal(n);
  std::vector<float> scaled = x, biased = x;
  k.add_scaled(scaled.data(), y.data(), 0.3f, n);
  k.add_bias(biased.data(), y.data(), n);
  for (int i = 0; i < n; i++) {
    EXPECT_EQ(scaled[i], std::fmaf(y[i], 0.3f, x[i]));
    EXPECT_EQ(biased[i], x[i] + y[i]);
  }
}

// Pairs by the definition of both forms; two roundings per element.
TEST_F(RowOpsOracle, Rotation) {
  for (int half : {1, 5, 16, 32, 48})
    for (bool interleaved : {false, true}) {
      const std::vector<float> x = rows.normal(2 * half), cos = rows.normal(half, 0.5f), sin = rows.normal(half, 0.5f);
      std::vector<float> got = x;
      k.rotate(got.data(), cos.data(), sin.data(), half, interleaved);
      for (int i = 0; i < half; i++) {
        const int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
        const double c = cos[i], s = sin[i], size = std::fabs(x[a]) + std::fabs(x[b]);
        EXPECT_NEAR(got[a], x[a] * c - x[b] * s, 2 * kU * size * (std::fabs(c) + std::fabs(s)));
        EXPECT_NEAR(got[b], x[b] * c + x[a] * s, 2 * kU * size * (std::fabs(c) + std::fabs(s)));
      }
    }
}

double silu(double g) { return g / (1 + std::exp(-g)); }

// exp is within kExpMaxUlp (2 units each), then three roundings. Where exp(-g) is clamped at e^88 the result is up to
// |g| e^-88 from the exact one, which is zero to fp32.
double gated_bound(double g, double u) {
  return (2 * kExpMaxUlp + 4) * kU * std::fabs(silu(g) * u) + std::fabs(g * u) * 1e-38;
}

TEST_F(RowOpsOracle, Gated) {
  std::vector<float> gate = rows.normal(500, 30.0f), up = rows.normal(500);
  for (float g : {-1e4f, -90.0f, -88.0f, -87.0f, 0.0f, 1e-30f, 87.5f, 1e4f}) gate.push_back(g), up.push_back(1.5f);
  std::vector<float> out(gate.size());
  k.gated(gate.data(), up.data(), int(gate.size()), out.data());
  for (size_t i = 0; i < gate.size(); i++)
    EXPECT_NEAR(out[i], silu(gate[i]) * up[i], gated_bound(gate[i], up[i])) << gate[i];
}

TEST_F(RowOpsOracle, GatedInterleavedTakesPairsOfSixteen) {
  const int tiles = 3;
  const std::vector<float> pairs = rows.normal(32 * tiles, 4.0f), gb = rows.normal(16 * tiles),
                           ub = rows.normal(16 * tiles);
  std::vector<float> out(16 * tiles);
  k.gated_interleaved(pairs.data(), gb.data(), ub.data(), tiles, out.data());
  for (int i = 0; i < 16 * tiles; i++) {
    const float g = pairs[i / 16 * 32 + i % 16] + gb[i], u = pairs[i / 16 * 32 + 16 + i % 16] + ub[i];
    EXPECT_NEAR(out[i], silu(g) * u, gated_bound(g, u)) << i;
  }
}

// x - max is rounded once, which costs |x - max| units of its exponential; the sum adds ceil(n/16) + 4 roundings.
TEST_F(RowOpsOracle, Softmax) {
  for (int n : kLengths) {
    const std::vector<float> x = rows.normal(n, 20.0f);
    std::vector<float> p(n);
    k.softmax(x.data(), n, p.data());
    const double highest = *std::max_element(x.begin(), x.end());
    double total = 0, spread = 0, sum = 0;
    for (float v : x) total += std::exp(v - highest), spread += std::exp(v - highest) * (highest - v);
    for (int i = 0; i < n; i++) {
      const double exact = std::exp(x[i] - highest) / total;
      ASSERT_NEAR(p[i], exact, exact * kU * (highest - x[i] + spread / total + n / 16 + 12) + 1.7e-38) << "n " << n;
      sum += p[i];
    }
    EXPECT_NEAR(sum, 1.0, (n / 16 + 12) * kU * 2);
  }
}

TEST_F(RowOpsOracle, ScaleAndSoftcap) {
  std::vector<float> x = rows.normal(200, 50.0f);
  x.insert(x.end(), {0.0f, 1e6f, -1e6f, 1e30f, -1e30f});
  std::vector<float> capped = x, plain = x;
  k.scale_softcap(capped.data(), 0.5f, 30.0f, int(x.size()));
  k.scale_softcap(plain.data(), 0.3f, 0.0f, int(x.size()));
  for (size_t i = 0; i < x.size(); i++) {
    // 1 - 2 / (e + 1): absolute errors of a few units of the cap.
    EXPECT_NEAR(capped[i], 30 * std::tanh(double(x[i]) * 0.5 / 30), 8 * kU * 30) << x[i];
    EXPECT_EQ(plain[i], x[i] * 0.3f);
  }
}

}  // namespace
}  // namespace freetoken
