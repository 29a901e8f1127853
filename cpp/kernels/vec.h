// F16: sixteen fp32 lanes with one meaning on every ISA level. Included by *.isa.cc files only.
//
// Each operation is IEEE single precision, lane by lane, so code written on F16 gives the same bits on every level.
// Reductions use one tree: lane i + lane i+8, then i+4, i+2, i+1.
#pragma once
#include <stdint.h>
#include <string.h>

#ifndef FT_ISA_scalar
#include <immintrin.h>
#endif

namespace freetoken {
namespace FT_ISA {
namespace {

#if defined(FT_ISA_scalar)

struct F16 { float v[16]; };
#define FT_LANES(expr)                    \
  F16 r;                                  \
  for (int i = 0; i < 16; i++) r.v[i] = (expr); \
  return r
inline uint32_t bits_of(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
inline float float_of(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
inline F16 set1(float x) { FT_LANES(x); }
inline F16 load(const float* p) { FT_LANES(p[i]); }
inline F16 load_n(const float* p, int n) { FT_LANES(i < n ? p[i] : 0.0f); }
inline void store(float* p, F16 a) { for (int i = 0; i < 16; i++) p[i] = a.v[i]; }
inline void store_n(float* p, F16 a, int n) { for (int i = 0; i < n; i++) p[i] = a.v[i]; }
inline F16 add(F16 a, F16 b) { FT_LANES(a.v[i] + b.v[i]); }
inline F16 sub(F16 a, F16 b) { FT_LANES(a.v[i] - b.v[i]); }
inline F16 mul(F16 a, F16 b) { FT_LANES(a.v[i] * b.v[i]); }
inline F16 div(F16 a, F16 b) { FT_LANES(a.v[i] / b.v[i]); }
inline F16 fma(F16 a, F16 b, F16 c) { FT_LANES(__builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
inline F16 max(F16 a, F16 b) { FT_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline F16 min(F16 a, F16 b) { FT_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
// a < b ? 0 : c
inline F16 zero_where_less(F16 a, F16 b, F16 c) { FT_LANES(a.v[i] < b.v[i] ? 0.0f : c.v[i]); }
// The float whose bits are (bits(a) + 127) << 23: 2^n where a = 1.5 * 2^23 + n.
inline F16 pow2_of_magic(F16 a) { FT_LANES(float_of((bits_of(a.v[i]) + 127u) << 23)); }
inline F16 load_bf16(const uint16_t* p) { FT_LANES(float_of(uint32_t(p[i]) << 16)); }
inline float sum(F16 a) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) a.v[i] = a.v[i] + a.v[i + half];
  return a.v[0];
}
inline float max_lane(F16 a) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
  return a.v[0];
}

#elif defined(__AVX512F__)

struct F16 { __m512 v; };
inline __mmask16 first(int n) { return __mmask16((1u << n) - 1u); }
inline F16 set1(float x) { return {_mm512_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F16 load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
inline void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
inline void store_n(float* p, F16 a, int n) { _mm512_mask_storeu_ps(p, first(n), a.v); }
inline F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F16 zero_where_less(F16 a, F16 b, F16 c) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_NLT_UQ), c.v)};
}
inline F16 pow2_of_magic(F16 a) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(a.v), _mm512_set1_epi32(127)), 23))};
}
inline F16 load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
inline __m128 fold8(__m256 a) { return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)); }
inline __m128 fold8_max(__m256 a) { return _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)); }
inline float sum(F16 a) {
  __m128 t = fold8(_mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
  t = _mm_add_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}
inline float max_lane(F16 a) {
  __m128 t = fold8_max(_mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
  t = _mm_max_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
}

#else  // AVX2

struct F16 { __m256 lo, hi; };
inline F16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline __m256i first8(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline F16 load_n(const float* p, int n) {
  return {_mm256_maskload_ps(p, first8(n)), n > 8 ? _mm256_maskload_ps(p + 8, first8(n - 8)) : _mm256_setzero_ps()};
}
inline void store(float* p, F16 a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
inline void store_n(float* p, F16 a, int n) {
  _mm256_maskstore_ps(p, first8(n), a.lo);
  if (n > 8) _mm256_maskstore_ps(p + 8, first8(n - 8), a.hi);
}
inline F16 add(F16 a, F16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline F16 sub(F16 a, F16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline F16 mul(F16 a, F16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline F16 div(F16 a, F16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
inline F16 max(F16 a, F16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F16 min(F16 a, F16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline F16 zero_where_less(F16 a, F16 b, F16 c) {
  return {_mm256_and_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_NLT_UQ), c.lo),
          _mm256_and_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_NLT_UQ), c.hi)};
}
inline __m256 pow2_of_magic8(__m256 a) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_set1_epi32(127)), 23));
}
inline F16 pow2_of_magic(F16 a) { return {pow2_of_magic8(a.lo), pow2_of_magic8(a.hi)}; }
inline __m256 load_bf16_8(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
inline F16 load_bf16(const uint16_t* p) { return {load_bf16_8(p), load_bf16_8(p + 8)}; }
inline float sum(F16 a) {
  const __m256 e = _mm256_add_ps(a.lo, a.hi);
  __m128 t = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
  t = _mm_add_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}
inline float max_lane(F16 a) {
  const __m256 e = _mm256_max_ps(a.lo, a.hi);
  __m128 t = _mm_max_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
  t = _mm_max_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
}

#endif

}  // namespace
}  // namespace FT_ISA
}  // namespace freetoken
