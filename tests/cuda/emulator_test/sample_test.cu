// The smallest complete example: a kernel, its launch, its result.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "cuda/kernels/device.h"

namespace freetoken::cuda {
namespace {

__global__ void __launch_bounds__(128) block_sums(const float* x, float* sum, int n) {
  FT_SHARED(float, sums, [4]);
  const int i = int(blockIdx.x) * 128 + int(threadIdx.x);
  const float warp = warp_sum(i < n ? x[i] : 0.0f);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = warp;
  __syncthreads();
  if (threadIdx.x == 0) sum[blockIdx.x] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

TEST(Sample, BlockSums) {
  const int n = 300;
  std::vector<float> x(n);
  std::iota(x.begin(), x.end(), 1.0f);
  float *dx, *dsum;
  ASSERT_EQ(cudaMalloc(&dx, n * sizeof(float)), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&dsum, 3 * sizeof(float)), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(dx, x.data(), n * sizeof(float), cudaMemcpyHostToDevice), cudaSuccess);
  FT_LAUNCH((block_sums), dim3(3), dim3(128), 0, nullptr, dx, dsum, n);
  ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  float sum[3];
  ASSERT_EQ(cudaMemcpy(sum, dsum, sizeof sum, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(sum[0], 128 * 129 / 2);
  EXPECT_EQ(sum[1], 256 * 257 / 2 - 128 * 129 / 2);
  EXPECT_EQ(sum[2], 300 * 301 / 2 - 256 * 257 / 2);
  EXPECT_EQ(cudaFree(dx), cudaSuccess);
  EXPECT_EQ(cudaFree(dsum), cudaSuccess);
}

}  // namespace
}  // namespace freetoken::cuda
