// The few vector operations the matmul kernels need, at 256 or 512 bits, and the int8 dot product of the level.
// Lanes are output rows: a tile's half (16 rows) is one 512-bit or two 256-bit vectors.
#pragma once
// gcc 12's own AVX-512 intrinsics start from "__Y = __Y" and warn wherever they are inlined.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

#include "kernels/matmul_records-inl.h"
#include "quant/bytes.h"

#if FT_ISA_avx2vnni || FT_ISA_avx512vnni || FT_ISA_avx512bf16
#define FT_MATMUL_VNNI 1
#else
#define FT_MATMUL_VNNI 0
#endif
#if FT_ISA_avx2 || FT_ISA_avx2vnni
#define FT_MATMUL_512 0
#else
#define FT_MATMUL_512 1
#endif

namespace freetoken::FT_ISA {
namespace {

#if FT_MATMUL_512
using Floats = __m512;
using Ints = __m512i;
inline Floats zero() { return _mm512_setzero_ps(); }
inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Floats v) { _mm512_storeu_ps(p, v); }
inline Floats splat(float x) { return _mm512_set1_ps(x); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats as_floats(Ints i) { return _mm512_castsi512_ps(i); }
inline Floats load_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Floats load_int8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline Ints load_bytes(const uint8_t* p) { return _mm512_load_si512(p); }
inline void store_bytes(uint8_t* p, Ints v) { _mm512_store_si512(p, v); }
inline Ints splat_int(int32_t x) { return _mm512_set1_epi32(x); }
inline Ints splat_byte(int x) { return _mm512_set1_epi8(char(x)); }
inline Ints bit_and(Ints a, Ints b) { return _mm512_and_si512(a, b); }
inline Ints bit_or(Ints a, Ints b) { return _mm512_or_si512(a, b); }
inline Ints bit_xor(Ints a, Ints b) { return _mm512_xor_si512(a, b); }
template <int kBits>
inline Ints shift_right(Ints v) { return _mm512_srli_epi16(v, kBits); }
template <int kBits>
inline Ints shift_left(Ints v) { return _mm512_slli_epi16(v, kBits); }
#else
using Floats = __m256;
using Ints = __m256i;
inline Floats zero() { return _mm256_setzero_ps(); }
inline Floats load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Floats v) { _mm256_storeu_ps(p, v); }
inline Floats splat(float x) { return _mm256_set1_ps(x); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
inline Floats as_floats(Ints i) { return _mm256_castsi256_ps(i); }
inline Floats load_halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Floats load_int8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline Ints load_bytes(const uint8_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }
inline void store_bytes(uint8_t* p, Ints v) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), v); }
inline Ints splat_int(int32_t x) { return _mm256_set1_epi32(x); }
inline Ints splat_byte(int x) { return _mm256_set1_epi8(char(x)); }
inline Ints bit_and(Ints a, Ints b) { return _mm256_and_si256(a, b); }
inline Ints bit_or(Ints a, Ints b) { return _mm256_or_si256(a, b); }
inline Ints bit_xor(Ints a, Ints b) { return _mm256_xor_si256(a, b); }
template <int kBits>
inline Ints shift_right(Ints v) { return _mm256_srli_epi16(v, kBits); }
template <int kBits>
inline Ints shift_left(Ints v) { return _mm256_slli_epi16(v, kBits); }
#endif

constexpr int kLanes = sizeof(Floats) / 4;
constexpr int kColumns = kTileRows / kLanes;       // vectors that span a tile
constexpr int kVectorBytes = int(sizeof(Floats));  // also: bytes of 4 k of kLanes rows

inline Floats broadcast_float(const uint8_t* p) { return splat(std::bit_cast<float>(load_u32(p))); }
inline Ints broadcast_int(const uint8_t* p) { return splat_int(int32_t(load_u32(p))); }
inline Floats from_magic(Ints i) { return sub(as_floats(i), splat(kMagic)); }

}  // namespace
}  // namespace freetoken::FT_ISA
