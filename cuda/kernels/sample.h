// Draws and scores rows of logits: the contract of ops/sampling.h, token for token what the CPU draws from the same logits.
//
// Order of work: bias, penalties, bans -> temperature -> top-k -> top-p -> min-p -> Philox draw. Equality with the CPU is by
// construction: the same fp32 formulas with explicit roundings, maxima and counts (which have no order), and sums of
// weights added in double in the CPU's order: by id, by likelihood, or by digit bins and id.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace freetoken::cuda {

// The state of one sampled sequence, in device memory. The arrays it points to belong to the caller.
struct SamplerSlot {
  float temperature = 1, top_p = 1, min_p = 0;
  int32_t top_k = 0;
  uint64_t seed = 0;
  int32_t sample_index = 0;
  float presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;
  int64_t min_tokens = 0, sampled_tokens = 0;
  const int32_t* end_tokens = nullptr;  // [end_count], distinct, in [0, vocab): not drawn before min_tokens
  int32_t end_count = 0;
  int32_t bias_count = 0;
  const int32_t* bias_ids = nullptr;    // [bias_count], ascending, distinct, in [0, vocab)
  const float* bias = nullptr;          // [bias_count], -inf = banned
  // [vocab], null where no penalty is set: the lowest 31 bits count how often an id was sampled, the highest says that it is
  // in the prompt.
  uint32_t* history = nullptr;
};
constexpr uint32_t kInPrompt = 0x80000000u;

// slots[slot] = value; where value.history is set it is cleared and filled from prompt (marked; pass 0 of them unless the
// repetition penalty is not 1) and sampled. sampled_tokens is set to sampled_count. Ids outside [0, vocab) have no effect.
// prompt, sampled: device memory, read when the launch runs.
cudaError_t launch_open_sampler(SamplerSlot* slots, int slot, const SamplerSlot& value, const int32_t* prompt,
                                int prompt_count, const int32_t* sampled, int sampled_count, int vocab,
                                cudaStream_t stream);

// These tokens are now part of the slot's sequence.
cudaError_t launch_advance_sampler(SamplerSlot* slots, int slot, const int32_t* tokens, int count, int vocab,
                                   cudaStream_t stream);

// SampleRow, as data of the step.
struct SampleRowView {
  int32_t logits_row = 0, slot = 0, position = 0;
  int32_t target = -1;       // >= 0: draw nothing
  int32_t logprobs = -1;     // -1 = none; n = the token's own and the n most likely
  int32_t ahead_begin = 0, ahead_count = 0;  // in SampleView::ahead
};

struct SampleResultView {
  int32_t token = 0;         // -1 where nothing can be drawn
  float logprob = 0;         // 0 when not asked for; NaN for a broken row
  int32_t top_count = 0;
};

struct SampleView {
  const float* logits = nullptr;
  int64_t logits_stride = 0;
  int32_t vocab = 0;
  const uint8_t* usable = nullptr;         // [vocab]: may it be drawn
  const SamplerSlot* slots = nullptr;
  const SampleRowView* rows = nullptr;
  const int32_t* ahead = nullptr;
  SampleResultView* results = nullptr;     // [rows]; device memory, or host memory that the device can write
  int32_t* top_ids = nullptr;              // [rows][top_stride]: descending, ties to the lowest id
  float* top_logprobs = nullptr;           // [rows][top_stride]
  int32_t top_stride = 0;                  // at least every row's logprobs
  int32_t* sampled = nullptr;              // [rows]: the token again, for StepView::sampled of the next step
};

// Bytes of scratch (256-byte aligned) for any number of rows.
int64_t sample_scratch_bytes(int vocab);

// One block a row at a time, at most kSampleBlocks blocks.
constexpr int kSampleBlocks = 16;
cudaError_t launch_sample(const SampleView& sample, int rows, void* scratch, cudaStream_t stream);

}  // namespace freetoken::cuda
