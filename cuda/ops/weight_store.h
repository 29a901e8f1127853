// WeightStore: the weights of a device. Tensors go to device memory through pinned staging; experts' extents too, or, with
// expert slots, to pinned host memory, where the device reads them.
#pragma once
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "cuda/runtime/event.h"
#include "cuda/runtime/memory.h"
#include "ops/ops.h"

namespace freetoken::cuda {

class WeightStore {
 public:
  static constexpr size_t kSlabBytes = size_t(64) << 20;

  WeightStore(MemoryAccount& account, bool extents_in_host_memory)
      : account_(account), extents_in_host_memory_(extents_in_host_memory) {}
  Status init();

  Result<uint8_t*> open(const PackedTensorInfo& info);
  Status commit(const PackedTensorInfo& info);
  Result<uint8_t*> open_extent(const ExtentInfo& info);
  Status commit_extent(const ExtentInfo& info);
  // Work on `stream` from here on finds everything that was committed.
  Status join(cudaStream_t stream);
  // Waits for the copies and gives the staging memory back.
  Status trim();

  Weight weight(const std::string& name) const;
  Tensor vector(const std::string& name) const;
  const ExpertLayout* expert_layout(const std::string& extent) const;
  uint64_t extent_address(const std::string& extent) const;
  int64_t bytes() const { return bytes_; }
  int64_t max_extent_bytes() const { return max_extent_bytes_; }

 private:
  struct Staging {
    PinnedBuffer memory;
    Event copied;
  };
  struct Extent {
    ExpertLayout layout;
    uint64_t address = 0;
  };
  // Slabs of one kind of memory that places are cut from.
  template <class Buffer>
  struct Arena {
    struct Slab {
      Buffer memory;
      size_t used = 0;
    };
    std::vector<Slab> slabs;
  };

  // Staging memory of at least so many bytes whose last copy is done.
  Result<Staging> stage(size_t bytes);
  Result<uint8_t*> take_device(const std::string& name, size_t bytes);
  Result<uint8_t*> take_host(const std::string& name, size_t bytes);
  // Copies what was staged under this name to its place in device memory.
  Result<uint8_t*> place(const std::string& name, size_t bytes);

  MemoryAccount& account_;
  bool extents_in_host_memory_;
  Arena<DeviceBuffer> device_;
  Arena<PinnedBuffer> host_;
  Stream stream_;
  Event joined_;
  bool copying_ = false;                    // since the last join()
  std::deque<Staging> idle_;                // the one that was used last at the end
  std::map<std::string, Staging> staged_;   // opened and not yet committed
  std::map<std::string, std::pair<PackedTensorInfo, uint64_t>> tensors_;
  std::map<std::string, Extent> extents_;   // address 0: not yet committed
  int64_t bytes_ = 0, max_extent_bytes_ = 0;
};

}  // namespace freetoken::cuda
