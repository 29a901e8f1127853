#include "cuda/ops/weight_store.h"

#include <algorithm>
#include <utility>

#include "core/memory.h"
#include "cuda/ops/support.h"
#include "cuda/runtime/cuda_status.h"
#include "ops/expert_extent.h"

namespace freetoken::cuda {
namespace {

constexpr size_t kTensorAlignment = 256, kExtentAlignment = 4096;

Status not_open(const std::string& name) { return Internal(name + " is committed but was not opened"); }

// A place of this many bytes in the first slab that has room, or in a new one, which holds a whole number of such places:
// experts are all alike, and slabs of a fixed size would waste up to half of themselves on them.
template <class Arena, class Allocate>
Result<uint8_t*> take(Arena& arena, size_t bytes, size_t alignment, size_t slab_bytes, Allocate&& allocate) {
  for (auto& slab : arena.slabs) {
    const size_t begin = align_up(slab.used, alignment);
    if (begin + bytes > slab.memory.bytes()) continue;
    slab.used = begin + bytes;
    return slab.memory.data() + begin;
  }
  const size_t place = align_up(std::max<size_t>(bytes, 1), alignment);
  FT_ASSIGN_OR_RETURN(auto memory, allocate(place * std::max<size_t>(1, slab_bytes / place)));
  arena.slabs.push_back({std::move(memory), bytes});
  return arena.slabs.back().memory.data();
}

}  // namespace

Status WeightStore::init() {
  FT_ASSIGN_OR_RETURN(stream_, Stream::create());
  FT_ASSIGN_OR_RETURN(joined_, Event::create());
  return {};
}

// A slab of the full size may not fit where the bytes themselves still do.
Result<uint8_t*> WeightStore::take_device(const std::string& name, size_t bytes) {
  auto allocate = [&](size_t slab) -> Result<DeviceBuffer> {
    Result<DeviceBuffer> whole = DeviceBuffer::allocate(account_, "the weights", slab);
    if (whole.ok() || slab <= bytes) return whole;
    return DeviceBuffer::allocate(account_, "weight " + name, bytes);
  };
  return take(device_, bytes, kTensorAlignment, kSlabBytes, allocate);
}

Result<uint8_t*> WeightStore::take_host(const std::string& name, size_t bytes) {
  return take(host_, bytes, kExtentAlignment, kSlabBytes,
              [&](size_t slab) { return PinnedBuffer::allocate("the experts (" + name + ")", slab); });
}

Result<WeightStore::Staging> WeightStore::stage(size_t bytes) {
  const auto fits = std::find_if(idle_.begin(), idle_.end(), [&](const Staging& s) { return s.memory.bytes() >= bytes; });
  Staging staging;
  if (fits != idle_.end()) {
    staging = std::move(*fits);
    idle_.erase(fits);
    FT_RETURN_IF_ERROR(staging.copied.synchronize());
    return staging;
  }
  if (!idle_.empty()) {  // all too small: the oldest makes room
    FT_RETURN_IF_ERROR(idle_.front().copied.synchronize());
    idle_.pop_front();
  }
  FT_ASSIGN_OR_RETURN(staging.memory, PinnedBuffer::allocate("loading weights", align_up(std::max<size_t>(bytes, 1), 4096)));
  FT_ASSIGN_OR_RETURN(staging.copied, Event::create());
  return staging;
}

Result<uint8_t*> WeightStore::place(const std::string& name, size_t bytes) {
  const auto it = staged_.find(name);
  if (it == staged_.end()) return not_open(name);
  FT_ASSIGN_OR_RETURN(uint8_t* to, take_device(name, bytes));
  Staging& staging = it->second;
  FT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(to, staging.memory.data(), bytes, cudaMemcpyHostToDevice, stream_.get()),
                          "copying weight " + name);
  FT_RETURN_IF_ERROR(staging.copied.record(stream_.get()));
  copying_ = true;
  idle_.push_back(std::move(staging));
  staged_.erase(it);
  bytes_ += int64_t(bytes);
  return to;
}

Result<uint8_t*> WeightStore::open(const PackedTensorInfo& info) {
  FT_RETURN_IF_ERROR(check_tensor(info));
  FT_ASSIGN_OR_RETURN(Staging staging, stage(info.bytes()));
  uint8_t* data = staging.memory.data();
  staged_[info.name] = std::move(staging);
  return data;
}

Status WeightStore::commit(const PackedTensorInfo& info) {
  FT_ASSIGN_OR_RETURN(uint8_t* to, place(info.name, info.bytes()));
  tensors_[info.name] = {info, reinterpret_cast<uint64_t>(to)};
  return {};
}

Result<uint8_t*> WeightStore::open_extent(const ExtentInfo& info) {
  Extent extent;
  FT_ASSIGN_OR_RETURN(extent.layout, freetoken::expert_layout(info));
  FT_RETURN_IF_ERROR(check_expert(info.name, extent.layout));
  uint8_t* data = nullptr;
  if (extents_in_host_memory_) {
    FT_ASSIGN_OR_RETURN(data, take_host(info.name, info.bytes));
    extent.address = reinterpret_cast<uint64_t>(data);
  } else {
    FT_ASSIGN_OR_RETURN(Staging staging, stage(info.bytes));
    data = staging.memory.data();
    staged_[info.name] = std::move(staging);
  }
  extents_[info.name] = extent;
  max_extent_bytes_ = std::max(max_extent_bytes_, int64_t(info.bytes));
  return data;
}

Status WeightStore::commit_extent(const ExtentInfo& info) {
  const auto it = extents_.find(info.name);
  if (it == extents_.end()) return not_open(info.name);
  if (extents_in_host_memory_) {
    bytes_ += int64_t(info.bytes);
    return {};
  }
  FT_ASSIGN_OR_RETURN(uint8_t* to, place(info.name, info.bytes));
  it->second.address = reinterpret_cast<uint64_t>(to);
  return {};
}

Status WeightStore::join(cudaStream_t stream) {
  if (!copying_) return {};
  copying_ = false;
  FT_RETURN_IF_ERROR(joined_.record(stream_.get()));
  return cuda_status(cudaStreamWaitEvent(stream, joined_.get(), 0), "cudaStreamWaitEvent");
}

Status WeightStore::trim() {
  FT_RETURN_IF_ERROR(stream_.synchronize());
  idle_.clear();
  return {};
}

Weight WeightStore::weight(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end() || it->second.first.vector) return {};
  const auto& [info, address] = it->second;
  return {address, info.format, info.n, info.k};
}

Tensor WeightStore::vector(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end() || !it->second.first.vector) return {};
  const auto& [info, address] = it->second;
  return {address, DType::kF32, 1, info.n, int64_t(info.bytes())};
}

const ExpertLayout* WeightStore::expert_layout(const std::string& extent) const {
  const auto it = extents_.find(extent);
  return it == extents_.end() ? nullptr : &it->second.layout;
}

uint64_t WeightStore::extent_address(const std::string& extent) const {
  const auto it = extents_.find(extent);
  return it == extents_.end() ? 0 : it->second.address;
}

}  // namespace freetoken::cuda
