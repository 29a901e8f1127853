#include "cuda/runtime/upload_ring.h"

#include <algorithm>
#include <cstring>

#include "core/memory.h"

namespace freetoken::cuda {

Status UploadRing::take(size_t bytes, size_t* offset) {
  if (next_ + bytes > pinned_.bytes()) {
    // Rare: the ring holds the uploads of many steps.
    FT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream_), "an upload");
    next_ = 0;
    if (bytes > pinned_.bytes()) {
      const size_t size = std::max(kLeastBytes, 2 * align_up(bytes, kAlignment));
      pinned_ = {};
      device_ = {};
      FT_ASSIGN_OR_RETURN(device_, DeviceBuffer::allocate(account_, "the upload buffer", size));
      FT_ASSIGN_OR_RETURN(pinned_, PinnedBuffer::allocate("the upload buffer", size));
    }
  }
  *offset = next_;
  next_ += align_up(bytes, kAlignment);
  return {};
}

Result<const uint8_t*> UploadRing::stage(const void* data, size_t bytes) {
  size_t offset = 0;
  FT_RETURN_IF_ERROR(take(bytes, &offset));
  std::memcpy(pinned_.data() + offset, data, bytes);
  return static_cast<const uint8_t*>(pinned_.data() + offset);
}

Result<const uint8_t*> UploadRing::upload(const void* data, size_t bytes) {
  if (bytes == 0) return static_cast<const uint8_t*>(nullptr);
  FT_ASSIGN_OR_RETURN(const uint8_t* staged, stage(data, bytes));
  uint8_t* to = device_.data() + (staged - pinned_.data());
  FT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(to, staged, bytes, cudaMemcpyHostToDevice, stream_), "an upload");
  return static_cast<const uint8_t*>(to);
}

}  // namespace freetoken::cuda
