// The g++ side of cuda/kernels/device.h, which includes it and says what each function does.
#pragma once
#include "emulator/kernel.h"

namespace freetoken::emu {

void load_matrices(uint32_t (&r)[4], const void* row, bool transposed);
void multiply_fragments(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

inline uint16_t round_to_bf16(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;  // what cvt.rn.bf16 makes of any NaN
  return uint16_t((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
// The product is exact in a float, the sum in a double; rounding it to odd first keeps the second rounding right.
inline uint16_t fma_bf16(uint16_t a, uint16_t b, uint16_t c) {
  const auto wide = [](uint16_t v) { return double(std::bit_cast<float>(uint32_t(v) << 16)); };
  const double sum = wide(a) * wide(b) + wide(c);
  float v = float(sum);
  if (double(v) != sum && std::isfinite(v)) {
    uint32_t u = std::bit_cast<uint32_t>(v);
    if (std::fabs(double(v)) > std::fabs(sum)) u--;
    v = std::bit_cast<float>(u | 1u);
  }
  return round_to_bf16(v);
}

// A request of one width, seen as such by the checks: g++ would split it into the members of the vector.
#if defined(__SANITIZE_THREAD__)
#define FT_EMU_UNSEEN __attribute__((no_sanitize_thread, noinline))
#else
#define FT_EMU_UNSEEN inline
#endif
template <class T>
FT_EMU_UNSEEN T load(const void* p) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T)) die("a load of %zu bytes at %p is not aligned", sizeof(T), p);
  FT_EMU_NOTE(p, sizeof(T), kRead);
  return *static_cast<const T*>(p);
}
template <class T>
FT_EMU_UNSEEN void store(void* p, T v) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T)) die("a store of %zu bytes at %p is not aligned", sizeof(T), p);
  FT_EMU_NOTE(p, sizeof(T), kWrite);
  *static_cast<T*>(p) = v;
}

}  // namespace freetoken::emu

namespace freetoken::cuda {

#define FT_EMU_INLINE inline __attribute__((always_inline))
FT_EMU_INLINE uint4 load16(const void* p) { return emu::load<uint4>(p); }
FT_EMU_INLINE uint4 load16_stream(const void* p) { return emu::load<uint4>(p); }
FT_EMU_INLINE uint2 load8(const void* p) { return emu::load<uint2>(p); }
FT_EMU_INLINE uint32_t load4(const void* p) { return emu::load<uint32_t>(p); }
FT_EMU_INLINE float4 load16_float(const float* p) { return emu::load<float4>(p); }
FT_EMU_INLINE void store16(void* p, uint4 v) { emu::store(p, v); }
FT_EMU_INLINE void store16(float* p, float4 v) { emu::store(p, v); }
FT_EMU_INLINE void store8(void* p, uint2 v) { emu::store(p, v); }
FT_EMU_INLINE void store8(float* p, float2 v) { emu::store(p, v); }
#undef FT_EMU_INLINE

inline uint32_t load_acquire_system(const uint32_t* p) {
  FT_EMU_NOTE(p, 4, kAtomic);
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
inline void store_release_system(uint32_t* p, uint32_t v) {
  FT_EMU_NOTE(p, 4, kAtomic);
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

inline uint32_t pack_bf16x2(float lo, float hi) {
  return uint32_t(emu::round_to_bf16(lo)) | uint32_t(emu::round_to_bf16(hi)) << 16;
}
inline bf16 to_bf16(float v) { return bf16{emu::round_to_bf16(v)}; }
inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  const uint16_t low = emu::fma_bf16(uint16_t(a), uint16_t(b), uint16_t(c));
  return low | uint32_t(emu::fma_bf16(uint16_t(a >> 16), uint16_t(b >> 16), uint16_t(c >> 16))) << 16;
}
inline float f16_to_float(uint16_t half) { return float(std::bit_cast<_Float16>(half)); }
inline float exp2_fast(float x) { return exp2f(x); }

inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) { emu::load_matrices(r, row, false); }
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) { emu::load_matrices(r, row, true); }
inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emu::multiply_fragments(d, a, b);
}
inline void cp_async16(void* shared, const void* global, bool in_range = true) {
  emu::async_copy(shared, in_range ? global : nullptr, 16);
}
inline void cp_async_commit() { emu::async_commit(); }
template <int N>
void cp_async_wait() {
  emu::async_wait(N);
}

}  // namespace freetoken::cuda
