#include "cuda/kernels/device.h"
#include "cuda/kernels/sample.h"

namespace freetoken::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    mark_prompt(uint32_t* history, const int32_t* prompt, int count, int vocab) {
  const int i = int(blockIdx.x) * kThreads + int(threadIdx.x);
  if (i < count && uint32_t(prompt[i]) < uint32_t(vocab)) atomicOr(&history[prompt[i]], kInPrompt);
}

__global__ void __launch_bounds__(kThreads) set_slot(SamplerSlot* slots, int slot, SamplerSlot value) {
  if (threadIdx.x == 0) slots[slot] = value;
}

__global__ void __launch_bounds__(kThreads)
    count_tokens(uint32_t* history, const int32_t* tokens, int count, int vocab) {
  const int i = int(blockIdx.x) * kThreads + int(threadIdx.x);
  if (i < count && uint32_t(tokens[i]) < uint32_t(vocab)) atomicAdd(&history[tokens[i]], 1u);
}

// One block: history is read from the slot.
__global__ void __launch_bounds__(kThreads)
    advance_slot(SamplerSlot* slots, int slot, const int32_t* tokens, int count, int vocab) {
  uint32_t* history = slots[slot].history;
  if (history)
    for (int i = int(threadIdx.x); i < count; i += kThreads)
      if (uint32_t(tokens[i]) < uint32_t(vocab)) atomicAdd(&history[tokens[i]], 1u);
  if (threadIdx.x == 0) slots[slot].sampled_tokens += count;
}

dim3 blocks_of(int count) { return dim3(unsigned((count + kThreads - 1) / kThreads)); }

}  // namespace

cudaError_t launch_open_sampler(SamplerSlot* slots, int slot, const SamplerSlot& value, const int32_t* prompt,
                                int prompt_count, const int32_t* sampled, int sampled_count, int vocab,
                                cudaStream_t stream) {
  SamplerSlot opened = value;
  opened.sampled_tokens = sampled_count;
  FT_LAUNCH((set_slot), dim3(1), dim3(kThreads), 0, stream, slots, slot, opened);
  if (value.history) {
    const cudaError_t cleared = cudaMemsetAsync(value.history, 0, size_t(vocab) * sizeof(uint32_t), stream);
    if (cleared != cudaSuccess) return cleared;
    if (prompt_count > 0)
      FT_LAUNCH((mark_prompt), blocks_of(prompt_count), dim3(kThreads), 0, stream, value.history, prompt, prompt_count, vocab);
    if (sampled_count > 0)
      FT_LAUNCH((count_tokens), blocks_of(sampled_count), dim3(kThreads), 0, stream, value.history, sampled, sampled_count,
                vocab);
  }
  return cudaGetLastError();
}

cudaError_t launch_advance_sampler(SamplerSlot* slots, int slot, const int32_t* tokens, int count, int vocab,
                                   cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  FT_LAUNCH((advance_slot), dim3(1), dim3(kThreads), 0, stream, slots, slot, tokens, count, vocab);
  return cudaGetLastError();
}

}  // namespace freetoken::cuda
