// The one layer below the kernels: types, wide loads, tensor-core and asynchronous-copy instructions, launches.
// nvcc: inline PTX. g++: the same instructions emulated, a warp at a time, by tests/cuda/emulator. Kernels include this
// header and no other of CUDA; threadIdx, __syncthreads, __shfl_*_sync, __ballot_sync, atomics and math are plain CUDA.
//
//   FT_SHARED(float, sums, [8][32]);   // an array in shared memory, 16-byte aligned
//   FT_DYNAMIC_SHARED(raw);            // char* to the dynamic part, 128-byte aligned
//   FT_LAUNCH((kernel<T, 4>), grid, block, dynamic_shared_bytes, stream, arguments...);
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#ifdef __CUDACC__
#define FT_DEV __device__ __forceinline__
#define FT_HOST_DEV __host__ __device__ __forceinline__
#define FT_SHARED(type, name, dims) __shared__ __align__(16) type name dims
#define FT_DYNAMIC_SHARED(name) extern __shared__ __align__(128) char name[]
#define FT_LAUNCH(kernel, grid, block, dynamic_shared_bytes, stream, ...) \
  (FT_UNPAREN kernel)<<<grid, block, dynamic_shared_bytes, stream>>>(__VA_ARGS__)
#else
#include "emulator/kernel.h"
#define FT_DEV inline
#define FT_HOST_DEV inline
#define FT_SHARED(type, name, dims)              \
  using name##_array = type dims;                \
  static char name##_tag;                        \
  name##_array& name = *static_cast<name##_array*>( \
      ::freetoken::emu::shared_array(&name##_tag, sizeof(name##_array), 16))
#define FT_DYNAMIC_SHARED(name) char* name = ::freetoken::emu::shared_dynamic(128)
#define FT_LAUNCH(kernel, grid, block, dynamic_shared_bytes, stream, ...)                                \
  ::freetoken::emu::launch_kernel(#kernel, FT_UNPAREN kernel, grid, block, size_t(dynamic_shared_bytes), \
                                  stream __VA_OPT__(, ) __VA_ARGS__)
#endif
#define FT_UNPAREN(...) __VA_ARGS__

namespace freetoken::cuda {

struct bf16 {
  uint16_t bits;
};

// The two halves of a packed pair; the first value of a pair is the low half.
FT_DEV float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
FT_DEV float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
FT_DEV float to_float(bf16 v) { return __uint_as_float(uint32_t(v.bits) << 16); }

}  // namespace freetoken::cuda

#ifdef __CUDACC__
#include "cuda/kernels/device_ptx-inl.h"
#else
#include "emulator/device_functions.h"
#endif

namespace freetoken::cuda {

// Defined by the header above, alike on both sides:
//   uint4 load16(const void*), uint2 load8, uint32_t load4; float4 load16_float(const float*); store16, store8.
//     One request of the warp at that width, from any memory; the address is a multiple of the width.
//   uint4 load16_stream(const void*)     as load16, for global memory that is read once: not kept in L1.
//   uint32_t pack_bf16x2(lo, hi)         two floats, rounded to nearest even. bf16 to_bf16(float).
//   uint32_t fma_bf16x2(a, b, c)         a * b + c of two pairs, rounded once.
//   float f16_to_float(uint16_t)         exact.
//   float exp2_fast(float)               ex2.approx.ftz
//   mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])   d += a b; bf16 in, fp32 sums
//     lane l, q = l / 4, t = l % 4: a[0] is row q, k 2t, 2t+1; a[1] row q + 8; a[2], a[3] the same rows, k + 8.
//     b[0] is column q, k 2t, 2t+1; b[1] k + 8. d[0], d[1] are row q, columns 2t, 2t+1; d[2], d[3] row q + 8.
//   ldmatrix_x4(uint32_t (&r)[4], const void* row)   lane l names row l % 8 (16 bytes, shared memory) of matrix l / 8;
//     r[j] of lane l is word l % 4 of row l / 4 of matrix j. ldmatrix_x4_trans: of the transposed 8x8 matrices.
//   cp_async16(void* shared, const void* global, bool in_range = true)   16 bytes, zeros where out of range
//   cp_async_commit(), cp_async_wait<N>()   until at most N groups of this thread are under way
//   uint32_t load_acquire_system(const uint32_t*), store_release_system(uint32_t*, uint32_t)   flags shared with the host

FT_DEV float warp_sum(float v) {
#pragma unroll
  for (int lanes = 16; lanes; lanes >>= 1) v += __shfl_xor_sync(~0u, v, lanes);
  return v;
}
FT_DEV float warp_max(float v) {
#pragma unroll
  for (int lanes = 16; lanes; lanes >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, lanes));
  return v;
}

}  // namespace freetoken::cuda
