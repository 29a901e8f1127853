// UploadRing: small data from the host to the device between steps, without waiting for the device.
//
// One ring of pinned memory with a twin in device memory. A place is used again only after everything that read it is done.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cuda/runtime/event.h"
#include "cuda/runtime/memory.h"

namespace freetoken::cuda {

class UploadRing {
 public:
  UploadRing(MemoryAccount& account, cudaStream_t stream) : account_(account), stream_(stream) {}

  // A copy of the bytes in pinned memory, for asynchronous copies that are enqueued before the next call.
  Result<const uint8_t*> stage(const void* data, size_t bytes);
  // A copy of the bytes in device memory, for work that is enqueued before the next call. 256-byte aligned.
  Result<const uint8_t*> upload(const void* data, size_t bytes);

 private:
  static constexpr size_t kLeastBytes = size_t(1) << 20, kAlignment = 256;
  // Room for the bytes; `offset` in both rings.
  Status take(size_t bytes, size_t* offset);

  MemoryAccount& account_;
  cudaStream_t stream_;
  PinnedBuffer pinned_;
  DeviceBuffer device_;
  size_t next_ = 0;
};

}  // namespace freetoken::cuda
