// exp and log in fp32, one fixed sequence of IEEE operations: vector code that uses the same constants and the same order
// gives the same bits on every ISA level (docs/numerics.md). Round-to-nearest mode is assumed; no result is denormal, so the
// flush-to-zero state does not matter.
//
// always_inline and static: kernels include this once per ISA level, and the linker must not merge those copies.
//
// Errors against the exact value, measured over every float of the range: see kExpMaxUlp and kLogMaxUlp.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace freetoken {

// Constants of exp_f32, for the vector versions.
struct ExpConstants {
  static constexpr float kLowest = -87.0f, kHighest = 88.0f;
  static constexpr float kLog2E = 0x1.715476p+0f;
  static constexpr float kMagic = 0x1.8p+23f;        // x + kMagic rounds x to an integer in the low bits
  static constexpr float kLn2Hi = 0x1.62e4p-1f;      // 15 bits: n * kLn2Hi is exact
  static constexpr float kLn2Lo = 0x1.7f7d1cp-20f;
  // Minimax of (e^r - 1 - r) / r^2 on |r| <= ln2 / 2, relative to e^r: 3.1e-9.
  static constexpr float kC2 = 0x1.fffffcp-2f, kC3 = 0x1.555492p-3f, kC4 = 0x1.555902p-5f, kC5 = 0x1.123a14p-7f,
                         kC6 = 0x1.6a1572p-10f;
};
constexpr double kExpMaxUlp = 0.90;  // measured 0.894
constexpr double kLogMaxUlp = 0.85;  // measured 0.840

// e^x. Below -87 the result is 0, above 88 it is e^88 (so that sums of a few stay finite); NaN gives NaN.
[[gnu::always_inline]] static inline float exp_f32(float x) {
  using C = ExpConstants;
  const float clamped = x > C::kHighest ? C::kHighest : x;  // written so that min_ps(kHighest, x) keeps NaN as this does
  const float rounded = std::fmaf(clamped, C::kLog2E, C::kMagic);
  const float n = rounded - C::kMagic;
  float r = std::fmaf(n, -C::kLn2Hi, clamped);
  r = std::fmaf(n, -C::kLn2Lo, r);
  float p = C::kC6;
  p = std::fmaf(p, r, C::kC5);
  p = std::fmaf(p, r, C::kC4);
  p = std::fmaf(p, r, C::kC3);
  p = std::fmaf(p, r, C::kC2);
  p = std::fmaf(p, r, 1.0f);
  p = std::fmaf(p, r, 1.0f);
  const float scale = std::bit_cast<float>((std::bit_cast<uint32_t>(rounded) << 23) + 0x3f800000u);  // 2^n
  return x < C::kLowest ? 0.0f : p * scale;
}

// Natural logarithm. Zero and denormals give -inf, negative numbers and NaN give NaN, +inf gives +inf.
// log(m) = f - (f^2/2 - s (f^2/2 + R(s^2))), m = 1 + f in [sqrt(1/2), sqrt(2)), s = f / (2 + f),
// R = 2 atanh(s) / s - 2 by minimax (1.6e-9).
[[gnu::always_inline]] static inline float log_f32(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (bits >= 0x7f800000u || bits < 0x00800000u) {
    if (x == std::numeric_limits<float>::infinity()) return x;
    if ((bits & 0x7fffffffu) < 0x00800000u) return -std::numeric_limits<float>::infinity();
    return std::numeric_limits<float>::quiet_NaN();
  }
  const uint32_t shifted = bits - 0x3f3504f3u;  // bits of sqrt(1/2)
  const int32_t exponent = int32_t(shifted) >> 23;
  const float n = float(exponent);
  const float f = std::bit_cast<float>(bits - (uint32_t(exponent) << 23)) - 1.0f;
  const float s = f / (2.0f + f), z = s * s;
  float r = 0x1.31e34cp-2f;
  r = std::fmaf(r, z, 0x1.995eb6p-2f);
  r = std::fmaf(r, z, 0x1.55557ap-1f);
  r = r * z;
  const float half = 0.5f * f * f;
  const float low = std::fmaf(n, ExpConstants::kLn2Lo, s * (half + r));
  return std::fmaf(n, ExpConstants::kLn2Hi, f - (half - low));
}

}  // namespace freetoken
