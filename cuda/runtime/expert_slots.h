// ExpertSlots: experts of all layers in equal slots of device memory, the least recently used one making room.
//
// One moe() is, for every one of rounds(): enqueue() with the round's range, then the matmuls of that range with
// extents() as their table, all on one stream; then the sum over ranks. Everything may be captured; what was captured
// before a resize() is of no use after it.
#pragma once
#include <memory>
#include <vector>

#include "cuda/kernels/expert_admission.h"
#include "cuda/runtime/mailbox_server.h"
#include "cuda/runtime/memory.h"
#include "cuda/runtime/stream_values.h"
#include "ops/experts.h"
#include "ops/tensor.h"

namespace freetoken::cuda {

struct SlotRound {
  int begin = 0, end = 0;  // experts
  bool keep = true;
};

class ExpertSlots {
 public:
  ExpertSlots(MemoryAccount& account, cudaStream_t stream) : account_(account), stream_(stream) {}
  ~ExpertSlots();

  // Empties the slots and makes them anew. `experts`: the most of a layer.
  Status resize(int slots, int64_t slot_bytes, int layers, int experts);
  int slots() const { return view_.slots; }
  int64_t slot_bytes() const { return view_.slot_bytes; }

  // How to go through experts [begin, end) of a step of this shape. Does not depend on what the router will choose.
  // Decode: one round, or as many as it takes when there are fewer slots than choices. Prefill (decode == false):
  // rounds of a quarter of the slots at most, which stream: of the experts that decode uses, those in the other slots
  // stay.
  std::vector<SlotRound> rounds(int begin, int end, int entries, bool decode) const;

  // Where experts come from that no address is known of. Called before enqueue(); the resolver outlives this.
  Status use_resolver(ExpertResolver* resolver);

  // Everything that fills the slots of one round: on return, what comes next in the stream finds extents(). choice:
  // [entries], device. sources: [experts] addresses of pinned memory, in device memory; null: the resolver is asked.
  cudaError_t enqueue(int layer, const int32_t* choice, int entries, SlotRound round, const uint64_t* sources,
                      int64_t extent_bytes, cudaStream_t stream) const;
  // [experts], of the last round; 0: not needed, or failed
  const uint64_t* extents() const { return extents_.as<uint64_t>(); }

  // Calls of the device are numbered from 1 on. Per step: count_calls(rounds of the step) where it is launched, eager
  // or as a graph, and take_error(of that number) when its event is there.
  uint64_t count_calls(int rounds) { return calls_ += uint64_t(rounds); }
  Status take_error(uint64_t through_call) { return server_ ? server_->take_error(through_call) : Status(); }
  // Waits for the stream.
  Result<ExpertCounters> counters() const;
  const ExpertSlotsView& view() const { return view_; }

 private:
  MemoryAccount& account_;
  cudaStream_t stream_;
  StreamValues values_;
  ExpertSlotsView view_;
  DeviceBuffer memory_, tables_, counters_, extents_, misses_;
  int32_t* miss_count_ = nullptr;
  PinnedBuffer mailbox_;
  FlagWait wait_;
  std::unique_ptr<MailboxServer> server_;
  uint64_t calls_ = 0;
};

}  // namespace freetoken::cuda
