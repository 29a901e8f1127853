// What happens to queries, keys and values before attention: norm of each head, rotation, append to the cache.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/attention.h"
#include "cuda/kernels/step_view.h"

namespace freetoken::cuda {

// A RopeTable on the device.
struct RopeView {
  const float* inv_freq = nullptr;  // [half]
  int half = 0;                     // pairs that rotate
  float attention_factor = 1;       // multiplies cosines and sines
  bool interleaved = false;         // pairs (2i, 2i + 1), else (i, i + half)
  int offset = 0;                   // first rotated element of a head
};

// angles[r] = half cosines, then half sines, of fp32(position of r * inv_freq), computed in double and rounded to fp32 as
// the CPU does, times attention_factor. Once per step and table. angles: [rows][2 * half].
cudaError_t launch_rope_angles(const StepView& step, int rows, const RopeView& rope, float* angles, cudaStream_t stream);

struct HeadNorm {
  bool rms = false;               // else none
  bool plus_one = false;
  float eps = 0;
  const float* weight = nullptr;  // [qk_dim] or null = 1
};

struct PrepareArgs {
  float* q = nullptr;             // [rows, q_heads * qk_dim]: normed and rotated in place
  const float* k = nullptr;       // [rows, kv_heads * qk_dim]
  const float* v = nullptr;       // [rows, kv_heads * v_dim]
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;
  int q_heads = 0;
  HeadNorm q_norm, k_norm;
  RopeView rope;
  const float* angles = nullptr;  // launch_rope_angles() of the same step; null = no rotation
};

// Heads of q: normed, rotated (pair (a, b) -> (a c - b s, b c + a s)), written back. Heads of k likewise, written with v into
// the pages at their row's position, rounded to the cache's type. One warp a head; sums on a fixed tree.
cudaError_t launch_prepare_heads(const StepView& step, int rows, const KvView& kv, const PrepareArgs& args,
                                 cudaStream_t stream);

}  // namespace freetoken::cuda
