#include "cuda/kernels/sample.h"

#include "cuda/kernels/sample_draw-inl.h"

namespace freetoken::cuda {
namespace {

constexpr int64_t align256(int64_t n) { return (n + 255) / 256 * 256; }
constexpr int64_t row_floats(int vocab) { return align256(int64_t(vocab) * 4) / 4; }

FT_DEV RowScratch row_scratch(void* memory, int vocab, int64_t stride_floats) {
  float* p = static_cast<float*>(memory) + int64_t(blockIdx.x) * (4 * stride_floats);
  return {p, p + stride_floats, reinterpret_cast<int32_t*>(p + 2 * stride_floats), p + 3 * stride_floats};
}

// The adjusted logit of an id (sample/sampler_state.h): bias, repetition, frequency, presence.
FT_DEV float adjusted(const SamplerSlot& slot, float logit, float bias, uint32_t history, uint32_t ahead) {
  if (bias == negative_infinity()) return negative_infinity();
  const uint32_t sampled = (history & ~kInPrompt) + ahead;
  float x = logit + bias;
  if ((history & kInPrompt) || sampled > 0) {
    const float divided = x / slot.repetition_penalty, multiplied = __fmul_rn(x, slot.repetition_penalty);
    const bool smaller = slot.repetition_penalty > 1.0f;
    x = smaller == (multiplied < divided) ? multiplied : divided;
  }
  if (sampled > 0) {
    x = x - __fmul_rn(slot.frequency_penalty, float(sampled));
    x = x - slot.presence_penalty;
  }
  return x;
}

FT_DEV float bias_of(const SamplerSlot& slot, int32_t id) {
  int low = 0, high = slot.bias_count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (slot.bias_ids[middle] < id) low = middle + 1;
    else high = middle;
  }
  return low < slot.bias_count && slot.bias_ids[low] == id ? slot.bias[low] : 0.0f;
}

FT_DEV uint32_t count_of(const int32_t* tokens, int count, int32_t id) {
  uint32_t n = 0;
  for (int i = 0; i < count; i++) n += tokens[i] == id;
  return n;
}

// scratch.logits: what the row is drawn from. Ends with a barrier.
FT_DEV void adjust_row(const SampleView& sample, const SamplerSlot& slot, const SampleRowView& row, const float* logits,
                       const RowScratch& scratch) {
  const int32_t* ahead = sample.ahead + row.ahead_begin;
  const int ahead_count = slot.history ? row.ahead_count : 0;
  const auto set = [&](int32_t id, float bias) {
    const uint32_t history = slot.history ? slot.history[id] : 0u;
    const float x = adjusted(slot, logits[id], bias, history, count_of(ahead, ahead_count, id));
    if (sample.usable[id]) scratch.logits[id] = clean_logit(x);
  };
  for (int i = int(threadIdx.x); i < sample.vocab; i += kSampleThreads) {
    const uint32_t history = slot.history ? slot.history[i] : 0u;
    const float x = history ? adjusted(slot, logits[i], 0.0f, history, 0) : logits[i];
    scratch.logits[i] = sample.usable[i] ? clean_logit(x) : negative_infinity();
  }
  __syncthreads();
  for (int i = int(threadIdx.x); i < slot.bias_count; i += kSampleThreads) set(slot.bias_ids[i], slot.bias[i]);
  __syncthreads();
  for (int i = int(threadIdx.x); i < ahead_count; i += kSampleThreads) {
    const int32_t id = ahead[i];
    if (uint32_t(id) < uint32_t(sample.vocab) && count_of(ahead, i, id) == 0) set(id, bias_of(slot, id));
  }
  __syncthreads();
  if (slot.sampled_tokens + row.ahead_count < slot.min_tokens)
    for (int i = int(threadIdx.x); i < slot.end_count; i += kSampleThreads)
      scratch.logits[slot.end_tokens[i]] = negative_infinity();
  __syncthreads();
}

// Of the raw distribution: softmax over all ids, usable or not; the most likely usable ones.
FT_DEV void score_row(SampleShared& shared, const SampleView& sample, const float* logits, const RowScratch& scratch,
                      int32_t token, int wanted, int r, SampleResultView& result) {
  const auto raw = [&](int i) { return logits[i]; };
  const uint64_t best = max_key(shared, sample.vocab, [&](int i) {
    const float x = logits[i];
    return x == x ? likelihood(x, i) : 0;
  });
  const float max = best == 0 ? negative_infinity() : logits[~uint32_t(best)];
  if (max == negative_infinity() || max == positive_infinity()) {
    result.logprob = quiet_nan();
    return;
  }
  const float log_total = log_exact(float(sum_row(shared, scratch, sample.vocab, raw, Weigher{max, 1.0f})));
  result.logprob = (logits[token] - max) - log_total;
  if (wanted <= 0) return;
  const auto usable = [&](int i) { return sample.usable[i] ? clean_logit(logits[i]) : negative_infinity(); };
  const Cut cut = cut_by_count(shared, sample.vocab, wanted, usable);
  const int n = gather_list(shared, scratch, sample.vocab, usable, [&](int i) { return cut.keeps(order_key(usable(i)), i); });
  for (int i = int(threadIdx.x); i < n; i += kSampleThreads) {
    const uint32_t key = order_key(scratch.list_logits[i]);
    int rank = 0;
    for (int j = 0; j < n; j++) {
      const uint32_t other = order_key(scratch.list_logits[j]);
      rank += other > key || (other == key && j < i);
    }
    sample.top_ids[int64_t(r) * sample.top_stride + rank] = scratch.list_ids[i];
    sample.top_logprobs[int64_t(r) * sample.top_stride + rank] = (scratch.list_logits[i] - max) - log_total;
  }
  result.top_count = n;
}

__global__ void __launch_bounds__(kSampleThreads, 1) sample_rows(SampleView sample, int rows, void* memory, int64_t stride) {
  FT_DYNAMIC_SHARED(raw);
  auto& shared = *reinterpret_cast<SampleShared*>(raw);
  const RowScratch scratch = row_scratch(memory, sample.vocab, stride);
  for (int r = int(blockIdx.x); r < rows; r += int(gridDim.x)) {
    const SampleRowView row = sample.rows[r];
    const float* logits = sample.logits + row.logits_row * sample.logits_stride;
    SampleResultView result;
    result.token = row.target;
    if (row.target < 0) {
      adjust_row(sample, sample.slots[row.slot], row, logits, scratch);
      result.token = draw_token(shared, scratch, sample.vocab, sample.slots[row.slot], row.position);
    }
    if (row.logprobs >= 0 && result.token >= 0)
      score_row(shared, sample, logits, scratch, result.token, min(row.logprobs, sample.top_stride), r, result);
    if (threadIdx.x == 0) {
      sample.results[r] = result;
      sample.sampled[r] = result.token;
    }
    __syncthreads();  // the next row uses the same scratch
  }
}

}  // namespace

int64_t sample_scratch_bytes(int vocab) { return row_floats(vocab) * 4 * int64_t(sizeof(float)) * kSampleBlocks; }

cudaError_t launch_sample(const SampleView& sample, int rows, void* scratch, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const unsigned blocks = unsigned(rows < kSampleBlocks ? rows : kSampleBlocks);
  FT_LAUNCH((sample_rows), dim3(blocks), dim3(kSampleThreads), sizeof(SampleShared), stream, sample, rows, scratch,
            row_floats(sample.vocab));
  return cudaGetLastError();
}

}  // namespace freetoken::cuda
