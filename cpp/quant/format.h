// Weight formats: the checkpoint's block form and the packed T32 form.
//
// Source form: a row of K weights is K / block_k blocks of block_bytes (as in ggml; f32, f16, bf16 have block_k 1).
// T32 form: a tile holds 32 output rows (two halves of 16), K in units of unit_k; tiles follow each other, each tile
// K_padded / unit_k * unit_bytes long. N is padded to 32 rows and K to a unit with weights that decode to zero.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/memory.h"

namespace freetoken {

enum class WeightFormat : uint8_t { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1, kQ6_K };
constexpr int kWeightFormats = 7;
constexpr int kTileRows = 32;

// What a matmul reads beside the weights. A row is encoded once per kind and read by every tile.
//   kF32        k fp32 values
//   kBF16       k bf16 values (k rounded up to even, zero-padded)
//   kZeroPoint  per 32 k {int8 q[32]; float s; int32 c = 0x4B400000 - Z * sum(q)}           40 bytes
//   kMin        per 32 k {int8 q[32]; float s; float s * sum(q)}                             40 bytes
//   kBlocks16   per 32 k {int8 q[32]; float s; int32 c of q[0..16); int32 c of q[16..32)}    44 bytes
enum class ActivationKind : uint8_t { kF32, kBF16, kZeroPoint128, kZeroPoint8, kMin, kBlocks16 };

struct FormatTraits {
  const char* name;           // as GGUF and safetensors name it, lower case
  int block_k, block_bytes;   // source form
  int unit_k, unit_bytes;     // T32 form: bytes of one unit of a 32-row tile
  ActivationKind activation;  // with --activations auto
};

constexpr FormatTraits kFormatTraits[kWeightFormats] = {
    {"f32", 1, 4, 1, 128, ActivationKind::kF32},
    {"f16", 1, 2, 2, 128, ActivationKind::kF32},
    {"bf16", 1, 2, 2, 128, ActivationKind::kBF16},
    {"q8_0", 32, 34, 32, 1088, ActivationKind::kZeroPoint128},
    {"q4_0", 32, 18, 32, 576, ActivationKind::kZeroPoint8},
    {"q4_1", 32, 20, 32, 640, ActivationKind::kMin},
    {"q6_k", 256, 210, 256, 6720, ActivationKind::kBlocks16},
};
constexpr const FormatTraits& traits(WeightFormat f) { return kFormatTraits[int(f)]; }

constexpr std::optional<WeightFormat> format_named(std::string_view name) {
  for (int f = 0; f < kWeightFormats; f++)
    if (name == kFormatTraits[f].name) return WeightFormat(f);
  return {};
}
// All of them, for messages: "f32, f16, ...".
inline std::string format_names() {
  std::string names;
  for (const FormatTraits& t : kFormatTraits) names.append(names.empty() ? "" : ", ").append(t.name);
  return names;
}

constexpr size_t source_row_bytes(WeightFormat f, int k) {
  return size_t(k) / traits(f).block_k * traits(f).block_bytes;
}
constexpr int padded_k(WeightFormat f, int k) { return int(align_up(size_t(k), size_t(traits(f).unit_k))); }
constexpr size_t tile_bytes(WeightFormat f, int k) {
  return size_t(padded_k(f, k)) / traits(f).unit_k * traits(f).unit_bytes;
}
constexpr int tile_count(int n) { return ceil_div(n, kTileRows); }
constexpr size_t packed_bytes(WeightFormat f, int n, int k) { return tile_bytes(f, k) * tile_count(n); }

constexpr size_t activation_row_bytes(ActivationKind kind, int k) {
  switch (kind) {
    case ActivationKind::kF32: return size_t(k) * 4;
    case ActivationKind::kBF16: return align_up(size_t(k), 2) * 2;
    case ActivationKind::kBlocks16: return size_t(ceil_div(k, 32)) * 44;
    default: return size_t(ceil_div(k, 32)) * 40;
  }
}

}  // namespace freetoken
