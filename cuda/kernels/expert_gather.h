// Copies the misses of an admission into their slots, from host memory that the device can read (or from any other).
#pragma once
#include "cuda/kernels/expert_admission.h"

namespace freetoken::cuda {

// Without a mailbox sources[expert] is where each extent lies ([experts], device); with one, its addresses are, as soon
// as its `answered` is 1. An extent that has no address, or all when the answer is to another call, are taken out of
// the slots again, and call.extents is 0 for them. extent_bytes: a multiple of 16, at most slot_bytes. Addresses are
// multiples of 16.
cudaError_t launch_gather_experts(const ExpertSlotsView& slots, const AdmissionCall& call, const uint64_t* sources,
                                  int64_t extent_bytes, cudaStream_t stream);

// Tells the mailbox that the device has read what the last call asked for.
cudaError_t launch_release_experts(const ExpertSlotsView& slots, MailboxView* mailbox, cudaStream_t stream);

}  // namespace freetoken::cuda
