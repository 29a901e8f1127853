// A step as CudaOps keeps it between begin_step and end_step: its shape, its launches, and what the host gets of it.
#pragma once
#include <bit>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels/step_view.h"
#include "cuda/runtime/graph_cache.h"
#include "cuda/runtime/memory.h"
#include "cuda/runtime/step_block.h"
#include "ops/ops.h"

namespace freetoken::cuda {

// What a launch is given when it runs: addresses that exist only then.
struct StepContext {
  StepView view;
  const StepBlock* block = nullptr;
  const ResultBlock* results = nullptr;
  cudaStream_t stream = nullptr;

  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(block->device(offset));
  }
  template <class T>
  T* result_at(size_t offset) const {
    return reinterpret_cast<T*>(results->device(offset));
  }
};

struct Launch {
  const char* call = "";
  std::function<cudaError_t(const StepContext&)> run;
};

// Results of one sample() call, in the result block.
struct SampleDelivery {
  std::span<SampleResult> out;
  size_t results = 0, top_ids = 0, top_logprobs = 0;
  int top_stride = 0;
};
// Bytes that the device writes to pinned memory, for the host's span.
struct ByteDelivery {
  std::span<uint8_t> out;
  PinnedBuffer pinned;
};

// An add() that is still the last launch: a norm() of the same rows takes it into its own.
struct RecordedAdd {
  size_t launch = size_t(-1);
  Tensor x, y;
  float scale = 0;
};

struct RecordedStep {
  bool open = false;
  int rows = 0, sequences = 0, sampled_rows = 0;
  int last_position = -1;
  int max_token = -1;
  bool capturable = true;
  int slot_rounds = 0;             // calls of ExpertSlots
  ShapeKey key;
  std::vector<Launch> launches;
  std::vector<SampleDelivery> samples;
  std::vector<ByteDelivery> reads;
  Status error;
  // Where the batch lies in the block.
  size_t row_token = 0, row_position = 0, row_sequence = 0, page_table = 0;
  int64_t group_stride = 0, sequence_stride = 0;
  int partitions = 1;              // at least what any row sees, a power of two: part of the shape
  RecordedAdd add;
  std::vector<bool> angles;        // by rope table: its launch is already there

  void fail(const char* call, const std::string& what) {
    if (error.ok()) error = InvalidArgument(std::string(call) + ": " + what);
  }
};

// Appends what a call's shape is made of.
class KeyWriter {
 public:
  KeyWriter(ShapeKey& key, const char* call) : key_(key) { *this << reinterpret_cast<uint64_t>(call); }
  KeyWriter& operator<<(uint64_t n) {
    key_.push_back(n);
    return *this;
  }
  KeyWriter& operator<<(int64_t n) { return *this << uint64_t(n); }
  KeyWriter& operator<<(int n) { return *this << uint64_t(int64_t(n)); }
  KeyWriter& operator<<(bool b) { return *this << uint64_t(b); }
  KeyWriter& operator<<(float f) { return *this << uint64_t(std::bit_cast<uint32_t>(f)); }
  KeyWriter& operator<<(const void* p) { return *this << reinterpret_cast<uint64_t>(p); }
  KeyWriter& operator<<(const Tensor& t) { return *this << t.address << t.rows << t.cols << t.row_bytes; }
  KeyWriter& operator<<(const Weight& w) { return *this << w.address << int(w.format) << w.n << w.k; }
  KeyWriter& operator<<(const NormSpec& s) {
    return *this << int(s.kind) << s.plus_one << s.has_weight << s.has_bias << s.eps;
  }

 private:
  ShapeKey& key_;
};

}  // namespace freetoken::cuda
