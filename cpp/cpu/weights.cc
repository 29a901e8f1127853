// CpuOps as a WeightSink: weights lie where they are read, so committing does nothing.
#include "cpu/cpu_ops.h"
#include "ops/expert_extent.h"

namespace freetoken {

Result<uint8_t*> CpuOps::open(const PackedTensorInfo& info) {
  FT_ASSIGN_OR_RETURN(uint8_t* data, arena_.take(info.bytes(), 64));
  tensors_[info.name] = {info, data};
  return data;
}

Result<uint8_t*> CpuOps::open_extent(const ExtentInfo& info) {
  FT_ASSIGN_OR_RETURN(const ExpertLayout layout, freetoken::expert_layout(info));
  FT_ASSIGN_OR_RETURN(uint8_t* data, arena_.take(info.bytes, 4096));
  extents_[info.name] = {layout, data};
  return data;
}

Weight CpuOps::weight(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end() || it->second.first.vector) return {};
  const auto& [info, data] = it->second;
  return {reinterpret_cast<uint64_t>(data), info.format, info.n, info.k};
}

Tensor CpuOps::vector(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end() || !it->second.first.vector) return {};
  const auto& [info, data] = it->second;
  return {reinterpret_cast<uint64_t>(data), DType::kF32, 1, info.n, int64_t(info.bytes())};
}

const ExpertLayout* CpuOps::expert_layout(const std::string& extent) const {
  const auto it = extents_.find(extent);
  return it == extents_.end() ? nullptr : &it->second.first;
}

uint64_t CpuOps::extent_address(const std::string& extent) const {
  const auto it = extents_.find(extent);
  return it == extents_.end() ? 0 : reinterpret_cast<uint64_t>(it->second.second);
}

}  // namespace freetoken
