// Construction, memory and weights.
#include "cuda/ops/cuda_ops.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/memory.h"
#include "cuda/ops/support.h"
#include "cuda/runtime/cuda_status.h"

namespace freetoken::cuda {
namespace {

constexpr size_t kStepBlockBytes = size_t(256) << 10;

struct CudaQueue final : Queue {};

}  // namespace

Result<std::unique_ptr<Ops>> make_cuda_ops(const DeviceOptions& options, const HostServices& host) {
  FT_ASSIGN_OR_RETURN(std::unique_ptr<CudaOps> ops, CudaOps::create(options, host));
  const char* graphs = std::getenv("FREETOKEN_CUDA_GRAPHS");
  if (graphs && graphs == std::string("0")) ops->use_graphs(false);
  return std::unique_ptr<Ops>(std::move(ops));
}

Result<std::unique_ptr<CudaOps>> CudaOps::create(const DeviceOptions& options, const HostServices& host) {
  FT_RETURN_IF_ERROR(check_options(options));
  FT_CUDA_RETURN_IF_ERROR(cudaSetDevice(options.ordinal), "cudaSetDevice(" + std::to_string(options.ordinal) + ")");
  FT_ASSIGN_OR_RETURN(Stream stream, Stream::create());
  std::unique_ptr<CudaOps> ops(new CudaOps(options, host, std::move(stream)));
  FT_RETURN_IF_ERROR(ops->start());
  return ops;
}

CudaOps::CudaOps(const DeviceOptions& options, const HostServices& host, Stream stream)
    : options_(options),
      host_(host),
      account_(options.memory_limit_bytes),
      stream_(std::move(stream)),
      uploads_(account_, stream_.get()),
      weights_(account_, options.expert_slots > 0),
      graphs_(stream_.get()),
      samplers_(account_, stream_.get(), uploads_),
      experts_(account_, stream_.get(), uploads_),
      slots_(account_, stream_.get()) {}

CudaOps::~CudaOps() {
  use_device();  // for the members, which wait for the stream
}

Status CudaOps::start() {
  FT_RETURN_IF_ERROR(weights_.init());
  FT_RETURN_IF_ERROR(block_.init(kStepBlockBytes));
  const std::vector<uint8_t>& usable = options_.usable_tokens;
  FT_ASSIGN_OR_RETURN(usable_, DeviceBuffer::allocate(account_, "the list of usable tokens", usable.size()));
  if (usable.empty()) return {};
  FT_CUDA_RETURN_IF_ERROR(cudaMemcpy(usable_.data(), usable.data(), usable.size(), cudaMemcpyHostToDevice),
                          "the list of usable tokens");
  return {};
}

OpsInfo CudaOps::info() const {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, options_.ordinal);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, options_.ordinal);
  return {.device = "cuda",
          .isa = "sm_" + std::to_string(10 * major + minor),
          .threads = options_.threads,
          .batch_invariant = true};
}

Result<uint8_t*> CudaOps::open(const PackedTensorInfo& info) {
  use_device();
  return weights_.open(info);
}

Status CudaOps::commit(const PackedTensorInfo& info) {
  use_device();
  return weights_.commit(info);
}

Result<uint8_t*> CudaOps::open_extent(const ExtentInfo& info) {
  use_device();
  return weights_.open_extent(info);
}

Status CudaOps::commit_extent(const ExtentInfo& info) {
  use_device();
  return weights_.commit_extent(info);
}

Result<Tensor> CudaOps::allocate(DType dtype, int rows, int cols) {
  use_device();
  const int64_t row_bytes = int64_t(align_up(size_t(cols), kTileRows)) * dtype_bytes(dtype);
  const std::string what = "a buffer [" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
  const size_t bytes = size_t(row_bytes) * size_t(rows);
  FT_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::allocate(account_, what, bytes));
  if (bytes > 0) FT_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(buffer.data(), 0, bytes, stream_.get()), "clearing " + what);
  const Tensor tensor{reinterpret_cast<uint64_t>(buffer.data()), dtype, rows, cols, row_bytes};
  buffers_.push_back(std::move(buffer));
  return tensor;
}

Status CudaOps::allocate_kv(std::span<const KvGroup> groups, std::span<const int32_t> pages) {
  use_device();
  FT_RETURN_IF_ERROR(stream_.synchronize());
  graphs_.clear();  // they hold the old pools' addresses
  return kv_.allocate(account_, groups, pages, stream_.get());
}

void CudaOps::set_rope_tables(std::span<const RopeTable> tables) {
  ropes_.clear();
  for (const RopeTable& table : tables) ropes_.push_back({table, {}, {}});
}

Status CudaOps::upload_ropes() {
  for (size_t i = 0; i < ropes_.size(); i++) {
    Rope& rope = ropes_[i];
    const size_t bytes = rope.table.inv_freq.size() * sizeof(float);
    const std::string what = "rope table " + std::to_string(i);
    FT_ASSIGN_OR_RETURN(rope.inv_freq, DeviceBuffer::allocate(account_, what, bytes));
    FT_ASSIGN_OR_RETURN(rope.angles, DeviceBuffer::allocate(account_, what, 2 * bytes * size_t(limits_.max_rows)));
    if (bytes == 0) continue;
    FT_ASSIGN_OR_RETURN(const uint8_t* staged, uploads_.stage(rope.table.inv_freq.data(), bytes));
    FT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(rope.inv_freq.data(), staged, bytes, cudaMemcpyHostToDevice, stream_.get()), what);
  }
  return {};
}

Status CudaOps::reserve(const OpsLimits& limits, const ModelSpec& spec) {
  use_device();
  FT_RETURN_IF_ERROR(check_spec(spec));
  limits_ = limits;
  max_positions_ = spec.max_positions;
  const int vocab = int(options_.usable_tokens.size());
  FT_RETURN_IF_ERROR(weights_.trim());
  FT_RETURN_IF_ERROR(scratch_.reserve(account_, limits, spec, vocab));
  FT_RETURN_IF_ERROR(samplers_.reserve(limits.sampler_slots, vocab));
  FT_RETURN_IF_ERROR(upload_ropes());
  FT_RETURN_IF_ERROR(reserve_sampled(limits.max_rows));
  expert_layers_ = max_experts_ = 0;
  for (const LayerSpec& layer : spec.layers)
    for (const SublayerSpec& s : layer.sublayers)
      if (s.kind == SublayerKind::kMoe) expert_layers_++, max_experts_ = std::max(max_experts_, s.moe.experts);
  // A set's number is its resolver's: of the layers with experts, or of all.
  expert_layers_ = std::max(expert_layers_, int(spec.layers.size()));
  if (options_.expert_slots > 0 && max_experts_ > 0) FT_RETURN_IF_ERROR(resize_expert_slots(options_.expert_slots));
  reserved_ = true;
  return {};
}

Status CudaOps::resize_expert_slots(int slots) {
  use_device();
  graphs_.clear();  // they hold the old slots' addresses
  return slots_.resize(slots, weights_.max_extent_bytes(), expert_layers_, max_experts_);
}

Status CudaOps::reserve_sampled(int rows) {
  if (rows <= max_sampled_) return {};
  // The step that is being recorded may read what an earlier one drew.
  FT_ASSIGN_OR_RETURN(DeviceBuffer larger, DeviceBuffer::allocate(account_, "sampled tokens", size_t(rows) * 2 * sizeof(int32_t)));
  if (max_sampled_ > 0)
    FT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(larger.data(), sampled_.data(), size_t(max_sampled_) * sizeof(int32_t),
                                            cudaMemcpyDeviceToDevice, stream_.get()), "sampled tokens");
  FT_RETURN_IF_ERROR(stream_.synchronize());
  graphs_.clear();
  sampled_ = std::move(larger);
  max_sampled_ = rows * 2;
  return {};
}

std::unique_ptr<Queue> CudaOps::make_queue() { return std::make_unique<CudaQueue>(); }

}  // namespace freetoken::cuda
