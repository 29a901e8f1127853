// What <cuda_runtime.h> is to code built with g++ for the emulator: the types and the runtime API, executed on the CPU.
#pragma once
#ifdef __CUDACC__
#error "the emulator's include folder does not belong in an nvcc build"
#endif
#include "emulator/runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __align__(bytes) alignas(bytes)
// Four nops a warp before the kernel's entry carry the number to the launch: see simt/launch_bounds.h.
#define FT_EMU_BOUND(threads, ...) ((((threads) + 31) / 32) * 4)
#define __launch_bounds__(...) \
  __attribute__((patchable_function_entry(FT_EMU_BOUND(__VA_ARGS__, 0), FT_EMU_BOUND(__VA_ARGS__, 0))))
