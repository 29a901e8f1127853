#include "cuda/runtime/memory.h"

#include "core/memory.h"
#include "cuda/runtime/cuda_status.h"

namespace freetoken::cuda {
namespace {

constexpr size_t kPinnedAlignment = 4096;  // cudaHostAlloc promises less

std::string mib(int64_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

}  // namespace

Result<DeviceBuffer> DeviceBuffer::allocate(MemoryAccount& account, const std::string& what, size_t bytes) {
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  const std::string wanted = what + " needs " + mib(int64_t(bytes)) + " of GPU memory";
  if (bytes >= size_t(1) << 62) return ResourceExhausted(wanted + ", more than any GPU has");
  if (account.limit_bytes_ > 0 && int64_t(bytes) > account.limit_bytes_ - account.used_bytes_)
    return ResourceExhausted(wanted + ", but of the limit of " + mib(account.limit_bytes_) + " already " +
                             mib(account.used_bytes_) + " are taken; raise the limit or make the model, the KV cache or the " +
                             "number of expert slots smaller");
  const cudaError_t error = cudaMalloc(reinterpret_cast<void**>(&buffer.data_), bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // this one is told of here and must not come up again
    size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return ResourceExhausted(wanted + ", but only " + mib(int64_t(free_bytes)) + " of its " + mib(int64_t(total_bytes)) +
                             " are free (" + mib(account.used_bytes_) + " are ours); make the model, the KV cache or the " +
                             "number of expert slots smaller");
  }
  FT_CUDA_RETURN_IF_ERROR(error, "cudaMalloc of " + mib(int64_t(bytes)) + " for " + what);
  buffer.account_ = &account;
  buffer.bytes_ = bytes;
  account.used_bytes_ += int64_t(bytes);
  return buffer;
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this == &other) return *this;
  free();
  account_ = std::exchange(other.account_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void DeviceBuffer::free() {
  if (!data_) return;
  cudaFree(data_);  // an error here is one of earlier work, which wait() tells of
  account_->used_bytes_ -= int64_t(bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

Result<PinnedBuffer> PinnedBuffer::allocate(const std::string& what, size_t bytes) {
  PinnedBuffer buffer;
  if (bytes == 0) return buffer;
  const cudaError_t error =
      cudaHostAlloc(&buffer.allocation_, bytes + kPinnedAlignment, cudaHostAllocPortable | cudaHostAllocMapped);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return ResourceExhausted(what + " needs " + mib(int64_t(bytes)) + " of pinned host memory, which the system did not give: " +
                             cudaGetErrorString(error));
  }
  buffer.data_ = reinterpret_cast<uint8_t*>(align_up(reinterpret_cast<size_t>(buffer.allocation_), kPinnedAlignment));
  buffer.bytes_ = bytes;
  return buffer;
}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  if (this == &other) return *this;
  free();
  data_ = std::exchange(other.data_, nullptr);
  allocation_ = std::exchange(other.allocation_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void PinnedBuffer::free() {
  if (allocation_) cudaFreeHost(allocation_);
  allocation_ = nullptr;
}

}  // namespace freetoken::cuda
