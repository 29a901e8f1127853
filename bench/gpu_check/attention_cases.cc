// Attention over a bf16 cache: decode at several lengths, prefill of one prompt.
#include <numeric>
#include <string>

#include "cuda/kernels/attention.h"
#include "gpu_check/cases.h"
#include "gpu_check/device_memory.h"

namespace freetoken::gpu_check {
namespace {

constexpr int kHeads = 32, kKvHeads = 4, kDim = 128, kPageTokens = 64;

// `sequences` sequences of `tokens` positions; the last `rows` positions of each are the step's rows.
void time_attention(int sequences, int tokens, int rows, const Take& take) {
  const int pages = tokens / kPageTokens, total_rows = sequences * rows;
  const int64_t page_bytes = int64_t(kPageTokens) * kKvHeads * 2 * kDim * 2;
  const int64_t cache_bytes = page_bytes * pages * sequences;
  const int copies = cold_copies(cache_bytes);
  const DeviceMemory pool(size_t(cache_bytes) * copies);
  const DeviceMemory q(size_t(total_rows) * kHeads * kDim * 4), out(size_t(total_rows) * kHeads * kDim * 4);
  std::vector<int32_t> table(size_t(pages) * sequences), position, sequence;
  std::iota(table.begin(), table.end(), 0);
  for (int s = 0; s < sequences; s++)
    for (int r = 0; r < rows; r++) position.push_back(tokens - rows + r), sequence.push_back(s);
  const DeviceMemory page_table(table), row_position(position), row_sequence(sequence);
  cuda::StepView step;
  step.row_position = row_position.as<int32_t>();
  step.row_sequence = row_sequence.as<int32_t>();
  step.page_table = page_table.as<int32_t>();
  step.group_stride = int64_t(table.size());
  step.sequence_stride = pages;
  const int partitions = (tokens + cuda::kAttentionPartition - 1) / cuda::kAttentionPartition;
  const DeviceMemory scratch(size_t(cuda::attention_scratch_floats(total_rows, kHeads, kDim, partitions)) * 4);

  TimedCase timed;
  timed.name = "attention " + std::to_string(sequences) + " x " + std::to_string(tokens) + " tokens, rows " + std::to_string(rows);
  timed.bytes = cache_bytes + int64_t(q.size() + out.size());
  timed.flops = rows > 1 ? 4.0 * kHeads * kDim * sequences * rows * (tokens - rows / 2.0) : 0;
  timed.copies = copies;
  timed.launch = [&](int copy, cudaStream_t stream) {
    cuda::KvView kv;
    kv.pool = pool.bytes() + cache_bytes * copy;
    kv.page_bytes = page_bytes;
    kv.page_tokens = kPageTokens;
    kv.kv_heads = kKvHeads;
    kv.qk_dim = kv.v_dim = kDim;
    cuda::AttentionView view;
    view.q = q.as<float>(), view.q_stride = kHeads * kDim;
    view.out = out.as<float>(), view.out_stride = kHeads * kDim;
    view.q_heads = kHeads;
    view.scale = 0.088f;
    return rows > 1 ? cuda::launch_attention_rows(step, total_rows, kv, view, stream)
                    : cuda::launch_attention_split(step, total_rows, kv, view, partitions, scratch.as<float>(), stream);
  };
  take(timed);
}

}  // namespace

void attention_cases(const Take& take) {
  for (const int tokens : {512, 8192, 65536}) time_attention(1, tokens, 1, take);
  time_attention(4, 8192, 1, take);
  time_attention(1, 512, 512, take);
}

}  // namespace freetoken::gpu_check
