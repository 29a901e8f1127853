// Operations on rows and dense matrices, one row at a time.
#include <algorithm>
#include <cmath>

#include "quant/t32.h"
#include "ref_ops/executor.h"
#include "ref_ops/poison.h"

namespace freetoken::ref {

void Executor::matmul(const Weight& w, ActivationKind kind, const float* x, float* out) {
  record_.resize(activation_row_bytes(kind, w.k) + 64);
  matmul_kernels_.encode_row(kind, x, w.k, record_.data());
  wide_.resize(size_t(tile_count(w.n)) * kTileRows);
  const uint8_t* in = record_.data();
  float* to = wide_.data();
  matmul_kernels_.matmul_tiles({w.format, w.n, w.k, weight_data(w)}, 0, tile_count(w.n), 1, kind, &in, &to, nullptr);
  std::copy_n(wide_.begin(), w.n, out);
}

void Executor::add_bias(float* x, const float* bias, int n) const {
  for (int i = 0; bias && i < n; i++) x[i] = x[i] + bias[i];
}

void Executor::linear(const View& x, const Weight& w, const float* bias, const View& out) {
  for (int r = 0; r < x.tensor.rows; r++) {
    matmul(w, kind_of(w.format), x.row(r), out.row(r));
    add_bias(out.row(r), bias, w.n);
  }
}

// out = down(silu(gate x) * up x). Interleaved matrices hold 16 gate rows, then the 16 up rows of the same columns.
void Executor::feed_forward(const FeedForward& f, const float* x, float* out) {
  std::vector<float> gate(size_t(f.inner)), up(size_t(f.inner));
  if (f.up.valid()) {
    matmul(f.gate, kind_of(f.gate.format), x, gate.data());
    matmul(f.up, kind_of(f.up.format), x, up.data());
  } else {
    inner_.resize(size_t(f.gate.n));
    matmul(f.gate, kind_of(f.gate.format), x, inner_.data());
    for (int i = 0; i < f.inner; i++) {
      gate[size_t(i)] = inner_[size_t(i / 16 * 32 + i % 16)];
      up[size_t(i)] = inner_[size_t(i / 16 * 32 + 16 + i % 16)];
    }
  }
  add_bias(gate.data(), f.gate_bias, f.inner);
  add_bias(up.data(), f.up_bias, f.inner);
  row_kernels_.gated(gate.data(), up.data(), f.inner, gate.data());
  matmul(f.down, kind_of(f.down.format), gate.data(), out);
  add_bias(out, f.down_bias, f.hidden);
}

void Executor::run(const EmbedCall& c) {
  const View out = output("out", c.out);
  const uint8_t* table = weight_data(c.table);
  source_.resize(source_row_bytes(c.table.format, c.table.k));
  for (int r = 0; r < c.out.rows; r++) {
    int32_t token = step_->rows[size_t(r)].token;
    if (token < 0) {
      if (size_t(~token) >= sampled_.size()) {
        violation("row " + std::to_string(r) + " takes what row " + std::to_string(~token) + " of the last step drew, but it sampled " +
                  std::to_string(sampled_.size()) + " rows");
        continue;
      }
      token = sampled_[size_t(~token)];
    }
    if (token < 0 || token >= c.table.n) {  // nothing could be drawn: the row is not a number, which its own draw shows
      std::fill_n(out.row(r), c.out.cols, std::nanf(""));
      continue;
    }
    uint8_t* wanted[kTileRows] = {};
    wanted[token % kTileRows] = source_.data();
    unpack_tile(c.table.format, c.table.k, table + size_t(token / kTileRows) * tile_bytes(c.table.format, c.table.k), wanted);
    decode_row(c.table.format, c.table.k, source_.data(), out.row(r));
    for (int i = 0; c.scale != 1.0f && i < c.out.cols; i++) out.row(r)[i] = out.row(r)[i] * c.scale;
  }
}

void Executor::run(const NormCall& c) {
  const View x = input("x", c.x), out = output("out", c.out);
  const float *w = vector_or_null(c.weight), *b = vector_or_null(c.bias);
  for (int r = 0; r < c.x.rows; r++) {
    if (c.spec.kind == NormKind::kRms)
      row_kernels_.rms_norm(x.row(r), w, c.spec.plus_one, c.spec.eps, c.x.cols, out.row(r));
    else
      row_kernels_.layer_norm(x.row(r), w, b, c.spec.eps, c.x.cols, out.row(r));
  }
}

void Executor::run(const LinearCall& c) {
  const View x = input("x", c.x);
  for (const LinearOutput& o : c.outputs) linear(x, o.weight, vector_or_null(o.bias), output("out", o.out));
}

void Executor::run(const AddCall& c) {
  const View x = input("x", c.x), y = input("y", c.y);
  poison_padding(x);
  outputs_.push_back(x);
  for (int r = 0; r < c.x.rows; r++) row_kernels_.add_scaled(x.row(r), y.row(r), c.scale, c.x.cols);
}

void Executor::run(const MlpCall& c) {
  const View x = input("x", c.x), out = output("out", c.out);
  const FeedForward f{c.args.gate_up,
                      c.args.up,
                      c.args.down,
                      vector_or_null(c.args.gate_bias),
                      vector_or_null(c.args.up_bias),
                      vector_or_null(c.args.down_bias),
                      c.out.cols,
                      c.args.inner};
  for (int r = 0; r < c.x.rows; r++) feed_forward(f, x.row(r), out.row(r));
}

void Executor::run(const GatherCall& c) {
  const View x = view(c.x), out = output("out", c.out);
  for (int i = 0; i < c.rows; i++) {
    const int32_t row = step_->gathers[c.data][size_t(i)];
    if (error_.ok() && find_poison(x.row(row), size_t(c.x.cols), true) < size_t(c.x.cols))
      violation("takes row " + std::to_string(row) + " of x, which was never written");
    std::copy_n(x.row(row), c.x.cols, out.row(i));
  }
}

void Executor::run(const LogitsCall& c) {
  const View x = input("x", c.x), out = output("out", c.out);
  linear(x, c.head, vector_or_null(c.bias), out);
  if (c.scale == 1.0f && c.softcap == 0.0f) return;
  for (int r = 0; r < c.x.rows; r++) row_kernels_.scale_softcap(out.row(r), c.scale, c.softcap, c.head.n);
}

}  // namespace freetoken::ref
