#include "cuda/kernels/expert_admission.h"

#include <algorithm>

#include "cuda/kernels/expert_admission_scan-inl.h"

namespace freetoken::cuda {
namespace {

__global__ void __launch_bounds__(kAdmissionThreads, 1)
    admit_experts(const ExpertSlotsView slots, const AdmissionCall call) {
  FT_SHARED(int, needed, [kMaxAdmittedExperts]);
  FT_SHARED(int, missing, [kMaxAdmittedExperts]);
  FT_SHARED(int, victims, [kMaxAdmittedExperts]);
  FT_SHARED(int, warps, [32]);
  const int self = int(threadIdx.x), first_key = call.layer * slots.experts;
  const uint64_t number = slots.counters->calls + 1;
  needed[self] = 0;
  __syncthreads();
  for (int i = self; i < call.entries; i += kAdmissionThreads) {
    const int e = call.choice[i];
    if (e >= call.begin && e < call.end) atomicOr(&needed[e], 1);
  }
  __syncthreads();

  const bool wanted = needed[self] != 0;
  const int slot = wanted ? slots.slot_of[first_key + self] : -1;
  if (slot >= 0) {
    slots.needed_by[slot] = uint32_t(number);
    if (call.keep) slots.clock[slot] = number + 1;
  }
  int misses = 0;
  const bool miss = wanted && slot < 0;
  const int rank = admission_sum(miss ? 1 : 0, warps, &misses);
  const int hits = __syncthreads_count(slot >= 0);
  if (miss) missing[rank] = self;
  if (self < slots.experts && !miss)
    call.extents[self] = slot < 0 ? 0 : reinterpret_cast<uint64_t>(slots.memory + slot * slots.slot_bytes);
  if (misses > 0) choose_victims(slots, number, misses, victims, warps);

  if (self < misses) {
    const int e = missing[self], to = victims[self], old = slots.owner[to];
    if (old >= 0) slots.slot_of[old] = -1;
    slots.owner[to] = first_key + e;
    slots.slot_of[first_key + e] = to;
    slots.clock[to] = call.keep ? number + 1 : 1;
    slots.needed_by[to] = uint32_t(number);
    call.extents[e] = reinterpret_cast<uint64_t>(slots.memory + to * slots.slot_bytes);
    call.misses[self] = {e, to};
    if (call.mailbox) {
      call.mailbox->expert[self] = e;
      __threadfence_system();
    }
  }
  __syncthreads();
  if (self != 0) return;
  *call.miss_count = misses;
  slots.counters->calls = number;
  slots.counters->hits += uint64_t(hits);
  slots.counters->misses += uint64_t(misses);
  if (!call.mailbox) return;
  if (misses == 0) {  // nobody has to be asked
    store_release_system(&call.mailbox->answered, 1);
    return;
  }
  call.mailbox->answered = 0;
  call.mailbox->layer = call.layer;
  call.mailbox->count = misses;
  store_release_system(&call.mailbox->posted, uint32_t(number));
}

}  // namespace

cudaError_t launch_admit_experts(const ExpertSlotsView& slots, const AdmissionCall& call, cudaStream_t stream) {
  if (slots.experts > kMaxAdmittedExperts || call.layer < 0 || call.layer >= slots.layers || call.begin < 0 ||
      call.end > slots.experts || call.begin >= call.end || slots.slot_bytes % 16 != 0 ||
      std::min(call.entries, call.end - call.begin) > slots.slots)
    return cudaErrorInvalidValue;
  FT_LAUNCH((admit_experts), dim3(1), dim3(kAdmissionThreads), 0, stream, slots, call);
  return cudaGetLastError();
}

}  // namespace freetoken::cuda
