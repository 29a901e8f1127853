// Kernels with one bug each: every one must be caught, by the build that is made for it.
#include <cmath>

#include "cuda/emulator_test/support.h"
#include "cuda/kernels/device.h"

namespace freetoken::cuda {
namespace {

#define FT_RUN(kernel, threads, ...)                                      \
  do {                                                                    \
    FT_LAUNCH((kernel), dim3(1), dim3(threads), 0, nullptr, __VA_ARGS__); \
    cudaDeviceSynchronize();                                              \
  } while (0)

// Runs warps one after another; bug: no __syncthreads.
__global__ void no_barrier(float* p) {
  FT_SHARED(float, s, [64]);
  s[threadIdx.x] = 1.0f;
  p[threadIdx.x] = s[63 - threadIdx.x];
}
__global__ void no_cp_async_wait(const float* from, float* p) {
  FT_SHARED(float, s, [32][4]);
  cp_async16(s[threadIdx.x], from + 4 * threadIdx.x);
  cp_async_commit();
  p[threadIdx.x] = s[threadIdx.x][0];
}
__global__ void past_global(float* p) { p[threadIdx.x + 1] = 1.0f; }
[[maybe_unused]] __global__ void past_shared(float* p) {
  FT_SHARED(float, first, [32]);
  FT_SHARED(float, second, [4]);
  second[0] = 0.0f;
  first[threadIdx.x + 1] = 1.0f;
  p[threadIdx.x] = second[0];
}
__global__ void divergent_barrier(float* p) {
  if (threadIdx.x < 16)
    __syncthreads();
  else
    p[threadIdx.x] = __shfl_xor_sync(~0u, 1.0f, 1);
}
__global__ void divergent_shuffle(float* p) {
  if (threadIdx.x < 16) p[threadIdx.x] = __shfl_xor_sync(~0u, 1.0f, 1);
}
__global__ void shuffle_outside_mask(float* p) {
  if (threadIdx.x < 16) p[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 20);
}
__global__ void misaligned(const float* a, float* p) { p[threadIdx.x] = load16_float(a + 1 + threadIdx.x).x; }
__global__ void matrix_not_shared(float* p) {
  uint32_t r[4];
  ldmatrix_x4(r, p + threadIdx.x * 4);
}
__global__ void big_static(float* p) {
  FT_SHARED(float, s, [13 * 1024]);
  s[threadIdx.x] = 0.0f;
  p[threadIdx.x] = s[0];
}
[[maybe_unused]] __global__ void blocks_collide(float* p) { p[0] = float(blockIdx.x); }
[[maybe_unused]] __global__ void lanes_collide(float* p) {
  FT_SHARED(float, s, [32]);
  s[threadIdx.x] = 1.0f;
  p[threadIdx.x] = s[31 - threadIdx.x];
}
__global__ void lanes_in_step(float* p) {
  FT_SHARED(float, s, [32]);
  s[threadIdx.x] = 1.0f;
  __syncwarp();
  p[threadIdx.x] = s[31 - threadIdx.x];
}

TEST(SeededBugs, DivergentBarrier) {
  FT_EXPECT_DEATH(
      {
        Device<float> p(32);
        FT_RUN(divergent_barrier, 32, p.p);
      },
      "deadlock|divergent");
}
TEST(SeededBugs, DivergentShuffle) {
  FT_EXPECT_DEATH(
      {
        Device<float> p(32);
        FT_RUN(divergent_shuffle, 32, p.p);
      },
      "exits while lanes|have exited");
}
TEST(SeededBugs, ShuffleFromOutsideTheMask) {
  FT_EXPECT_DEATH(
      {
        Device<float> p(32);
        FT_RUN(shuffle_outside_mask, 32, p.p);
      },
      "not in mask 0000ffff");
}
TEST(SeededBugs, MisalignedWideLoad) {
  FT_EXPECT_DEATH(
      {
        Device<float> p(64);
        FT_RUN(misaligned, 32, p.p, p.p);
      },
      "is not aligned");
}
TEST(SeededBugs, LdmatrixFromGlobalMemory) {
  FT_EXPECT_DEATH(
      {
        Device<float> p(128);
        FT_RUN(matrix_not_shared, 32, p.p);
      },
      "not in shared memory");
}
TEST(SeededBugs, StaticSharedMemoryAboveTheLimit) {
  FT_EXPECT_DEATH(
      {
        Device<float> p(32);
        FT_RUN(big_static, 32, p.p);
      },
      "53248 bytes of static shared memory");
}
TEST(SeededBugs, FreedMemoryAsAnArgument) {
  FT_EXPECT_DEATH(
      {
        float* stale;
        {
          Device<float> p(32);
          stale = p.p;
        }
        FT_RUN(past_global, 16, stale);
      },
      "device memory that was freed");
}
TEST(SeededBugs, HostMemoryAsAnArgument) {
  FT_EXPECT_DEATH(
      {
        std::vector<float> host(32);
        FT_RUN(past_global, 16, host.data());
      },
      "host memory that is not pinned");
}
TEST(SeededBugs, WriteFarPastAnAllocation) {
  FT_EXPECT_DEATH(
      {
        Device<float> p(1024);
        FT_RUN(past_global, 1024, p.p);
      },
      "");
}

#if defined(__SANITIZE_ADDRESS__)
TEST(SeededBugs, WritePastGlobalMemory) {
  FT_EXPECT_DEATH(
      {
        Device<float> p(32);
        FT_RUN(past_global, 32, p.p);
      },
      "AddressSanitizer");
}
TEST(SeededBugs, WritePastSharedMemory) {
  FT_EXPECT_DEATH(
      {
        Device<float> p(32);
        FT_RUN(past_shared, 32, p.p);
      },
      "AddressSanitizer|index 32 out of bounds");  // UBSan knows the array's size
}
#endif

#ifdef FT_EMU_RACE
TEST(SeededBugs, MissingBarrierIsARace) {
  FT_EXPECT_DEATH(
      {
        Device<float> p(64);
        FT_RUN(no_barrier, 64, p.p);
      },
      "RACE: .* shared memory");
}
TEST(SeededBugs, BlocksWriteOneAddress) {
  FT_EXPECT_DEATH(
      {
        Device<float> p(1);
        FT_LAUNCH((blocks_collide), dim3(4), dim3(1), 0, nullptr, p.p);
        cudaDeviceSynchronize();
      },
      "RACE: write after write at global memory");
}
TEST(SeededBugs, LanesWithoutSyncwarp) {
  FT_EXPECT_DEATH(
      {
        Device<float> p(32);
        FT_RUN(lanes_collide, 32, p.p);
      },
      "RACE: .* shared memory");
}
TEST(SeededBugs, PastGlobalMemoryInTheRaceBuild) {
  FT_EXPECT_DEATH(
      {
        Device<float> p(32);
        FT_RUN(past_global, 32, p.p);
      },
      "beyond an allocation");
}
#else
TEST(SeededBugs, MissingBarrierReadsPoison) {
  Device<float> p(64);
  FT_RUN(no_barrier, 64, p.p);
  EXPECT_TRUE(std::isnan(p.get()[0]));
}
#endif
TEST(SeededBugs, MissingCpAsyncWaitReadsPoison) {
  Device<float> from(std::vector<float>(128, 2.0f)), p(32);
  FT_RUN(no_cp_async_wait, 32, from.p, p.p);
  for (const float v : p.get()) EXPECT_TRUE(std::isnan(v));
}
TEST(SeededBugs, SyncwarpIsNoFalseAlarm) {
  Device<float> p(32);
  FT_RUN(lanes_in_step, 32, p.p);
  EXPECT_EQ(p.get(), std::vector<float>(32, 1.0f));
}

}  // namespace
}  // namespace freetoken::cuda
