#include "cuda/runtime/step_block.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/memory.h"

namespace freetoken::cuda {

Status StepBlock::init(size_t bytes) {
  for (int i = 0; i < kRing; i++) {
    FT_ASSIGN_OR_RETURN(pinned_[i], PinnedBuffer::allocate("a step's data", bytes));
    FT_ASSIGN_OR_RETURN(copied_[i], Event::create());
  }
  return {};
}

Status StepBlock::begin() {
  current_ = (current_ + 1) % kRing;
  used_ = 0;
  error_ = {};
  return copied_[current_].synchronize();
}

uint8_t* StepBlock::put_bytes(size_t bytes, size_t* offset) {
  *offset = used_;
  PinnedBuffer& pinned = pinned_[current_];
  const size_t end = used_ + align_up(bytes, kAlignment);
  if (end > pinned.bytes()) {
    Result<PinnedBuffer> larger = PinnedBuffer::allocate("a step's data", std::max(end, 2 * pinned.bytes()));
    if (!larger.ok()) {
      error_ = larger.status();
      return nullptr;
    }
    std::memcpy(larger->data(), pinned.data(), used_);
    pinned = std::move(*larger);
  }
  used_ = end;
  return pinned.data() + *offset;
}

Status StepBlock::copy(MemoryAccount& account, cudaStream_t stream, bool* moved) {
  FT_RETURN_IF_ERROR(error_);
  const PinnedBuffer& pinned = pinned_[current_];
  if (device_.bytes() < used_) {
    *moved = true;
    FT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream), "a step's data");
    FT_ASSIGN_OR_RETURN(device_, DeviceBuffer::allocate(account, "a step's data", pinned.bytes()));
  }
  if (used_ == 0) return {};
  FT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(device_.data(), pinned.data(), used_, cudaMemcpyHostToDevice, stream), "a step's data");
  return copied_[current_].record(stream);
}

size_t ResultBlock::put(size_t bytes) {
  const size_t offset = used_;
  used_ += align_up(bytes, StepBlock::kAlignment);
  return offset;
}

Status ResultBlock::reserve(MemoryAccount& account, cudaStream_t stream, int ring, bool* moved) {
  const size_t size = std::max<size_t>(align_up(used_, 4096), 16384);
  if (device_.bytes() < used_ || device_.bytes() == 0) {
    *moved = true;
    FT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream), "a step's results");
    FT_ASSIGN_OR_RETURN(device_, DeviceBuffer::allocate(account, "a step's results", size));
  }
  if (pinned_[ring].bytes() < used_) {
    FT_ASSIGN_OR_RETURN(pinned_[ring], PinnedBuffer::allocate("a step's results", size));
  }
  return {};
}

Status ResultBlock::copy(cudaStream_t stream, int ring) {
  if (used_ == 0) return {};
  return cuda_status(cudaMemcpyAsync(pinned_[ring].data(), device_.data(), used_, cudaMemcpyDeviceToHost, stream),
                     "a step's results");
}

}  // namespace freetoken::cuda
