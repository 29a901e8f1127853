// What nvcc brings along in device code: built-in variables, barriers, atomics and intrinsics. cuda/kernels/device.h
// includes it; nothing else needs to.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "emulator/block.h"
#include "emulator/launch.h"
#include "emulator/warp_functions.h"

#define threadIdx (::freetoken::emu::current_thread->index)
#define blockIdx (::freetoken::emu::current_block->index)
#define blockDim (::freetoken::emu::current_block->size)
#define gridDim (::freetoken::emu::current_block->grid)
constexpr int warpSize = 32;

inline void __syncthreads() { ::freetoken::emu::barrier(); }
inline int __syncthreads_count(int predicate) { return ::freetoken::emu::barrier_count(predicate != 0); }
inline int __syncthreads_or(int predicate) { return ::freetoken::emu::barrier_count(predicate != 0) != 0; }
inline int __syncthreads_and(int predicate) { return ::freetoken::emu::barrier_count(predicate == 0) == 0; }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

using std::max;
using std::min;
using std::isfinite;
using std::isinf;
using std::isnan;
inline float __uint_as_float(unsigned u) { return std::bit_cast<float>(u); }
inline unsigned __float_as_uint(float f) { return std::bit_cast<unsigned>(f); }
inline float __int_as_float(int i) { return std::bit_cast<float>(i); }
inline int __float_as_int(float f) { return std::bit_cast<int>(f); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline int __float2int_rn(float x) { return int(nearbyintf(x)); }
inline unsigned __float2uint_rn(float x) { return unsigned(nearbyintf(x)); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(unsigned(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
  return unsigned(((uint64_t(hi) << 32 | lo) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
  return unsigned((uint64_t(hi) << 32 | lo) >> (shift & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = uint64_t(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; i++) {
    const unsigned pick = selector >> (4 * i), byte = unsigned(bytes >> (8 * (pick & 7))) & 255;
    result |= (pick & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
  }
  return result;
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; i++) c += int(int8_t(a >> (8 * i))) * int(int8_t(b >> (8 * i)));
  return c;
}

// Relaxed, as CUDA's are. The emulator runs blocks on several host threads: they are real atomics.
namespace freetoken::emu {
template <class T, class Next>
T atomic_update(T* p, Next next) {
  FT_EMU_NOTE(p, sizeof(T), kAtomic);
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(p, &old, next(old), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
inline float atomic_add_float(float* p, float v) {
  return std::bit_cast<float>(atomic_update(reinterpret_cast<uint32_t*>(p), [v](uint32_t old) {
    return std::bit_cast<uint32_t>(std::bit_cast<float>(old) + v);
  }));
}
}  // namespace freetoken::emu

template <class T>
T atomicAdd(T* p, std::type_identity_t<T> v) {
  if constexpr (std::is_same_v<T, float>) return ::freetoken::emu::atomic_add_float(p, v);
  else return ::freetoken::emu::atomic_update(p, [v](T old) { return T(old + v); });
}
template <class T>
T atomicSub(T* p, std::type_identity_t<T> v) { return ::freetoken::emu::atomic_update(p, [v](T old) { return T(old - v); }); }
template <class T>
T atomicMin(T* p, std::type_identity_t<T> v) { return ::freetoken::emu::atomic_update(p, [v](T old) { return v < old ? v : old; }); }
template <class T>
T atomicMax(T* p, std::type_identity_t<T> v) { return ::freetoken::emu::atomic_update(p, [v](T old) { return old < v ? v : old; }); }
template <class T>
T atomicOr(T* p, std::type_identity_t<T> v) { return ::freetoken::emu::atomic_update(p, [v](T old) { return T(old | v); }); }
template <class T>
T atomicAnd(T* p, std::type_identity_t<T> v) { return ::freetoken::emu::atomic_update(p, [v](T old) { return T(old & v); }); }
template <class T>
T atomicExch(T* p, std::type_identity_t<T> v) { return ::freetoken::emu::atomic_update(p, [v](T) { return v; }); }
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> v) {
  return ::freetoken::emu::atomic_update(p, [=](T old) { return old == expected ? v : old; });
}
