#include "cuda/kernels/expert_gather.h"

#include "cuda/kernels/device.h"

namespace freetoken::cuda {
namespace {

constexpr int kGatherThreads = 256, kLoads = 4, kPieceBytes = kGatherThreads * kLoads * 16;
// Half a megabyte under way: more than what a link of 64 GB/s carries in the few microseconds of its latency.
constexpr int kGatherBlocks = 32;

FT_DEV uint64_t source_of(const AdmissionCall& call, const uint64_t* sources, int miss, bool answered) {
  if (!call.mailbox) return sources[call.misses[miss].expert];
  return answered ? call.mailbox->address[miss] : 0;
}

// A piece is 16 KB of an extent; blocks take them in turn.
__global__ void __launch_bounds__(kGatherThreads)
    gather_experts(const ExpertSlotsView slots, const AdmissionCall call, const uint64_t* sources,
                   int64_t extent_bytes) {
  const int self = int(threadIdx.x), misses = *call.miss_count;
  if (misses == 0) return;
  const uint32_t number = uint32_t(slots.counters->calls);
  const bool answered = !call.mailbox || (load_acquire_system(&call.mailbox->answered) == 1 &&
                                          call.mailbox->answer_to == number);
  if (blockIdx.x == 0) {
    if (!answered && self == 0) store_release_system(&call.mailbox->fault, number);
    for (int i = self; i < misses; i += kGatherThreads) {
      if (source_of(call, sources, i, answered) != 0) continue;
      const ExpertMiss miss = call.misses[i];
      slots.slot_of[call.layer * slots.experts + miss.expert] = -1;
      slots.owner[miss.slot] = -1;
      slots.clock[miss.slot] = 0;
      call.extents[miss.expert] = 0;
    }
  }
  const int64_t pieces = (extent_bytes + kPieceBytes - 1) / kPieceBytes;
  for (int64_t p = blockIdx.x; p < pieces * misses; p += gridDim.x) {
    const int i = int(p / pieces);
    const int64_t begin = p % pieces * kPieceBytes + self * 16;
    const char* from = reinterpret_cast<const char*>(source_of(call, sources, i, answered));
    if (!from) continue;
    uint8_t* to = slots.memory + call.misses[i].slot * slots.slot_bytes;
    uint4 words[kLoads];
#pragma unroll
    for (int n = 0; n < kLoads; n++)
      if (begin + n * kGatherThreads * 16 < extent_bytes)
        words[n] = load16_stream(from + begin + n * kGatherThreads * 16);
#pragma unroll
    for (int n = 0; n < kLoads; n++)
      if (begin + n * kGatherThreads * 16 < extent_bytes) store16(to + begin + n * kGatherThreads * 16, words[n]);
  }
}

__global__ void release_experts(const ExpertSlotsView slots, MailboxView* mailbox) {
  store_release_system(&mailbox->released, uint32_t(slots.counters->calls));
}

}  // namespace

cudaError_t launch_gather_experts(const ExpertSlotsView& slots, const AdmissionCall& call, const uint64_t* sources,
                                  int64_t extent_bytes, cudaStream_t stream) {
  if (extent_bytes % 16 != 0 || extent_bytes > slots.slot_bytes || (!call.mailbox && !sources))
    return cudaErrorInvalidValue;
  FT_LAUNCH((gather_experts), dim3(kGatherBlocks), dim3(kGatherThreads), 0, stream, slots, call, sources, extent_bytes);
  return cudaGetLastError();
}

cudaError_t launch_release_experts(const ExpertSlotsView& slots, MailboxView* mailbox, cudaStream_t stream) {
  FT_LAUNCH((release_experts), dim3(1), dim3(1), 0, stream, slots, mailbox);
  return cudaGetLastError();
}

}  // namespace freetoken::cuda
