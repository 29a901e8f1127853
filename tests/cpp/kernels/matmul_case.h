// A matrix, activation rows and outputs for the matmul tests.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/fp_env.h"
#include "kernels/matmul.h"
#include "quant/random_weights.h"
#include "quant/t32.h"

namespace freetoken::testing {

// A packed matrix with its source rows and decoded values.
struct Matrix {
  WeightFormat format;
  int n, k;
  std::vector<uint8_t> source;
  Memory packed;

  Matrix(WeightFormat f, int n_, int k_, std::vector<uint8_t> rows) : format(f), n(n_), k(k_), source(std::move(rows)) {
    packed = std::move(*Memory::allocate(packed_bytes(f, n, k)));
    pack_matrix(f, n, k, source.data(), packed.data());
  }
  PackedMatrix view() const { return {format, n, k, packed.data()}; }
  std::vector<float> decoded() const {  // n x k
    std::vector<float> w(size_t(n) * size_t(k));
    for (int i = 0; i < n; i++)
      decode_row(format, k, source.data() + size_t(i) * source_row_bytes(format, k), w.data() + size_t(i) * size_t(k));
    return w;
  }
};

// Encoded rows at odd addresses, each followed by bytes that must not matter.
struct Activations {
  std::vector<uint8_t> bytes;
  std::vector<const uint8_t*> rows;

  Activations(const MatmulKernels& kernels, ActivationKind kind, const std::vector<float>& x, int m, int k) {
    const size_t stride = activation_row_bytes(kind, k) + 13;
    bytes.assign(stride * size_t(m) + 64, 0xa5);
    for (int i = 0; i < m; i++) {
      uint8_t* row = bytes.data() + stride * size_t(i) + 1;
      kernels.encode_row(kind, x.data() + size_t(i) * size_t(k), k, row);
      rows.push_back(row);
    }
  }
};

// m output rows of whole tiles with a guard after each, filled with a pattern.
struct Outputs {
  static constexpr uint32_t kFill = 0x7f123456u;
  size_t width, stride;
  std::vector<float> values;
  std::vector<float*> rows;

  Outputs(int m, int n) : width(size_t(tile_count(n)) * kTileRows), stride(width + 5) {
    values.assign(stride * size_t(m), std::bit_cast<float>(kFill));
    for (int i = 0; i < m; i++) rows.push_back(values.data() + stride * size_t(i));
  }
  uint32_t bits(int m, size_t column) const { return std::bit_cast<uint32_t>(values[stride * size_t(m) + column]); }
};

inline bool is_native(WeightFormat f, ActivationKind kind) { return kind == traits(f).activation; }

inline std::string case_name(IsaLevel level, WeightFormat f, ActivationKind kind) {
  return std::string(isa_name(level)) + "_" + traits(f).name + (kind == ActivationKind::kF32 ? "_f32" : "_native");
}

// Activation kinds a format is used with: its own, and fp32 where that is another.
inline std::vector<ActivationKind> kinds_of(WeightFormat f) {
  if (traits(f).activation == ActivationKind::kF32) return {ActivationKind::kF32};
  return {traits(f).activation, ActivationKind::kF32};
}

inline std::vector<float> random_activations(int m, int k, std::mt19937& rng, int low = -6, int high = 3) {
  std::vector<float> x(size_t(m) * size_t(k));
  for (auto& v : x) v = random_value(rng, low, high);
  return x;
}

}  // namespace freetoken::testing
