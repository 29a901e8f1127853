#include "cuda/ops/expert_tables.h"

#include <string>

#include "cuda/runtime/cuda_status.h"

namespace freetoken::cuda {

Result<const uint64_t*> ExpertTables::resident(const ExpertSet& set, std::span<const uint64_t> addresses) {
  if (int(addresses.size()) != set.experts)
    return Internal("layer " + std::to_string(set.layer) + " has " + std::to_string(set.experts) + " experts, but " +
                    std::to_string(addresses.size()) + " addresses");
  DeviceBuffer& table = tables_[{set.resolver, set.layer}];
  if (table.bytes() == 0) {
    FT_ASSIGN_OR_RETURN(table, DeviceBuffer::allocate(account_, "a table of experts", addresses.size_bytes()));
    FT_ASSIGN_OR_RETURN(const uint8_t* staged, uploads_.stage(addresses.data(), addresses.size_bytes()));
    FT_CUDA_RETURN_IF_ERROR(
        cudaMemcpyAsync(table.data(), staged, addresses.size_bytes(), cudaMemcpyHostToDevice, stream_), "a table of experts");
  }
  return static_cast<const uint64_t*>(table.as<uint64_t>());
}

}  // namespace freetoken::cuda
