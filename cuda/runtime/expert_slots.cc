#include "cuda/runtime/expert_slots.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "core/memory.h"
#include "cuda/kernels/expert_gather.h"
#include "cuda/runtime/cuda_status.h"

namespace freetoken::cuda {

ExpertSlots::~ExpertSlots() {
  if (server_) server_->shut_down();
  cudaStreamSynchronize(stream_);
}

Status ExpertSlots::resize(int slots, int64_t slot_bytes, int layers, int experts) {
  if (slots <= 0 || slot_bytes <= 0 || layers <= 0 || experts <= 0)
    return InvalidArgument("expert slots: " + std::to_string(slots) + " slots of " + std::to_string(slot_bytes) +
                           " bytes for " + std::to_string(layers) + " layers of " + std::to_string(experts) +
                           " experts");
  if (experts > kMaxAdmittedExperts)
    return Unsupported(std::to_string(experts) + " experts in a layer, but expert slots take at most " +
                       std::to_string(kMaxAdmittedExperts));
  FT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream_), "waiting for the GPU");
  view_ = {};
  memory_ = {};  // first: the old and the new ones need not fit together
  tables_ = {};
  const size_t slot_count = size_t(slots), keys = size_t(layers) * size_t(experts), of_layer = size_t(experts);
  const int64_t stride = int64_t(align_up(size_t(slot_bytes), 256));
  const std::string what = "the tables of expert slots";
  FT_ASSIGN_OR_RETURN(memory_, DeviceBuffer::allocate(account_, std::to_string(slots) + " expert slots",
                                                      slot_count * size_t(stride)));
  // clock, owner, needed_by, slot_of
  const size_t table_bytes = slot_count * (sizeof(uint64_t) + 2 * sizeof(int32_t)) + keys * sizeof(int32_t);
  const size_t miss_bytes = of_layer * sizeof(ExpertMiss) + sizeof(int32_t);
  FT_ASSIGN_OR_RETURN(tables_, DeviceBuffer::allocate(account_, what, table_bytes));
  FT_ASSIGN_OR_RETURN(extents_, DeviceBuffer::allocate(account_, what, of_layer * sizeof(uint64_t)));
  FT_ASSIGN_OR_RETURN(misses_, DeviceBuffer::allocate(account_, what, miss_bytes));
  if (counters_.bytes() == 0) {  // calls are counted over all sizes
    FT_ASSIGN_OR_RETURN(counters_, DeviceBuffer::allocate(account_, what, sizeof(ExpertCounters)));
    FT_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(counters_.data(), 0, counters_.bytes(), stream_), "expert slots");
  }
  ExpertSlotsView view{.slots = slots, .layers = layers, .experts = experts};
  view.memory = memory_.data();
  view.slot_bytes = stride;
  view.clock = tables_.as<uint64_t>();
  view.owner = reinterpret_cast<int32_t*>(view.clock + slots);
  view.needed_by = reinterpret_cast<uint32_t*>(view.owner + slots);
  view.slot_of = reinterpret_cast<int32_t*>(view.needed_by + slots);
  view.counters = counters_.as<ExpertCounters>();
  miss_count_ = reinterpret_cast<int32_t*>(misses_.as<ExpertMiss>() + experts);
  FT_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(tables_.data(), 0, tables_.bytes(), stream_), "expert slots");
  FT_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(view.owner, 0xff, slot_count * sizeof(int32_t), stream_), "expert slots");
  FT_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(view.slot_of, 0xff, keys * sizeof(int32_t), stream_), "expert slots");
  view_ = view;
  return {};
}

std::vector<SlotRound> ExpertSlots::rounds(int begin, int end, int entries, bool decode) const {
  const bool fits = decode && std::min(entries, end - begin) <= view_.slots;
  const int most = fits ? end - begin : decode ? view_.slots : std::max(1, view_.slots / 4);
  std::vector<SlotRound> rounds;
  for (int at = begin; at < end; at += most) rounds.push_back({at, std::min(at + most, end), decode});
  return rounds;
}

Status ExpertSlots::use_resolver(ExpertResolver* resolver) {
  if (server_)
    return server_->resolver() == resolver ? Status() : Unsupported("experts of two sources on one device");
  if (mailbox_.bytes() == 0) {
    FT_ASSIGN_OR_RETURN(mailbox_, PinnedBuffer::allocate("the mailbox of missing experts", sizeof(MailboxView)));
    std::memset(mailbox_.data(), 0, mailbox_.bytes());
    wait_ = {&mailbox_.as<MailboxView>()->answered, 1};
  }
  server_ = std::make_unique<MailboxServer>(mailbox_.as<MailboxView>(), resolver);
  return {};
}

cudaError_t ExpertSlots::enqueue(int layer, const int32_t* choice, int entries, SlotRound round,
                                 const uint64_t* sources, int64_t extent_bytes, cudaStream_t stream) const {
  AdmissionCall call{.layer = layer, .choice = choice, .entries = entries, .begin = round.begin, .end = round.end};
  call.keep = round.keep;
  call.extents = extents_.as<uint64_t>();
  call.miss_count = miss_count_;
  call.misses = misses_.as<ExpertMiss>();
  if (!sources) {
    if (!server_) return cudaErrorInvalidValue;
    call.mailbox = mailbox_.as<MailboxView>();
  }
  cudaError_t error = launch_admit_experts(view_, call, stream);
  if (error == cudaSuccess && call.mailbox) error = values_.wait(stream, wait_);
  if (error == cudaSuccess) error = launch_gather_experts(view_, call, sources, extent_bytes, stream);
  if (error == cudaSuccess && call.mailbox) error = launch_release_experts(view_, call.mailbox, stream);
  return error;
}

Result<ExpertCounters> ExpertSlots::counters() const {
  ExpertCounters counters;
  if (counters_.bytes() == 0) return counters;
  const cudaError_t error =
      cudaMemcpyAsync(&counters, counters_.data(), sizeof(counters), cudaMemcpyDeviceToHost, stream_);
  FT_CUDA_RETURN_IF_ERROR(error, "counters of expert slots");
  FT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream_), "waiting for the GPU");
  return counters;
}

}  // namespace freetoken::cuda
