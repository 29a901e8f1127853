// Arithmetic whose bits are fixed: the CPU's exp and log (core/math.h), the order of floats, sums over warps and blocks.
//
// __fmul_rn keeps a product that is added to something from being contracted into an fma.
#pragma once
#include "core/math.h"
#include "cuda/kernels/device.h"

namespace freetoken::cuda {

FT_DEV float negative_infinity() { return __uint_as_float(0xff800000u); }
FT_DEV float positive_infinity() { return __uint_as_float(0x7f800000u); }
FT_DEV float quiet_nan() { return __uint_as_float(0x7fc00000u); }

// exp_f32: e^x, 0 below -87, e^88 above 88, NaN for NaN.
FT_DEV float exp_exact(float x) {
  using C = ExpConstants;
  const float clamped = x > C::kHighest ? C::kHighest : x;
  const float rounded = fmaf(clamped, C::kLog2E, C::kMagic);
  const float n = rounded - C::kMagic;
  float r = fmaf(n, -C::kLn2Hi, clamped);
  r = fmaf(n, -C::kLn2Lo, r);
  float p = C::kC6;
  p = fmaf(p, r, C::kC5);
  p = fmaf(p, r, C::kC4);
  p = fmaf(p, r, C::kC3);
  p = fmaf(p, r, C::kC2);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  const float scale = __uint_as_float((__float_as_uint(rounded) << 23) + 0x3f800000u);  // 2^n
  return x < C::kLowest ? 0.0f : __fmul_rn(p, scale);
}

// log_f32 for normal numbers above 0.
FT_DEV float log_exact(float x) {
  const uint32_t bits = __float_as_uint(x), shifted = bits - 0x3f3504f3u;
  const int32_t exponent = int32_t(shifted) >> 23;
  const float n = float(exponent);
  const float f = __uint_as_float(bits - (uint32_t(exponent) << 23)) - 1.0f;
  const float s = f / (2.0f + f), z = __fmul_rn(s, s);
  float r = 0x1.31e34cp-2f;
  r = fmaf(r, z, 0x1.995eb6p-2f);
  r = fmaf(r, z, 0x1.55557ap-1f);
  r = __fmul_rn(r, z);
  const float half = __fmul_rn(__fmul_rn(0.5f, f), f);
  const float low = fmaf(n, ExpConstants::kLn2Lo, __fmul_rn(s, half + r));
  return fmaf(n, ExpConstants::kLn2Hi, f - (half - low));
}

// tanh(y) = 1 - 2 / (exp(2 y) + 1), as the CPU's scale_softcap.
FT_DEV float soft_cap(float x, float cap) {
  const float e = exp_exact(__fmul_rn(x, 2.0f / cap));
  return __fmul_rn(cap, 1.0f - 2.0f / (e + 1.0f));
}

// Unsigned numbers in the order of floats; -0 and +0 are one, NaN must not come.
FT_DEV uint32_t order_key(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

FT_DEV uint64_t max_warp(uint64_t v) {
  for (int step = 16; step > 0; step >>= 1) {
    const uint32_t low = __shfl_xor_sync(0xffffffffu, uint32_t(v), step);
    const uint32_t high = __shfl_xor_sync(0xffffffffu, uint32_t(v >> 32), step);
    const uint64_t other = uint64_t(high) << 32 | low;
    v = other > v ? other : v;
  }
  return v;
}

// The sum over a block of Warps warps, the same bits in every thread: warp trees, then warps in ascending order. `shared` may be used again at once.
template <int Warps>
FT_DEV float sum_block(float v, float* shared) {
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  float total = shared[0];
  for (int w = 1; w < Warps; w++) total += shared[w];
  __syncthreads();
  return total;
}

}  // namespace freetoken::cuda
