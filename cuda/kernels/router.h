// From router logits to chosen experts and their weights.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace freetoken::cuda {

constexpr int kMaxRoutedExperts = 8192;  // a row's scores lie in shared memory

enum class RouteScoring { kSoftmax, kSigmoid };

struct RouterView {
  int experts = 0, per_token = 0;          // per_token <= experts <= kMaxRoutedExperts
  RouteScoring scoring = RouteScoring::kSoftmax;
  bool normalise = false;                  // weights divided by (their sum in rank order + normalise_eps)
  float normalise_eps = 0;
  float scaling = 1;                       // then multiplied by this
  const float* selection_bias = nullptr;   // [experts] or null: added to the score to choose, not to the weight
};

// ids, weights: [rows][per_token] in rank order: descending score, ties to the lowest id, NaN last. The ids of a row are
// distinct whatever the logits are. Softmax with the CPU's order of operations (16 lanes and a tree): its bits.
// logits: [rows, experts].
cudaError_t launch_route(const RouterView& router, const float* logits, int64_t logits_stride, int rows, int32_t* ids,
                         float* weights, cudaStream_t stream);

}  // namespace freetoken::cuda
