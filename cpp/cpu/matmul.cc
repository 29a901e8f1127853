// Dense matmuls of CpuOps: linear, mlp, logits. Inputs are encoded once per activation kind; each worker then takes one
// contiguous range of tiles, so it streams weights and the result does not depend on the number of workers.
#include <algorithm>

#include "cpu/cpu_ops.h"

namespace freetoken {
namespace {

float* row_of(Tensor t, int r) { return reinterpret_cast<float*>(t.address + r * t.row_bytes); }

PackedMatrix packed(const Weight& w) { return {w.format, w.n, w.k, reinterpret_cast<const uint8_t*>(w.address)}; }

const uint8_t* tile_at(const Weight& w, int tile) {
  return reinterpret_cast<const uint8_t*>(w.address) + size_t(tile) * tile_bytes(w.format, w.k);
}

}  // namespace

void CpuOps::matmul(const Weight& w, int tile_begin, int tile_end, int rows, ActivationKind kind,
                    const uint8_t* const* activations, float* const* out, const uint8_t* next) const {
  if (tile_begin < tile_end)
    matmul_kernels_.matmul_tiles(packed(w), tile_begin, tile_end, rows, kind, activations, out, next);
}

void CpuOps::linear(Queue&, Tensor x, std::span<const LinearOutput> outputs) {
  const int threads = pool_.threads(), rows = x.rows;
  int total_tiles = 0;
  ActivationKind kinds[2];
  int kind_count = 0;
  for (const LinearOutput& o : outputs) {
    total_tiles += tile_count(o.weight.n);
    const ActivationKind kind = kind_of(o.weight.format);
    if (std::find(kinds, kinds + kind_count, kind) != kinds + kind_count) continue;
    if (kind_count == 2) {  // a third kind: one output at a time
      for (const LinearOutput& one : outputs) linear_one(x, one);
      return;
    }
    kinds[kind_count++] = kind;
  }
  pool_.run([&](int thread) {
    for (int i = 0; i < kind_count; i++)
      for (int r = rows * thread / threads; r < rows * (thread + 1) / threads; r++)
        matmul_kernels_.encode_row(kinds[i], row_of(x, r), x.cols, input_[i].row(r));
    pool_.barrier();
    const int begin = int(int64_t(total_tiles) * thread / threads), end = int(int64_t(total_tiles) * (thread + 1) / threads);
    float** out = scratch_[thread].out.data();
    int first = 0;  // tile of this output's start in the concatenation
    for (size_t i = 0; i < outputs.size(); i++) {
      const LinearOutput& o = outputs[i];
      const int tiles = tile_count(o.weight.n), from = std::max(begin - first, 0), to = std::min(end - first, tiles);
      first += tiles;
      if (from >= to) continue;
      const int k = int(std::find(kinds, kinds + kind_count, kind_of(o.weight.format)) - kinds);
      for (int r = 0; r < rows; r++) out[r] = row_of(o.out, r);
      const uint8_t* next = end > first && i + 1 < outputs.size() ? tile_at(outputs[i + 1].weight, 0) : nullptr;
      matmul(o.weight, from, to, rows, kinds[k], input_[k].rows(), out, next);
      if (o.bias.valid()) {
        const int column = from * kTileRows, count = std::min(to * kTileRows, o.weight.n) - column;
        for (int r = 0; r < rows; r++)
          rows_.add_bias(out[r] + column, reinterpret_cast<const float*>(o.bias.address) + column, count);
      }
    }
  });
}

void CpuOps::linear_one(Tensor x, const LinearOutput& output) {
  Queue queue;
  linear(queue, x, {&output, 1});
}

void CpuOps::gated_block(const GatedWeights& w, int inner_begin, int inner_end, int rows, ActivationKind kind,
                         const uint8_t* const* activations, ActivationKind out_kind, int out_row, const uint8_t* next,
                         int thread) {
  const int count = inner_end - inner_begin;
  float* scratch = scratch_[thread].memory.as<float>();
  float** out = scratch_[thread].out.data();
  // Kernels write at out[r] + 32 * tile: shift the base so that the block starts at the scratch row.
  if (!w.up.valid()) {
    const int tile_begin = inner_begin / 16, tile_end = ceil_div(inner_end, 16), stride = (tile_end - tile_begin) * kTileRows;
    for (int r = 0; r < rows; r++) out[r] = scratch + size_t(r) * stride - int64_t(tile_begin) * kTileRows;
    matmul(w.gate, tile_begin, tile_end, rows, kind, activations, out, next);
    for (int r = 0; r < rows; r++) {
      float* row = scratch + size_t(r) * stride;
      rows_.gated_interleaved(row, w.gate_bias ? w.gate_bias + inner_begin : nullptr,
                              w.up_bias ? w.up_bias + inner_begin : nullptr, tile_end - tile_begin, row);
      matmul_kernels_.encode_row(out_kind, row, count, inner_.at(out_row + r, out_kind, inner_begin));
    }
    return;
  }
  const int tile_begin = inner_begin / kTileRows, tile_end = ceil_div(inner_end, kTileRows);
  const int stride = (tile_end - tile_begin) * kTileRows;
  for (const bool up : {false, true}) {
    for (int r = 0; r < rows; r++)
      out[r] = scratch + (size_t(r) * 2 + up) * stride - int64_t(tile_begin) * kTileRows;
    const Weight& m = up ? w.up : w.gate;
    matmul(m, tile_begin, tile_end, rows, kind_of(m.format), up ? w.up_activations : activations, out,
           up ? next : tile_at(w.up, tile_begin));
  }
  for (int r = 0; r < rows; r++) {
    float *gate = scratch + size_t(r) * 2 * stride, *up = gate + stride;
    if (w.gate_bias) rows_.add_bias(gate, w.gate_bias + inner_begin, count);
    if (w.up_bias) rows_.add_bias(up, w.up_bias + inner_begin, count);
    rows_.gated(gate, up, count, gate);
    matmul_kernels_.encode_row(out_kind, gate, count, inner_.at(out_row + r, out_kind, inner_begin));
  }
}

void CpuOps::mlp(Queue&, Tensor x, const MlpArgs& args, Tensor out) {
  const int threads = pool_.threads(), rows = x.rows, blocks = ceil_div(args.inner, 32);
  const ActivationKind kind = kind_of(args.gate_up.format), down_kind = kind_of(args.down.format);
  GatedWeights w{args.gate_up, args.up, reinterpret_cast<const float*>(args.gate_bias.address),
                 reinterpret_cast<const float*>(args.up_bias.address), input_[0].rows()};
  const bool two_kinds = args.up.valid() && kind_of(args.up.format) != kind;
  if (two_kinds) w.up_activations = input_[1].rows();
  pool_.run([&](int thread) {
    for (int r = rows * thread / threads; r < rows * (thread + 1) / threads; r++) {
      matmul_kernels_.encode_row(kind, row_of(x, r), x.cols, input_[0].row(r));
      if (two_kinds) matmul_kernels_.encode_row(kind_of(args.up.format), row_of(x, r), x.cols, input_[1].row(r));
    }
    pool_.barrier();
    const int tiles = tile_count(args.down.n), t0 = tiles * thread / threads, t1 = tiles * (thread + 1) / threads;
    const int first = blocks * thread / threads * 32, last = std::min(blocks * (thread + 1) / threads * 32, args.inner);
    for (int i = first; i < last; i += kGatedBlock) {
      const int end = std::min(i + kGatedBlock, last);
      const uint8_t* next = end < last ? tile_at(args.gate_up, args.up.valid() ? end / 32 : end / 16)
                                       : tile_at(args.down, t0);
      gated_block(w, i, end, rows, kind, input_[0].rows(), down_kind, 0, next, thread);
    }
    pool_.barrier();
    float** rows_out = scratch_[thread].out.data();
    for (int r = 0; r < rows; r++) rows_out[r] = row_of(out, r);
    matmul(args.down, t0, t1, rows, down_kind, inner_.rows(), rows_out, nullptr);
    if (args.down_bias.valid() && t0 < t1) {
      const int column = t0 * kTileRows, count = std::min(t1 * kTileRows, args.down.n) - column;
      for (int r = 0; r < rows; r++)
        rows_.add_bias(rows_out[r] + column, reinterpret_cast<const float*>(args.down_bias.address) + column, count);
    }
  });
}

void CpuOps::logits(Queue& queue, Tensor x, const Weight& head, Tensor bias, float scale, float softcap, Tensor out) {
  const LinearOutput output{head, bias, out};
  linear(queue, x, {&output, 1});
  if (scale == 1.0f && softcap == 0.0f) return;
  for (int r = 0; r < x.rows; r++) rows_.scale_softcap(row_of(out, r), scale, softcap, head.n);
}

}  // namespace freetoken
