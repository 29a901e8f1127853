// SamplerSlots: what the device keeps of the sampled sequences.
#pragma once
#include <span>
#include <vector>

#include "cuda/kernels/sample.h"
#include "cuda/runtime/upload_ring.h"
#include "ops/sampling.h"

namespace freetoken::cuda {

class SamplerSlots {
 public:
  SamplerSlots(MemoryAccount& account, cudaStream_t stream, UploadRing& uploads)
      : account_(account), stream_(stream), uploads_(uploads) {}

  Status reserve(int slots, int vocab);
  Status open(int slot, const SamplerInit& init);
  Status advance(int slot, std::span<const int32_t> tokens);

  int size() const { return int(opened_.size()); }
  bool opened(int slot) const { return opened_[size_t(slot)].open; }
  const SamplerSlot* device() const { return slots_.as<SamplerSlot>(); }

 private:
  struct Opened {
    bool open = false;
    DeviceBuffer ids;      // end tokens, then biased ids, then biases
    DeviceBuffer history;  // [vocab], from the first request with penalties on
  };

  MemoryAccount& account_;
  cudaStream_t stream_;
  UploadRing& uploads_;
  int vocab_ = 0;
  DeviceBuffer slots_;
  std::vector<Opened> opened_;
};

}  // namespace freetoken::cuda
