// Causal attention over a paged cache of keys and values: grouped queries, sliding window, soft cap, sinks.
//
// A page holds page_tokens positions of every layer of its KV group; a layer starts layer_offset bytes into it and holds, per
// KV head, keys, then values. A key element d of position p (within the page) lies at
//   (d / E * page_tokens + p) * E + d % E,   E = 16 bytes / element size (8 bf16, 4 f32),
// so that threads that each own one position read 16 bytes each, side by side. Values are rows: p * v_dim + d.
//
// Per query (row, head), visible positions [begin, end):
//   score(j) = (chain of fma over ascending d of q[d] k_j[d]) * scale, then softcap * tanh(score / softcap) where asked
//   per partition of 256 absolute positions: m = max, e_j = exp(score_j - m), l = sum of e over a fixed tree,
//     acc[d] = sum over streams (position mod S) of chains of fma over ascending j of e_j v_j[d], streams added in order
//   partitions fold in ascending order: M = max(m, m_p), l = l exp(m - M) + l_p exp(m_p - M), acc likewise
//   a sink of the head folds last, as a position with that score and no value; out = acc / l
// Both launchers below compute exactly this, so a row's bits depend neither on the launcher nor on the other rows.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/step_view.h"

namespace freetoken::cuda {

constexpr int kAttentionPartition = 256;  // positions
constexpr int kMaxHeadDim = 256;          // qk_dim and v_dim

// One layer's part of the pages of its KV group.
struct KvView {
  uint8_t* pool = nullptr;         // page 0
  int64_t page_bytes = 0;          // from page to page, a multiple of 16 (32 keeps sectors whole)
  int64_t layer_offset = 0;        // likewise
  int32_t page_tokens = 0;
  int32_t kv_heads = 0, qk_dim = 0, v_dim = 0;  // dims: multiples of 8 (bf16) or 4 (f32), at most kMaxHeadDim
  int32_t group = 0;               // in StepView::page_table
  bool f32 = false;                // elements, else bf16
};

struct AttentionView {
  const float* q = nullptr;        // [rows, q_heads * qk_dim], normed and rotated
  int64_t q_stride = 0;
  float* out = nullptr;            // [rows, q_heads * v_dim]
  int64_t out_stride = 0;
  int32_t q_heads = 0;
  int32_t window = 0;              // positions seen, the row's own included; 0 = all
  float scale = 0;
  float softcap = 0;               // 0 = none
  const float* sinks = nullptr;    // [q_heads] or null
};

// Floats of scratch that launch_attention_split() needs.
constexpr int64_t attention_scratch_floats(int rows, int q_heads, int v_dim, int max_partitions) {
  return int64_t(rows) * q_heads * max_partitions * (v_dim + 2);
}

// For few rows: a block for each (row, KV head, partition), then the fold. max_partitions bounds the partitions of any row
// (ceil((position + 1) / 256)); blocks of partitions that a row does not see leave at once, so a captured launch may serve
// growing positions.
cudaError_t launch_attention_split(const StepView& step, int rows, const KvView& kv, const AttentionView& attention,
                                   int max_partitions, float* scratch, cudaStream_t stream);

// For many rows: a block takes a few rows and walks their partitions. No scratch.
cudaError_t launch_attention_rows(const StepView& step, int rows, const KvView& kv, const AttentionView& attention,
                                  cudaStream_t stream);

// Copies pages in the order of the list: from_to holds `count` pairs (from, to) in device memory. A later copy may overwrite
// what an earlier one has read. Other page moves are plain cudaMemcpyAsync of page_bytes at pool + page * page_bytes.
cudaError_t launch_copy_pages(uint8_t* pool, int64_t page_bytes, const int32_t* from_to, int count, cudaStream_t stream);

}  // namespace freetoken::cuda
