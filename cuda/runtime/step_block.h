// StepBlock: all data of a step in one block of pinned memory, copied at once to one block of device memory.
//
// The pinned side is a ring of two, so that the host fills one while the device still reads the other; the device side is
// one, at one address: copies and what reads them are in the order of the stream. Places are given out in the order of the
// calls, so equal shapes get equal offsets.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cuda/runtime/event.h"
#include "cuda/runtime/memory.h"

namespace freetoken::cuda {

class StepBlock {
 public:
  static constexpr int kRing = 2;
  static constexpr size_t kAlignment = 64;

  Status init(size_t bytes);

  // Starts the next block. Blocks while the device may still read its pinned memory.
  Status begin();
  // Room for `count` values; *offset is theirs on the device. Host memory, valid until the next put(). Null without memory,
  // and copy() then says so.
  template <class T>
  T* put(size_t count, size_t* offset) {
    return reinterpret_cast<T*>(put_bytes(count * sizeof(T), offset));
  }
  // *moved: the device's block has another address than before.
  Status copy(MemoryAccount& account, cudaStream_t stream, bool* moved);
  uint8_t* device(size_t offset = 0) const { return device_.data() + offset; }

 private:
  uint8_t* put_bytes(size_t bytes, size_t* offset);

  PinnedBuffer pinned_[kRing];
  Event copied_[kRing];
  DeviceBuffer device_;
  int current_ = 0;
  size_t used_ = 0;
  Status error_;
};

// What a step gives back: offsets in a block of device memory, copied at once to pinned memory of the step's place in the ring.
class ResultBlock {
 public:
  void begin() { used_ = 0; }
  size_t put(size_t bytes);
  // Before the step runs. *moved as above.
  Status reserve(MemoryAccount& account, cudaStream_t stream, int ring, bool* moved);
  Status copy(cudaStream_t stream, int ring);
  uint8_t* device(size_t offset) const { return device_.data() + offset; }
  const uint8_t* host(int ring, size_t offset) const { return pinned_[ring].data() + offset; }

 private:
  DeviceBuffer device_;
  PinnedBuffer pinned_[StepBlock::kRing];
  size_t used_ = 0;
};

}  // namespace freetoken::cuda
