#include "cuda/kernels/router.h"

#include "cuda/kernels/rows_math-inl.h"

namespace freetoken::cuda {
namespace {

// e^(x - max) of all scores, then divided by their sum on 16 lanes (lane = expert mod 16) and a tree.
FT_DEV void softmax_row(const float* logits, int experts, float* scores) {
  const int lane = int(threadIdx.x) % 32;
  float highest = negative_infinity();  // a NaN in the row makes every score NaN, whatever this is
  for (int e = lane; e < experts; e += 32) highest = logits[e] > highest ? logits[e] : highest;
  for (int step = 16; step > 0; step >>= 1) {
    const float other = __shfl_xor_sync(0xffffffffu, highest, step);
    highest = other > highest ? other : highest;
  }
  for (int e = lane; e < experts; e += 32) scores[e] = exp_exact(logits[e] - highest);
  __syncwarp();
  float total = 0.0f;
  if (lane < 16)
    for (int e = lane; e < experts; e += 16) total += scores[e];
  for (int step = 8; step > 0; step >>= 1) total += __shfl_down_sync(0xffffffffu, total, step);
  total = __shfl_sync(0xffffffffu, total, 0);
  __syncwarp();
  for (int e = lane; e < experts; e += 32) scores[e] = scores[e] / total;
}

// Larger is chosen first; distinct for distinct experts, never 0.
FT_DEV uint64_t rank_key(float score, int expert) {
  const uint32_t order = score == score ? order_key(score) : 0u;
  return uint64_t(order) << 32 | ~uint32_t(expert);
}

// One warp a row; the scores of the row in shared memory.
__global__ void __launch_bounds__(32)
    route_rows(RouterView router, const float* logits, int64_t logits_stride, int32_t* ids, float* weights) {
  FT_DYNAMIC_SHARED(raw);
  float* scores = reinterpret_cast<float*>(raw);
  const int lane = int(threadIdx.x);
  const float* row = logits + blockIdx.x * logits_stride;
  int32_t* row_ids = ids + int64_t(blockIdx.x) * router.per_token;
  float* row_weights = weights + int64_t(blockIdx.x) * router.per_token;
  if (router.scoring == RouteScoring::kSoftmax)
    softmax_row(row, router.experts, scores);
  else
    for (int e = lane; e < router.experts; e += 32) scores[e] = 1.0f / (1.0f + exp_exact(-row[e]));
  __syncwarp();
  uint64_t last = ~uint64_t(0);
  float total = 0.0f;
  for (int rank = 0; rank < router.per_token; rank++) {
    uint64_t best = 0;
    for (int e = lane; e < router.experts; e += 32) {
      const float score = router.selection_bias ? scores[e] + router.selection_bias[e] : scores[e];
      const uint64_t key = rank_key(score, e);
      if (key < last && key > best) best = key;
    }
    last = max_warp(best);
    const int chosen = int(~uint32_t(last));
    total += scores[chosen];
    if (lane == 0) row_ids[rank] = chosen, row_weights[rank] = scores[chosen];
  }
  __syncwarp();
  for (int rank = lane; rank < router.per_token; rank += 32) {
    float w = row_weights[rank];
    if (router.normalise) w = w / (total + router.normalise_eps);
    row_weights[rank] = w * router.scaling;
  }
}

}  // namespace

cudaError_t launch_route(const RouterView& router, const float* logits, int64_t logits_stride, int rows, int32_t* ids,
                         float* weights, cudaStream_t stream) {
  if (router.experts < 1 || router.experts > kMaxRoutedExperts || router.per_token < 1 || router.per_token > router.experts)
    return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  FT_LAUNCH((route_rows), dim3(unsigned(rows)), dim3(32), size_t(router.experts) * sizeof(float), stream, router, logits,
            logits_stride, ids, weights);
  return cudaGetLastError();
}

}  // namespace freetoken::cuda
