// Kernels over single fp32 rows: norms, residual, rotation, gated activations, softmax. Every result depends on its row
// alone, with one order of operations on every ISA level.
#pragma once
#include <cstdint>

#include "platform/cpu_features.h"
#include "spec/model_spec.h"

namespace freetoken {

struct RowKernels {
  // out = x / sqrt(mean(x^2) + eps) * w; w null = 1. Sums run on 16 lanes (lane = index mod 16) and a fixed tree.
  void (*rms_norm)(const float* x, const float* w, bool plus_one, float eps, int n, float* out);
  // out = (x - mean) / sqrt(var + eps) * w + b; w and b may be null.
  void (*layer_norm)(const float* x, const float* w, const float* b, float eps, int n, float* out);
  // x += scale * y
  void (*add_scaled)(float* x, const float* y, float scale, int n);
  // x += b
  void (*add_bias)(float* x, const float* b, int n);
  // Rotates head[offset .. offset + 2 * half): pairs (i, i + half), or (2i, 2i + 1) when interleaved.
  void (*rotate)(float* head, const float* cos, const float* sin, int half, bool interleaved);
  // out[16 t + i] = act(gate_up[32 t + i]) * gate_up[32 t + 16 + i] for t < tiles; biases are indexed like out, may be null.
  void (*gated_interleaved)(const float* gate_up, const float* gate_bias, const float* up_bias, int tiles, float* out);
  // out[i] = silu(gate[i]) * up[i]
  void (*gated)(const float* gate, const float* up, int n, float* out);
  // p = softmax(x): exp(x - max), divided by the 16-lane sum.
  void (*softmax)(const float* x, int n, float* p);
  // x[i] *= scale, then softcap * tanh(x / softcap) when softcap > 0
  void (*scale_softcap)(float* x, float scale, float softcap, int n);
};

const RowKernels& row_kernels(IsaLevel level);

}  // namespace freetoken
