// encode_row with vectors; bit-equal to encode_scalar-inl.h.
#pragma once
#include "core/dtype.h"
#include "kernels/matmul_vec-inl.h"

namespace freetoken::FT_ISA {
namespace {

inline uint32_t reduce_add(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return uint32_t(_mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1))));
}

#if FT_MATMUL_512

// gcc's _mm512_reduce_add_epi32 ends in a signed addition, which overflows where x was not finite.
inline uint32_t reduce_add(__m512i v) {
  return reduce_add(_mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1)));
}

inline void encode_block(ActivationKind kind, const float* x, uint8_t* record) {
  const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const BlockScale scale =
      block_scale(_mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                                                           _mm512_and_si512(_mm512_castps_si512(high), magnitude))));
  const __m512 inverse = _mm512_set1_ps(scale.inverse);
  const __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
  const __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(record), _mm512_cvtepi32_epi8(q0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(record + 16), _mm512_cvtepi32_epi8(q1));
  store_tail(kind, scale.s, reduce_add(q0), reduce_add(q1), record);
}

#else

inline uint32_t reduce_max(__m256i v) {
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
  return uint32_t(_mm_cvtsi128_si32(_mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1))));
}

inline void encode_block(ActivationKind kind, const float* x, uint8_t* record) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), low_bytes = _mm256_set1_epi32(0x0c080400);
  __m256i largest = _mm256_setzero_si256();
  for (int j = 0; j < 32; j += 8)
    largest = _mm256_max_epu32(largest, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + j)), magnitude));
  const BlockScale scale = block_scale(reduce_max(largest));
  const __m256 inverse = _mm256_set1_ps(scale.inverse);
  __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (int j = 0; j < 32; j += 8) {
    const __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + j), inverse));
    sum[j / 16] = _mm256_add_epi32(sum[j / 16], q);
    const __m256i bytes = _mm256_shuffle_epi8(q, low_bytes);
    store_u32(record + j, uint32_t(_mm_cvtsi128_si32(_mm256_castsi256_si128(bytes))));
    store_u32(record + j + 4, uint32_t(_mm_cvtsi128_si32(_mm256_extracti128_si256(bytes, 1))));
  }
  store_tail(kind, scale.s, reduce_add(sum[0]), reduce_add(sum[1]), record);
}

#endif

inline void encode_bf16(const float* x, int k, uint8_t* row) {
  int i = 0;
#if FT_ISA_avx512bf16
  for (; i + 16 <= k; i += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + 2 * size_t(i)),
                        __m256i(_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i))));
#endif
  for (; i < k; i++) store_u16(row + 2 * size_t(i), f32_to_bf16(x[i]));
  if (k % 2) store_u16(row + 2 * size_t(k), 0);
}

void encode_row(ActivationKind kind, const float* x, int k, uint8_t* row) {
  if (kind == ActivationKind::kF32) {
    std::memcpy(row, x, size_t(k) * 4);
    return;
  }
  if (kind == ActivationKind::kBF16) return encode_bf16(x, k, row);
  int i = 0;
  for (; i + 32 <= k; i += 32, row += record_bytes(kind)) encode_block(kind, x + i, row);
  if (i < k) {
    float block[32] = {};
    std::memcpy(block, x + i, size_t(k - i) * 4);
    encode_block(kind, block, row);
  }
}

}  // namespace
}  // namespace freetoken::FT_ISA
