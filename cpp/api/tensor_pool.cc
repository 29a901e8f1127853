#include "api/tensor_pool.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <mutex>

#include "platform/topology.h"

namespace freetoken {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int64_t kBlockFloats = int64_t(1) << 23;

struct Shared {
  std::mutex mutex;
  int threads = 0;  // 0: not asked for
  struct Entry {
    std::unique_ptr<CpuOps> ops;
    OpsSize size;
  } entries[2];  // by MatmulInput
};

// Never destroyed: a thread may still compute while the process ends. After a fork the threads of the parent do not exist,
// so the child starts with a new one and never touches the old.
Shared& shared() {
  static std::mutex mutex;
  static Shared* instance = nullptr;
  static pid_t owner = 0;
  const std::lock_guard lock(mutex);
  if (const pid_t process = getpid(); owner != process) {
    Shared* next = new Shared;
    if (instance) next->threads = instance->threads;
    instance = next;
    owner = process;
  }
  return *instance;
}

int thread_count(const Shared& s) { return s.threads ? s.threads : read_topology().usable_cores; }

int rounded(int value) { return int(std::bit_ceil(unsigned(value))); }

OpsSize larger(const OpsSize& a, const OpsSize& b) {
  return {std::max(a.k, rounded(b.k)), std::max(a.inner, rounded(b.inner)), std::max(a.experts, rounded(b.experts)),
          std::max(a.per_token, rounded(b.per_token))};
}

bool covers(const OpsSize& a, const OpsSize& b) {
  return a.k >= b.k && a.inner >= b.inner && a.experts >= b.experts && a.per_token >= b.per_token;
}

ModelSpec spec_of(const OpsSize& size) {
  ModelSpec spec;
  spec.hidden = size.k;
  SublayerSpec moe;
  moe.kind = SublayerKind::kMoe;
  moe.moe.experts = size.experts;
  moe.moe.experts_per_token = size.per_token;
  moe.moe.inner = size.inner;
  LayerSpec layer;
  layer.sublayers.push_back(moe);
  spec.layers.push_back(layer);
  return spec;
}

Result<std::unique_ptr<CpuOps>> make_ops(MatmulInput input, int threads) {
  FT_ASSIGN_OR_RETURN(const IsaLevel isa, select_isa_level());
  return std::make_unique<CpuOps>(CpuOptions{
      .threads = threads, .isa = isa, .float32_activations = input == MatmulInput::kFloat32, .usable_tokens = {1}});
}

}  // namespace

int row_block(const OpsSize& size) {
  const int64_t row_floats = std::max<int64_t>(size.k, int64_t(size.per_token) * std::max(size.inner, kTileRows));
  return int(std::clamp<int64_t>(kBlockFloats / row_floats, 16, kRowBlock));
}

Status with_shared_ops(MatmulInput input, const OpsSize& size, const OpsBody& body) {
  return guarded("computing", [&]() -> Status {
    Shared& s = shared();
    const std::lock_guard lock(s.mutex);
    const KeepFloatMode keep;
    Shared::Entry& entry = s.entries[input == MatmulInput::kFloat32];
    if (!entry.ops || !covers(entry.size, size)) {
      const OpsSize grown = larger(entry.size, size);
      entry.ops.reset();
      FT_ASSIGN_OR_RETURN(std::unique_ptr<CpuOps> ops, make_ops(input, thread_count(s)));
      FT_RETURN_IF_ERROR(ops->reserve({.max_rows = row_block(grown), .max_sequences = 1, .sampler_slots = 0}, spec_of(grown)));
      entry = {std::move(ops), grown};
    }
    Queue queue;
    return body(*entry.ops, queue, row_block(entry.size));
  });
}

Result<std::unique_ptr<CpuOps>> make_tensor_ops(MatmulInput input) { return make_ops(input, tensor_threads()); }

void begin_plain_step(CpuOps& ops, Queue& queue, int rows) {
  std::vector<BatchRow> batch_rows(rows);
  for (int r = 0; r < rows; r++) batch_rows[r].position = r;
  const BatchSequence sequence{.first_row = 0, .row_count = rows};
  ops.begin_step(queue, {.rows = batch_rows, .sequences = {&sequence, 1}});
}

Result<WeightFormat> checked_format(const WeightSource& weight, const std::string& what) {
  const auto format = format_named(weight.format);
  if (!format) return InvalidArgument(what + ": no weight format '" + weight.format + "'; known are " + format_names());
  const int block_k = traits(*format).block_k;
  if (weight.n < 1 || weight.n > kMaxTensorRows || weight.k < 1 || weight.k > kMaxTensorColumns)
    return InvalidArgument(what + " is " + std::to_string(weight.n) + " x " + std::to_string(weight.k) +
                           ": rows must be 1 to " + std::to_string(kMaxTensorRows) + ", columns 1 to " +
                           std::to_string(kMaxTensorColumns));
  if (weight.k % block_k)
    return InvalidArgument(what + ": " + std::to_string(weight.k) + " columns are no whole blocks of " +
                           std::to_string(block_k) + ", as " + weight.format + " has");
  return *format;
}

int64_t weight_row_bytes(const std::string& format, int64_t k) {
  const auto known = format_named(format);
  if (!known || k < 1 || k > kMaxTensorColumns || k % traits(*known).block_k) return 0;
  return k / traits(*known).block_k * traits(*known).block_bytes;
}

int64_t weight_row_columns(const std::string& format, int64_t row_bytes) {
  const auto known = format_named(format);
  if (!known || row_bytes < 1 || row_bytes % traits(*known).block_bytes) return 0;
  return row_bytes / traits(*known).block_bytes * traits(*known).block_k;
}

Status set_tensor_threads(int threads) {
  if (threads < 0 || threads > kMaxThreads)
    return InvalidArgument(std::to_string(threads) + " threads: must be 0 (one per usable core) to " + std::to_string(kMaxThreads));
  Shared& s = shared();
  const std::lock_guard lock(s.mutex);
  s.threads = threads;
  for (Shared::Entry& entry : s.entries) entry = {};
  return {};
}

int tensor_threads() {
  Shared& s = shared();
  const std::lock_guard lock(s.mutex);
  return thread_count(s);
}

}  // namespace freetoken
