#include "cuda/kernels/attention.h"

#include "cuda/kernels/attention_partition-inl.h"

namespace freetoken::cuda {
namespace {

FT_DEV int first_visible(const AttentionView& attention, int position) {
  return attention.window > 0 && position >= attention.window ? position - attention.window + 1 : 0;
}

// Queries of one KV head's group that a block takes: heads of one row next to each other, then the next row.
struct HeadBlocks {
  int group, heads, blocks;  // heads of a block (the last may have less), blocks of a group
};
FT_DEV HeadBlocks head_blocks(const KvView& kv, const AttentionView& attention) {
  const int group = attention.q_heads / kv.kv_heads, heads = group < kMaxQueries ? group : kMaxQueries;
  return {group, heads, (group + heads - 1) / heads};
}

// The queries of `rows` rows from `row` on, heads [head, head + heads): into shared.q, begin and end.
template <class T, int Q>
FT_DEV void load_queries(PartitionShared<T, Q>& shared, const StepView& step, const KvView& kv,
                         const AttentionView& attention, int row, int rows, int head, int heads) {
  const int count = rows * heads;
  for (int at = int(threadIdx.x); at < Q * kv.qk_dim; at += kAttentionThreads) {
    const int i = at / kv.qk_dim;
    shared.q[at] = i < count ? attention.q[(row + i / heads) * attention.q_stride +
                                           int64_t(head + i % heads) * kv.qk_dim + at % kv.qk_dim]
                             : 0.0f;
  }
  if (int(threadIdx.x) < Q) {
    const int i = int(threadIdx.x), position = i < count ? step.row_position[row + i / heads] : -1;
    shared.begin[i] = i < count ? first_visible(attention, position) : 0;
    shared.end[i] = position + 1;
  }
}

// grid: (KV heads x head blocks, partitions, rows).
template <class T, int Q>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    attention_split(StepView step, KvView kv, AttentionView attention, float* scratch) {
  FT_DYNAMIC_SHARED(raw);
  auto& shared = *reinterpret_cast<PartitionShared<T, Q>*>(raw);
  const int partition = int(blockIdx.y), partitions = int(gridDim.y), row = int(blockIdx.z);
  const int end = step.row_position[row] + 1, begin = first_visible(attention, end - 1);
  const int from = partition * kAttentionPartition, to = from + kAttentionPartition;
  if (end <= from || begin >= to) return;
  const HeadBlocks blocks = head_blocks(kv, attention);
  const int kv_head = int(blockIdx.x) / blocks.blocks, offset = int(blockIdx.x) % blocks.blocks * blocks.heads;
  const int heads = min(blocks.heads, blocks.group - offset), head = kv_head * blocks.group + offset;
  load_queries(shared, step, kv, attention, row, 1, head, heads);
  __syncthreads();
  const int64_t results = int64_t(gridDim.z) * attention.q_heads * partitions;
  const int64_t first = (int64_t(row) * attention.q_heads + head) * partitions + partition;
  float* acc = scratch + 2 * results;
  attend_partition<T, Q>(shared, kv, attention, page_list(step, kv, step.row_sequence[row]), kv_head, partition,
                         max(begin, from), min(end, to), heads, [&](int i, int d, float v) {
                           acc[(first + int64_t(i) * partitions) * kv.v_dim + d] = v;
                         });
  if (int(threadIdx.x) < heads) {
    scratch[2 * (first + int64_t(threadIdx.x) * partitions)] = shared.m[threadIdx.x];
    scratch[2 * (first + int64_t(threadIdx.x) * partitions) + 1] = shared.l[threadIdx.x];
  }
}

// grid: (heads, rows); a thread owns an element.
__global__ void __launch_bounds__(kMaxHeadDim)
    attention_fold(StepView step, int v_dim, AttentionView attention, int partitions, const float* scratch) {
  const int head = int(blockIdx.x), row = int(blockIdx.y), d = int(threadIdx.x);
  if (d >= v_dim) return;
  const int end = step.row_position[row] + 1, begin = first_visible(attention, end - 1);
  const int64_t first = (int64_t(row) * attention.q_heads + head) * partitions;
  const float* acc = scratch + 2 * int64_t(gridDim.y) * attention.q_heads * partitions;
  float m = negative_infinity(), l = 0.0f, total = 0.0f;
  for (int p = begin / kAttentionPartition; p * kAttentionPartition < end; p++) {
    const FoldFactors f = fold(m, l, scratch[2 * (first + p)], scratch[2 * (first + p) + 1]);
    total = fold_value(f, total, acc[(first + p) * v_dim + d]);
  }
  if (attention.sinks) total = fold_value(fold(m, l, attention.sinks[head], 1.0f), total, 0.0f);
  attention.out[row * attention.out_stride + int64_t(head) * v_dim + d] = total / l;
}

template <class T>
struct RowsShared {
  PartitionShared<T, kMaxQueries> partition;
  float acc_p[kMaxQueries][kMaxHeadDim];
  FoldFactors factors[kMaxQueries];
  float l[kMaxQueries];
};

static_assert(sizeof(RowsShared<uint16_t>) <= 48 * 1024, "a launch of more shared memory has to be asked for");

// grid: (KV heads x head blocks, tiles of rows). A tile's rows are taken by runs of one sequence.
template <class T>  // f32 takes more registers than two blocks can have
__global__ void __launch_bounds__(kAttentionThreads, sizeof(T) == 4 ? 1 : 2)
    attention_rows(StepView step, KvView kv, AttentionView attention, int rows, int tile_rows) {
  constexpr int Q = kMaxQueries;
  static_assert(kMaxHeadDim <= kAttentionThreads, "a thread owns one element of a head");
  FT_DYNAMIC_SHARED(raw);
  auto& shared = *reinterpret_cast<RowsShared<T>*>(raw);
  const HeadBlocks blocks = head_blocks(kv, attention);
  const int kv_head = int(blockIdx.x) / blocks.blocks, offset = int(blockIdx.x) % blocks.blocks * blocks.heads;
  const int heads = min(blocks.heads, blocks.group - offset), head = kv_head * blocks.group + offset;
  const int tile_end = min(rows, (int(blockIdx.y) + 1) * tile_rows);
  for (int row = int(blockIdx.y) * tile_rows, run_end; row < tile_end; row = run_end) {
    const int sequence = step.row_sequence[row];
    for (run_end = row + 1; run_end < tile_end && step.row_sequence[run_end] == sequence; run_end++) {
    }
    const int count = (run_end - row) * heads;
    load_queries(shared.partition, step, kv, attention, row, run_end - row, head, heads);
    __syncthreads();
    const int begin = shared.partition.begin[0], end = shared.partition.end[count - 1];
    // Thread i folds maxima and sums of query i; every thread owns an element of all queries.
    const int thread = int(threadIdx.x);
    float m = negative_infinity(), l = 0.0f, acc[Q];
#pragma unroll
    for (int i = 0; i < Q; i++) acc[i] = 0.0f;
    const auto fold_all = [&](const float* m_p, const float* l_p, const auto& acc_p) {
      if (thread < count) {
        shared.factors[thread] = fold(m, l, m_p[thread], l_p[thread]);
        shared.l[thread] = l;
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < Q; i++)
        if (i < count && thread < kv.v_dim) acc[i] = fold_value(shared.factors[i], acc[i], acc_p(i));
      __syncthreads();
    };
    for (int p = begin / kAttentionPartition; p * kAttentionPartition < end; p++) {
      const int from = p * kAttentionPartition, to = from + kAttentionPartition;
      attend_partition<T, Q>(shared.partition, kv, attention, page_list(step, kv, sequence), kv_head, p, max(begin, from),
                             min(end, to), count, [&](int i, int d, float v) { shared.acc_p[i][d] = v; });
      fold_all(shared.partition.m, shared.partition.l, [&](int i) { return shared.acc_p[i][thread]; });
    }
    if (attention.sinks) {
      if (thread < count) {
        shared.partition.m[thread] = attention.sinks[head + thread % heads];
        shared.partition.l[thread] = 1.0f;
      }
      fold_all(shared.partition.m, shared.partition.l, [](int) { return 0.0f; });
    }
#pragma unroll
    for (int i = 0; i < Q; i++)
      if (i < count && thread < kv.v_dim)
        attention.out[(row + i / heads) * attention.out_stride + int64_t(head + i % heads) * kv.v_dim + thread] =
            acc[i] / shared.l[i];
    __syncthreads();
  }
}

bool supported(const KvView& kv, const AttentionView& attention) {
  const int granule = kv.f32 ? 4 : 8;
  return kv.page_tokens > 0 && kv.kv_heads > 0 && attention.q_heads % kv.kv_heads == 0 && kv.qk_dim % granule == 0 &&
         kv.v_dim % granule == 0 && kv.qk_dim > 0 && kv.v_dim > 0 && kv.qk_dim <= kMaxHeadDim && kv.v_dim <= kMaxHeadDim &&
         kv.page_bytes % 16 == 0 && kv.layer_offset % 16 == 0;
}

int group_of(const KvView& kv, const AttentionView& attention) { return attention.q_heads / kv.kv_heads; }
int head_block_count(int group) { return (group + kMaxQueries - 1) / kMaxQueries; }

template <class T, int Q>
void launch_split(const StepView& step, dim3 grid, const KvView& kv, const AttentionView& attention, float* scratch,
                  cudaStream_t stream) {
  FT_LAUNCH((attention_split<T, Q>), grid, dim3(kAttentionThreads), sizeof(PartitionShared<T, Q>), stream, step, kv,
            attention, scratch);
}

template <class T>
void launch_split(const StepView& step, dim3 grid, const KvView& kv, const AttentionView& attention, float* scratch,
                  cudaStream_t stream) {
  const int group = group_of(kv, attention);
  if (group <= 1) return launch_split<T, 1>(step, grid, kv, attention, scratch, stream);
  if (group <= 2) return launch_split<T, 2>(step, grid, kv, attention, scratch, stream);
  if (group <= 4) return launch_split<T, 4>(step, grid, kv, attention, scratch, stream);
  return launch_split<T, 8>(step, grid, kv, attention, scratch, stream);
}

}  // namespace

cudaError_t launch_attention_split(const StepView& step, int rows, const KvView& kv, const AttentionView& attention,
                                   int max_partitions, float* scratch, cudaStream_t stream) {
  if (!supported(kv, attention)) return cudaErrorNotSupported;
  if (rows == 0) return cudaSuccess;
  const int blocks = kv.kv_heads * head_block_count(group_of(kv, attention));
  const dim3 grid{unsigned(blocks), unsigned(max_partitions), unsigned(rows)};
  if (kv.f32)
    launch_split<float>(step, grid, kv, attention, scratch, stream);
  else
    launch_split<uint16_t>(step, grid, kv, attention, scratch, stream);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  FT_LAUNCH((attention_fold), dim3(unsigned(attention.q_heads), unsigned(rows)), dim3(unsigned((kv.v_dim + 31) / 32 * 32)),
            0, stream, step, kv.v_dim, attention, max_partitions, scratch);
  return cudaGetLastError();
}

cudaError_t launch_attention_rows(const StepView& step, int rows, const KvView& kv, const AttentionView& attention,
                                  cudaStream_t stream) {
  if (!supported(kv, attention)) return cudaErrorNotSupported;
  if (rows == 0) return cudaSuccess;
  const int group = group_of(kv, attention), tile_rows = group < kMaxQueries ? kMaxQueries / group : 1;
  const dim3 grid{unsigned(kv.kv_heads * head_block_count(group)), unsigned((rows + tile_rows - 1) / tile_rows)};
  if (kv.f32)
    FT_LAUNCH((attention_rows<float>), grid, dim3(kAttentionThreads), sizeof(RowsShared<float>), stream, step, kv,
              attention, rows, tile_rows);
  else
    FT_LAUNCH((attention_rows<uint16_t>), grid, dim3(kAttentionThreads), sizeof(RowsShared<uint16_t>), stream, step, kv,
              attention, rows, tile_rows);
  return cudaGetLastError();
}

}  // namespace freetoken::cuda
