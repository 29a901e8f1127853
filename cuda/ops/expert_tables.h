// ExpertTables: where the experts of each layer lie, as arrays of addresses in device memory.
#pragma once
#include <map>
#include <span>
#include <utility>

#include "cuda/runtime/memory.h"
#include "cuda/runtime/upload_ring.h"
#include "ops/experts.h"

namespace freetoken::cuda {

class ExpertTables {
 public:
  ExpertTables(MemoryAccount& account, cudaStream_t stream, UploadRing& uploads)
      : account_(account), stream_(stream), uploads_(uploads) {}

  // The addresses of a layer's experts, which stay where they are (ExpertResolver::resident). Made when first asked for.
  Result<const uint64_t*> resident(const ExpertSet& set, std::span<const uint64_t> addresses);

 private:
  MemoryAccount& account_;
  cudaStream_t stream_;
  UploadRing& uploads_;
  std::map<std::pair<const ExpertResolver*, int>, DeviceBuffer> tables_;
};

}  // namespace freetoken::cuda
