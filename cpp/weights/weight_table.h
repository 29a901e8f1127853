// WeightTable: where the bytes of each canonical tensor lie. Python builds it from safetensors and GGUF headers.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "quant/format.h"

namespace freetoken {

struct WeightEntry {
  std::string name;    // canonical, spec/model_spec.h
  int file = 0;        // index into WeightTable::files
  int64_t offset = 0;  // bytes
  int64_t bytes = 0;
  WeightFormat format = WeightFormat::kF32;
  int n = 0;           // rows, or elements of a vector
  int k = 0;           // columns; 0 = a vector
  std::string source;  // name in the checkpoint, for errors
  int rotary_heads = 0;  // > 0: rows are stored as rotary pairs per head and belong in halves order of that many heads
};

struct WeightTable {
  std::vector<std::string> files;  // absolute paths
  std::vector<WeightEntry> tensors;
};

constexpr int64_t kMaxTensors = int64_t(16) << 20;
constexpr int kMaxFiles = 512;          // all are open while loading
constexpr int kMaxDimension = 1 << 28;  // rows or columns of one tensor

// Strict: unknown or missing fields, duplicate names, dimensions that do not match the bytes for the format are errors that
// name the tensor. Reads no file.
Result<WeightTable> parse_weight_table(const std::string& json);

// One entry by itself: the bytes match shape and format, rotary heads divide the rows, a vector is f32, f16 or bf16.
Status check_weight_entry(const WeightEntry& entry);

// The table against the files themselves: each exists, is regular and long enough. Names file and tensor.
Status check_weight_files(const WeightTable& table);

}  // namespace freetoken
