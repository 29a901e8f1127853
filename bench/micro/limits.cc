#include "limits.h"

#include <immintrin.h>

namespace freetoken::bench {
namespace {

// Eight times the instruction on eight accumulators of its own: enough to cover its latency on every pipe.
#define FT_EIGHT(op, r)                                                                                      \
  op " %%" r "15,%%" r "14,%%" r "0\n" op " %%" r "15,%%" r "14,%%" r "1\n" op " %%" r "15,%%" r "14,%%" r   \
     "2\n" op " %%" r "15,%%" r "14,%%" r "3\n" op " %%" r "15,%%" r "14,%%" r "4\n" op " %%" r "15,%%" r    \
     "14,%%" r "5\n" op " %%" r "15,%%" r "14,%%" r "6\n" op " %%" r "15,%%" r "14,%%" r "7\n" op " %%" r    \
     "15,%%" r "14,%%" r "8\n" op " %%" r "15,%%" r "14,%%" r "9\n" op " %%" r "15,%%" r "14,%%" r "10\n" op \
     " %%" r "15,%%" r "14,%%" r "11\n"
#define FT_RUN(op, r)                                                                                           \
  __asm__ volatile("vpxor %%xmm14,%%xmm14,%%xmm14\nvpxor %%xmm15,%%xmm15,%%xmm15\n1:\n" FT_EIGHT(op, r)         \
                       "dec %0\njnz 1b\nvzeroupper\n"                                                           \
                   : "+r"(loops)::"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
                     "xmm10", "xmm11", "xmm14", "xmm15", "cc")
constexpr int kDots = 12;

// Without VNNI a dot of four takes three instructions; the sum is what limits, so count their chain.
#define FT_TRIPLE(r)                                                                                          \
  __asm__ volatile(                                                                                           \
      "vpxor %%xmm14,%%xmm14,%%xmm14\nvpxor %%xmm15,%%xmm15,%%xmm15\n1:\n"                                    \
      FT_STEP(r, "0", "6") FT_STEP(r, "1", "7") FT_STEP(r, "2", "8") FT_STEP(r, "3", "9")                     \
      FT_STEP(r, "4", "10") FT_STEP(r, "5", "11") "dec %0\njnz 1b\nvzeroupper\n"                              \
      : "+r"(loops)::"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
        "xmm11", "xmm14", "xmm15", "cc")
#define FT_STEP(r, sum, t)                                                                               \
  "vpmaddubsw %%" r "15,%%" r "14,%%" r t "\nvpmaddwd %%" r "15,%%" r t ",%%" r t "\nvpaddd %%" r t ",%%" r \
  sum ",%%" r sum "\n"
constexpr int kTriples = 6;

__attribute__((target("avx512f"))) void read_512(const uint8_t* p, size_t n) {
  __m512i sum[4] = {};
  for (size_t i = 0; i < n; i += 256)
    for (int j = 0; j < 4; j++) {
      __builtin_prefetch(p + i + 64 * j + 3072);
      sum[j] = _mm512_xor_si512(sum[j], _mm512_loadu_si512(p + i + 64 * j));
    }
  __asm__ volatile("" ::"v"(_mm512_xor_si512(_mm512_xor_si512(sum[0], sum[1]), _mm512_xor_si512(sum[2], sum[3]))));
}

__attribute__((target("avx2"))) void read_256(const uint8_t* p, size_t n) {
  __m256i sum[4] = {};
  for (size_t i = 0; i < n; i += 128) {
    __builtin_prefetch(p + i + 3072);
    __builtin_prefetch(p + i + 3072 + 64);
    for (int j = 0; j < 4; j++)
      sum[j] = _mm256_xor_si256(sum[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i + 32 * j)));
  }
  __asm__ volatile("" ::"x"(_mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]))));
}

void read_64(const uint8_t* p, size_t n) {
  uint64_t sum = 0;
  for (size_t i = 0; i < n; i += 8) sum ^= *reinterpret_cast<const uint64_t*>(p + i);
  __asm__ volatile("" ::"r"(sum));
}

}  // namespace

void read_memory(IsaLevel level, const uint8_t* data, size_t bytes) {
  if (level >= IsaLevel::kAvx512) return read_512(data, bytes);
  if (level >= IsaLevel::kAvx2) return read_256(data, bytes);
  read_64(data, bytes);
}

double run_dots(IsaLevel level, DotType type, int64_t loops) {
  const double lanes = level >= IsaLevel::kAvx512 ? 16 : level >= IsaLevel::kAvx2 ? 8 : 1, n = double(loops);
  if (type == DotType::kBf16 && level == IsaLevel::kAvx512Bf16) {
    FT_RUN("vdpbf16ps", "zmm");
    return n * kDots * lanes * 4;
  }
  if (type == DotType::kInt8) {
    switch (level) {
      case IsaLevel::kAvx512Bf16:
      case IsaLevel::kAvx512Vnni: FT_RUN("vpdpbusd", "zmm"); return n * kDots * lanes * 8;
      case IsaLevel::kAvx2Vnni: FT_RUN("%{vex%} vpdpbusd", "ymm"); return n * kDots * lanes * 8;
      case IsaLevel::kAvx512: FT_TRIPLE("zmm"); return n * kTriples * lanes * 8;
      case IsaLevel::kAvx2: FT_TRIPLE("ymm"); return n * kTriples * lanes * 8;
      default: return 0;
    }
  }
  if (level >= IsaLevel::kAvx512) {
    FT_RUN("vfmadd231ps", "zmm");
  } else if (level >= IsaLevel::kAvx2) {
    FT_RUN("vfmadd231ps", "ymm");
  } else {
    return 0;
  }
  return n * kDots * lanes * 2;
}

}  // namespace freetoken::bench
