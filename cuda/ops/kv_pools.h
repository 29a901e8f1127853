// KvPools: the pages of all KV groups in device memory.
#pragma once
#include <span>
#include <vector>

#include "cuda/kernels/attention.h"
#include "cuda/runtime/memory.h"
#include "ops/kv_group.h"

namespace freetoken::cuda {

class KvPools {
 public:
  struct Pool {
    KvGroup group;
    DeviceBuffer memory;
    int32_t pages = 0;
    int64_t page_bytes = 0;
    std::vector<int64_t> layer_offset;
    uint8_t* page(int32_t p) const { return memory.data() + page_bytes * p; }
  };

  // Replaces all pools; nothing of the old ones is in flight. Zeroed on `stream`.
  Status allocate(MemoryAccount& account, std::span<const KvGroup> groups, std::span<const int32_t> pages, cudaStream_t stream);

  int size() const { return int(pools_.size()); }
  const Pool& operator[](int group) const { return pools_[size_t(group)]; }
  bool has(int group, int32_t page) const {
    return group >= 0 && group < size() && page >= 0 && page < pools_[size_t(group)].pages;
  }
  bool has_layer(int group, int layer) const {
    return group >= 0 && group < size() && layer >= 0 && layer < int(pools_[size_t(group)].group.layers.size());
  }
  KvView view(int group, int layer) const;

 private:
  std::vector<Pool> pools_;
};

}  // namespace freetoken::cuda
