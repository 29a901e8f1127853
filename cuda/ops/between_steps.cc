// KV pages and sampler slots, between steps: enqueued at once.
#include <utility>

#include "cuda/ops/cuda_ops.h"
#include "cuda/runtime/cuda_status.h"

namespace freetoken::cuda {
namespace {

Status no_page(const char* call, int group, int32_t page) {
  return InvalidArgument(std::string(call) + ": page " + std::to_string(page) + " of KV group " + std::to_string(group) +
                         " does not exist");
}

}  // namespace

void CudaOps::copy_pages(Queue&, std::span<const PageCopy> copies) {
  use_device();
  std::vector<std::vector<int32_t>> lists(size_t(kv_.size()));  // groups share no page
  for (const PageCopy& c : copies) {
    for (const int32_t page : {c.from, c.to})
      if (!kv_.has(c.group, page)) return fail_between(no_page("copy_pages", c.group, page));
    lists[size_t(c.group)].insert(lists[size_t(c.group)].end(), {c.from, c.to});
  }
  for (int g = 0; g < kv_.size(); g++) {
    const std::vector<int32_t>& list = lists[size_t(g)];
    if (list.empty()) continue;
    const Result<const uint8_t*> pairs = uploads_.upload(list.data(), list.size() * sizeof(int32_t));
    if (!pairs.ok()) return fail_between(pairs.status());
    fail_between(cuda_status(launch_copy_pages(kv_[g].memory.data(), kv_[g].page_bytes, reinterpret_cast<const int32_t*>(*pairs),
                                               int(list.size() / 2), stream_.get()), "copy_pages"));
  }
}

Ticket CudaOps::read_page(Queue&, int group, int32_t page, std::span<uint8_t> out) {
  use_device();
  Pending pending;
  if (!kv_.has(group, page) || int64_t(out.size()) != kv_[group].page_bytes) {
    pending.error = no_page("read_page", group, page);
    return submit(std::move(pending));
  }
  Result<PinnedBuffer> pinned = spare_pinned(out.size());
  if (!pinned.ok()) {
    pending.error = pinned.status();
    return submit(std::move(pending));
  }
  pending.error = cuda_status(cudaMemcpyAsync(pinned->data(), kv_[group].page(page), out.size(), cudaMemcpyDeviceToHost,
                                              stream_.get()), "read_page");
  pending.bytes.push_back({out, std::move(*pinned)});
  return submit(std::move(pending));
}

void CudaOps::write_page(Queue&, int group, int32_t page, std::span<const uint8_t> bytes) {
  use_device();
  if (!kv_.has(group, page) || int64_t(bytes.size()) != kv_[group].page_bytes)
    return fail_between(no_page("write_page", group, page));
  const Result<const uint8_t*> staged = uploads_.stage(bytes.data(), bytes.size());
  if (!staged.ok()) return fail_between(staged.status());
  fail_between(cuda_status(cudaMemcpyAsync(kv_[group].page(page), *staged, bytes.size(), cudaMemcpyHostToDevice, stream_.get()),
                           "write_page"));
}

void CudaOps::open_sampler(Queue&, int slot, const SamplerInit& init) {
  use_device();
  if (slot < 0 || slot >= samplers_.size() || !init.params)
    return fail_between(InvalidArgument("open_sampler: slot " + std::to_string(slot) + ", but reserve() said " +
                                        std::to_string(samplers_.size())));
  fail_between(samplers_.open(slot, init));
}

void CudaOps::advance_sampler(Queue&, int slot, std::span<const int32_t> tokens) {
  use_device();
  if (slot < 0 || slot >= samplers_.size() || !samplers_.opened(slot))
    return fail_between(InvalidArgument("advance_sampler: slot " + std::to_string(slot) + " was never opened"));
  fail_between(samplers_.advance(slot, tokens));
}

}  // namespace freetoken::cuda
