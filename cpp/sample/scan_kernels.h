// The two inner loops of a pass over logits, for the baseline and for AVX2 with FMA; both give the same bits.
#pragma once

namespace freetoken {

// e^((logit - max) * inv_temperature) by exp_f32; NaN and what underflows weigh 0.
float scan_weight(float logit, float max, float inv_temperature);

struct ScanKernels {
  // The largest number of x[0..n), -inf when there is none. NaN is skipped.
  float (*max)(const float* x, int n);
  // Sum of scan_weight over x[0..n): lane i % 16 adds x[i] in order, then lanes l and l + 8, 4, 2, 1 are added.
  float (*sum)(const float* x, int n, float max, float inv_temperature);
  // out[i] = scan_weight of x[i].
  void (*weigh)(const float* x, int n, float max, float inv_temperature, float* out);
};

const ScanKernels& baseline_scan_kernels();  // fmaf is a library call here: about 15 times slower
const ScanKernels& scan_kernels();           // the best this CPU runs

}  // namespace freetoken
