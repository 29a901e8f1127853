#include "cuda/ops/kv_pools.h"

#include <string>
#include <utility>

#include "cuda/ops/support.h"
#include "cuda/runtime/cuda_status.h"

namespace freetoken::cuda {

Status KvPools::allocate(MemoryAccount& account, std::span<const KvGroup> groups, std::span<const int32_t> pages,
                         cudaStream_t stream) {
  pools_.clear();
  for (size_t g = 0; g < groups.size(); g++) {
    FT_RETURN_IF_ERROR(check_kv_group(groups[g]));
    Pool pool{.group = groups[g], .memory = {}, .pages = pages[g], .page_bytes = 0, .layer_offset = {}};
    for (const KvLayer& layer : groups[g].layers) {
      pool.layer_offset.push_back(pool.page_bytes);
      pool.page_bytes += int64_t(layer.kv_heads) * (layer.qk_dim + layer.v_dim) * groups[g].page_tokens * dtype_bytes(groups[g].dtype);
    }
    const size_t bytes = size_t(pool.page_bytes) * size_t(pages[g]);
    FT_ASSIGN_OR_RETURN(pool.memory, DeviceBuffer::allocate(account, "KV group " + std::to_string(g) + " with " +
                                                                         std::to_string(pages[g]) + " pages", bytes));
    if (bytes > 0) FT_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(pool.memory.data(), 0, bytes, stream), "clearing the KV cache");
    pools_.push_back(std::move(pool));
  }
  return {};
}

KvView KvPools::view(int group, int layer) const {
  const Pool& pool = pools_[size_t(group)];
  const KvLayer& l = pool.group.layers[size_t(layer)];
  return {.pool = pool.memory.data(),
          .page_bytes = pool.page_bytes,
          .layer_offset = pool.layer_offset[size_t(layer)],
          .page_tokens = pool.group.page_tokens,
          .kv_heads = l.kv_heads,
          .qk_dim = l.qk_dim,
          .v_dim = l.v_dim,
          .group = group,
          .f32 = pool.group.dtype == DType::kF32};
}

}  // namespace freetoken::cuda
