// Where packed weights go: a device hands out host memory (the final place on the CPU, staging elsewhere), the loader packs
// into it and commits it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/memory.h"
#include "core/status.h"
#include "quant/format.h"

namespace freetoken {

// One tensor in the form the device reads.
struct PackedTensorInfo {
  std::string name;  // canonical (spec/model_spec.h); a gate/up pair of one format is "....gate_up"
  bool vector = false;                       // plain f32[n]; format is kF32, k is 1
  WeightFormat format = WeightFormat::kF32;
  int n = 0;  // rows; gate_up: 2 * inner rounded up to 16, interleaved: 16 gate rows, then 16 up rows
  int k = 0;  // columns

  size_t bytes() const { return vector ? size_t(n) * 4 : packed_bytes(format, n, k); }
};

// The tensors of one expert: one contiguous 4096-aligned span, so that one read fetches it.
struct ExtentPart {
  PackedTensorInfo tensor;
  size_t offset = 0;  // within the extent, a multiple of 64
};
struct ExtentInfo {
  std::string name;  // "layers.L.S.experts.E"
  size_t bytes = 0;  // a multiple of 4096; what follows the last part is zero
  std::vector<ExtentPart> parts;  // gate_up and down, or gate, up and down

  void append(PackedTensorInfo tensor) {
    const size_t end = parts.empty() ? 0 : parts.back().offset + parts.back().tensor.bytes();
    parts.push_back({std::move(tensor), align_up(end, 64)});
    bytes = align_up(parts.back().offset + parts.back().tensor.bytes(), 4096);
  }
};

// The loader calls from several threads, but never two calls at once. Every span it opens is overwritten whole and then
// committed, unless the load fails.
class WeightSink {
 public:
  virtual ~WeightSink() = default;
  // A span of info.bytes() host bytes, 64-byte aligned.
  virtual Result<uint8_t*> open(const PackedTensorInfo& info) = 0;
  virtual Status commit(const PackedTensorInfo& info) = 0;
  // A span of info.bytes host bytes, 4096-byte aligned.
  virtual Result<uint8_t*> open_extent(const ExtentInfo& info) = 0;
  virtual Status commit_extent(const ExtentInfo& info) = 0;
};

}  // namespace freetoken
