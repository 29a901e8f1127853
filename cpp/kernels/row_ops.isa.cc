#include "kernels/row_ops.h"

#include "kernels/vec_math.h"

namespace freetoken {
namespace FT_ISA {
namespace {

void rms_norm(const float* x, const float* w, bool plus_one, float eps, int n, float* out) {
  F16 squares = set1(0.0f);
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const F16 v = load(x + i);
    squares = fma(v, v, squares);
  }
  if (i < n) {
    const F16 v = load_n(x + i, n - i);
    squares = fma(v, v, squares);
  }
  const F16 inverse = set1(1.0f / __builtin_sqrtf(sum(squares) / float(n) + eps));
  const F16 one = set1(plus_one ? 1.0f : 0.0f);
  for (i = 0; i < n; i += 16) {
    const int count = n - i < 16 ? n - i : 16;
    F16 v = mul(load_n(x + i, count), inverse);
    if (w) v = mul(v, add(load_n(w + i, count), one));
    store_n(out + i, v, count);
  }
}

void layer_norm(const float* x, const float* w, const float* b, float eps, int n, float* out) {
  F16 total = set1(0.0f);
  for (int i = 0; i < n; i += 16) total = add(total, load_n(x + i, n - i < 16 ? n - i : 16));
  const F16 mean = set1(sum(total) / float(n));
  F16 squares = set1(0.0f);
  for (int i = 0; i < n; i += 16) {
    const int count = n - i < 16 ? n - i : 16;
    float centred[16] = {};
    store_n(centred, sub(load_n(x + i, count), mean), count);
    const F16 d = load(centred);
    squares = fma(d, d, squares);
  }
  const F16 inverse = set1(1.0f / __builtin_sqrtf(sum(squares) / float(n) + eps));
  for (int i = 0; i < n; i += 16) {
    const int count = n - i < 16 ? n - i : 16;
    F16 v = mul(sub(load_n(x + i, count), mean), inverse);
    if (w) v = mul(v, load_n(w + i, count));
    if (b) v = add(v, load_n(b + i, count));
    store_n(out + i, v, count);
  }
}

void add_scaled(float* x, const float* y, float scale, int n) {
  const F16 s = set1(scale);
  for (int i = 0; i < n; i += 16) {
    const int count = n - i < 16 ? n - i : 16;
    store_n(x + i, fma(load_n(y + i, count), s, load_n(x + i, count)), count);
  }
}

void add_bias(float* x, const float* b, int n) {
  for (int i = 0; i < n; i += 16) {
    const int count = n - i < 16 ? n - i : 16;
    store_n(x + i, add(load_n(x + i, count), load_n(b + i, count)), count);
  }
}

void rotate(float* head, const float* cos, const float* sin, int half, bool interleaved) {
  if (interleaved) {
    for (int i = 0; i < half; i++) {
      const float a = head[2 * i], b = head[2 * i + 1];
      head[2 * i] = __builtin_fmaf(a, cos[i], -(b * sin[i]));
      head[2 * i + 1] = __builtin_fmaf(b, cos[i], a * sin[i]);
    }
    return;
  }
  const F16 zero = set1(0.0f);
  for (int i = 0; i < half; i += 16) {
    const int count = half - i < 16 ? half - i : 16;
    const F16 a = load_n(head + i, count), b = load_n(head + half + i, count);
    const F16 c = load_n(cos + i, count), s = load_n(sin + i, count);
    store_n(head + i, fma(a, c, sub(zero, mul(b, s))), count);
    store_n(head + half + i, fma(b, c, mul(a, s)), count);
  }
}

inline F16 silu(F16 g) { return div(g, add(set1(1.0f), exp16(sub(set1(0.0f), g)))); }

void gated_interleaved(const float* gate_up, const float* gate_bias, const float* up_bias, int tiles, float* out) {
  for (int t = 0; t < tiles; t++) {
    F16 g = load(gate_up + 32 * t), u = load(gate_up + 32 * t + 16);
    if (gate_bias) g = add(g, load(gate_bias + 16 * t));
    if (up_bias) u = add(u, load(up_bias + 16 * t));
    store(out + 16 * t, mul(silu(g), u));
  }
}

void gated(const float* gate, const float* up, int n, float* out) {
  for (int i = 0; i < n; i += 16) {
    const int count = n - i < 16 ? n - i : 16;
    store_n(out + i, mul(silu(load_n(gate + i, count)), load_n(up + i, count)), count);
  }
}

void softmax(const float* x, int n, float* p) {
  float highest = x[0];
  for (int i = 1; i < n; i++) highest = x[i] > highest ? x[i] : highest;
  F16 total = set1(0.0f);
  for (int i = 0; i < n; i += 16) {
    const int count = n - i < 16 ? n - i : 16;
    float e[16] = {};
    store_n(e, exp16(sub(load_n(x + i, count), set1(highest))), count);
    total = add(total, load(e));
    store_n(p + i, load(e), count);
  }
  const F16 denominator = set1(sum(total));
  for (int i = 0; i < n; i += 16) {
    const int count = n - i < 16 ? n - i : 16;
    store_n(p + i, div(load_n(p + i, count), denominator), count);
  }
}

// tanh(y) = 1 - 2 / (exp(2 y) + 1)
void scale_softcap(float* x, float scale, float softcap, int n) {
  for (int i = 0; i < n; i += 16) {
    const int count = n - i < 16 ? n - i : 16;
    F16 v = mul(load_n(x + i, count), set1(scale));
    if (softcap > 0.0f) {
      const F16 e = exp16(mul(v, set1(2.0f / softcap)));
      v = mul(set1(softcap), sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f)))));
    }
    store_n(x + i, v, count);
  }
}

}  // namespace

extern const RowKernels kRowKernels;
const RowKernels kRowKernels = {rms_norm, layer_norm, add_scaled, add_bias, rotate, gated_interleaved, gated, softmax,
                                scale_softcap};

}  // namespace FT_ISA
}  // namespace freetoken
