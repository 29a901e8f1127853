// Two devices, each with its own memory.
#include "cuda/emulator_test/support.h"
#include "cuda/kernels/device.h"

namespace freetoken::cuda {
namespace {

__global__ void twice(const int* x, int* y) { *y = 2 * *x; }

class Devices : public ::testing::Test {
 protected:
  void SetUp() override { emu::options().devices = 2; }
  void TearDown() override {
    cudaSetDevice(0);
    emu::options().devices = 1;
    cudaGetLastError();
  }
};

TEST_F(Devices, WorkMovesByPeerCopies) {
  int count = 0;
  FT_OK(cudaGetDeviceCount(&count));
  ASSERT_EQ(count, 2);
  Device<int> x(std::vector<int>{21}), y(1);
  cudaStream_t first, second;
  cudaEvent_t computed;
  FT_OK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  FT_OK(cudaEventCreateWithFlags(&computed, cudaEventDisableTiming));
  FT_OK(cudaSetDevice(1));
  FT_OK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  Device<int> there(1), result(1);
  FT_OK(cudaSetDevice(0));
  FT_LAUNCH((twice), dim3(1), dim3(1), 0, first, x.p, y.p);
  FT_OK(cudaMemcpyPeerAsync(there.p, 1, y.p, 0, 4, first));
  FT_OK(cudaEventRecord(computed, first));
  FT_OK(cudaSetDevice(1));
  FT_OK(cudaStreamWaitEvent(second, computed));
  FT_LAUNCH((twice), dim3(1), dim3(1), 0, second, there.p, result.p);
  EXPECT_EQ(result.get()[0], 84);
  EXPECT_EQ(cudaMemcpyPeerAsync(there.p, 0, y.p, 0, 4, second), cudaErrorInvalidValue);
  FT_LAUNCH((twice), dim3(1), dim3(1), 0, first, there.p, result.p);  // a stream of the other device
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  FT_OK(cudaStreamDestroy(second));
  FT_OK(cudaSetDevice(0));
  FT_OK(cudaStreamDestroy(first));
  FT_OK(cudaEventDestroy(computed));
  FT_OK(cudaSetDevice(1));
}

TEST_F(Devices, PointerOfTheOtherDeviceIsAnError) {
  FT_EXPECT_DEATH(
      {
        emu::options().devices = 2;
        Device<int> x(std::vector<int>{21});
        cudaSetDevice(1);
        Device<int> y(1);
        FT_LAUNCH((twice), dim3(1), dim3(1), 0, nullptr, x.p, y.p);
        cudaDeviceSynchronize();
      },
      "the memory of another device");
}

}  // namespace
}  // namespace freetoken::cuda
