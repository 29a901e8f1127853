// Dense matmuls on T32 weights: linear, logits, gated feed-forward. One formula per output element, whatever the number
// of rows and whichever kernel runs, so a row's bits depend on that row alone:
//
//   K is cut into partitions(k) = clamp(ceil(k / 256), 1, 8) pieces of equal length (rounded up to 32); each piece is
//   summed on its own from zero, the sums are added in ascending order, then come bias, scale and softcap.
//   bf16        x rounded to bf16; per 16 k one mma.m16n8k16 into the piece's fp32 sum
//   q4_0, q8_0  x rounded to bf16; per 32 k: part = two mma over the integer codes; sum = fma(d, part, sum)
//   q4_1        as q4_0, then sum = fma(m, two mma over ones and x, sum)
//   q6_k        x rounded to bf16; per 16 k: part = one mma over the integer codes; sum = fma(d * scale, part, sum)
//   f32, f16    x stays fp32; four chains of fma in ascending k (k or pairs of k dealt in turn), added as (0+1)+(2+3)
//
// x: fp32 [rows, k], x_stride floats apart; outputs likewise. Rows start at multiples of 16 bytes and strides are
// multiples of 4 floats. Weights: T32 bytes, 16-byte aligned. Elements past n of an output row are not written.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "quant/format.h"

namespace freetoken::cuda {

struct Rows {
  const float* data = nullptr;
  int64_t stride = 0;  // floats
};

struct LinearTarget {
  const void* weight = nullptr;  // T32 [n, k]
  WeightFormat format = WeightFormat::kF32;
  int n = 0;
  const float* bias = nullptr;   // [n] or null
  float* out = nullptr;          // [rows, n]
  int64_t out_stride = 0;        // floats
};
constexpr int kMaxLinearTargets = 8;

// Formats that launch_linear(), launch_logits() and launch_gated() run: all of WeightFormat.
bool linear_supports(WeightFormat format);

// targets[i].out[r] = x[r] W_i^T + bias_i for r < rows. One launch for all targets of one format.
cudaError_t launch_linear(Rows x, int rows, int k, const LinearTarget* targets, int count, cudaStream_t stream);

// As launch_linear(), but x stays fp32 whatever the format (routers): f32, f16, bf16.
bool linear_f32_supports(WeightFormat format);
cudaError_t launch_linear_f32(Rows x, int rows, int k, const LinearTarget& target, cudaStream_t stream);

// out[r] = cap(scale * (x[r] W^T + bias)), cap(v) = softcap * tanh(v / softcap) when softcap > 0, v otherwise.
cudaError_t launch_logits(Rows x, int rows, int k, const LinearTarget& head, float scale, float softcap,
                          cudaStream_t stream);

// A gate/up pair in one matrix, interleaved by 16 rows: tile t holds gate rows 16 t .. 16 t + 15, then the up rows of
// these.
struct GatedTarget {
  const void* weight = nullptr;
  WeightFormat format = WeightFormat::kF32;
  int inner = 0;
  const float* gate_bias = nullptr;  // [inner] or null
  const float* up_bias = nullptr;
  float* out = nullptr;              // [rows, inner]
  int64_t out_stride = 0;
};

// out[r] = silu(gate x[r] + gate_bias) * (up x[r] + up_bias), silu(v) = v / (1 + exp(-v)).
// Formats with bf16 activations only (gated_supports): for f32, f16 and for pairs of two formats use launch_linear()
// and launch_gated_rows().
bool gated_supports(WeightFormat format);
cudaError_t launch_gated(Rows x, int rows, int k, const GatedTarget& target, cudaStream_t stream);

// out[r][i] = silu(gate[r][i]) * up[r][i] for i < n; biases are part of launch_linear(). out may be gate or up.
cudaError_t launch_gated_rows(Rows gate, Rows up, int rows, int n, float* out, int64_t out_stride, cudaStream_t stream);

// The number of pieces K is cut into, and their length.
constexpr int matmul_partitions(int k) { return k <= 256 ? 1 : k > 1792 ? 8 : (k + 255) / 256; }
constexpr int matmul_partition_k(int k) {
  const int pieces = matmul_partitions(k);
  return ((k + pieces - 1) / pieces + 31) / 32 * 32;
}

}  // namespace freetoken::cuda
