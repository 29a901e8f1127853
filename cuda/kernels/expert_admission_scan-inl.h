// Slots to give away, chosen by one block of 1024 threads: the oldest clocks, among equal ones the lowest slots.
#pragma once
#include "cuda/kernels/device.h"
#include "cuda/kernels/expert_admission.h"

namespace freetoken::cuda {

constexpr int kAdmissionThreads = kMaxAdmittedExperts;
constexpr int kDigits = 256;

FT_DEV int admission_warp_sum(int v, int lane) {
  for (int d = 1; d < 32; d *= 2) {
    const int below = __shfl_up_sync(~0u, v, unsigned(d));
    if (lane >= d) v += below;
  }
  return v;
}

// Sum over the threads before this one, and over all. `warps`: 32 ints of shared memory; two barriers.
FT_DEV int admission_sum(int v, int* warps, int* total) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int inclusive = admission_warp_sum(v, lane);
  if (lane == 31) warps[warp] = inclusive;
  __syncthreads();
  const int below = admission_warp_sum(warps[lane], lane);  // every warp adds up all 32
  const int before = __shfl_sync(~0u, below, warp ? warp - 1 : 0);
  *total = __shfl_sync(~0u, below, 31);
  __syncthreads();
  return inclusive - v + (warp ? before : 0);
}

// victims[0, count), ascending. Slots with needed_by == call are kept; there are at least `count` others.
// The count-th smallest clock is found digit by digit from the top; call_number is not below the clock of any of these.
FT_DEV void choose_victims(const ExpertSlotsView& slots, uint64_t call_number, int count, int* victims, int* warps) {
  FT_SHARED(int, histogram, [kDigits]);
  FT_SHARED(int, found, [2]);  // the digit, and how many to take of it
  const int self = int(threadIdx.x);
  const uint32_t call = uint32_t(call_number);
  uint64_t clock = 0;
  int of_equal = count, all = 0, shift = 0;
  while ((call_number >> shift) >> 8) shift += 8;
  for (; shift >= 0; shift -= 8) {
    if (self < kDigits) histogram[self] = 0;
    __syncthreads();
    for (int s = self; s < slots.slots; s += kAdmissionThreads) {
      const uint64_t c = slots.clock[s] >> shift;
      if (slots.needed_by[s] != call && c >> 8 == clock) atomicAdd(&histogram[int(c & 255)], 1);
    }
    __syncthreads();
    const int here = self < kDigits ? histogram[self] : 0;
    const int before = admission_sum(here, warps, &all);
    if (before < of_equal && of_equal <= before + here) {
      found[0] = self;
      found[1] = of_equal - before;
    }
    __syncthreads();
    clock = clock << 8 | uint64_t(found[0]);
    of_equal = found[1];
  }
  int below = 0, equal = 0;  // of all slots before this round's
  for (int base = 0; base < slots.slots && below + min(equal, of_equal) < count; base += kAdmissionThreads) {
    const int s = base + self;
    const bool free = s < slots.slots && slots.needed_by[s] != call;
    const uint64_t c = free ? slots.clock[s] : ~uint64_t(0);
    const int before = admission_sum((c < clock ? 1 : 0) + (c == clock ? 1 << 16 : 0), warps, &all);
    const int equal_before = equal + (before >> 16);
    if (c < clock || (c == clock && equal_before < of_equal))
      victims[below + (before & 0xffff) + min(equal_before, of_equal)] = s;
    below += all & 0xffff;
    equal += all >> 16;
  }
  __syncthreads();
}

}  // namespace freetoken::cuda
