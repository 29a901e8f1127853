#include "cuda/kernels/attention.h"
#include "cuda/kernels/device.h"

namespace freetoken::cuda {
namespace {

constexpr int kThreads = 256;

// A thread moves the same 16 bytes of every page, so the order of the list is its program order.
__global__ void __launch_bounds__(kThreads) copy_pages(uint8_t* pool, int64_t page_bytes, const int32_t* from_to, int count) {
  const int64_t at = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * 16;
  if (at >= page_bytes) return;
  for (int i = 0; i < count; i++)
    store16(pool + from_to[2 * i + 1] * page_bytes + at, load16(pool + from_to[2 * i] * page_bytes + at));
}

}  // namespace

cudaError_t launch_copy_pages(uint8_t* pool, int64_t page_bytes, const int32_t* from_to, int count, cudaStream_t stream) {
  if (page_bytes % 16 != 0) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  const int64_t blocks = (page_bytes / 16 + kThreads - 1) / kThreads;
  FT_LAUNCH((copy_pages), dim3(unsigned(blocks)), dim3(kThreads), 0, stream, pool, page_bytes, from_to, count);
  return cudaGetLastError();
}

}  // namespace freetoken::cuda
