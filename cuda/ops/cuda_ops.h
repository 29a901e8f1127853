// CudaOps: the Ops of a GPU.
//
// The calls of a step are recorded and, at its end, enqueued on one stream: after one copy of all the step's data, either one
// by one, or, for decode steps of few rows, as a graph that an earlier step of the same shape left (graph_cache.h). Nothing
// waits for the device but wait(), and begin_step() when two steps are in flight.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda/kernels/moe_matmul.h"
#include "cuda/ops/expert_tables.h"
#include "cuda/ops/kv_pools.h"
#include "cuda/ops/recorded_step.h"
#include "cuda/ops/sampler_slots.h"
#include "cuda/ops/scratch.h"
#include "cuda/ops/weight_store.h"
#include "cuda/runtime/event.h"
#include "cuda/runtime/expert_slots.h"
#include "cuda/runtime/graph_cache.h"
#include "cuda/runtime/step_block.h"
#include "cuda/runtime/upload_ring.h"
#include "ops/device_entry.h"
#include "ops/ops.h"

namespace freetoken::cuda {

struct CudaStats {
  int64_t steps = 0;
  int64_t eager = 0, captures = 0, replays = 0;  // a captured step is replayed at once
};

// Fails with the reason in words. FREETOKEN_CUDA_GRAPHS=0 in the environment: every step runs call by call.
Result<std::unique_ptr<Ops>> make_cuda_ops(const DeviceOptions& options, const HostServices& host);

class CudaOps final : public Ops {
 public:
  static Result<std::unique_ptr<CudaOps>> create(const DeviceOptions& options, const HostServices& host);
  ~CudaOps() override;

  // For tests of the device itself.
  CudaStats stats() const { return stats_; }
  void use_graphs(bool use) { use_graphs_ = use; }
  const ExpertSlots& expert_slots() const { return slots_; }
  // Between steps: other slots, all of them empty.
  Status resize_expert_slots(int slots);

  Result<uint8_t*> open(const PackedTensorInfo& info) override;
  Status commit(const PackedTensorInfo& info) override;
  Result<uint8_t*> open_extent(const ExtentInfo& info) override;
  Status commit_extent(const ExtentInfo& info) override;

  OpsInfo info() const override;
  Weight weight(const std::string& name) const override { return weights_.weight(name); }
  Tensor vector(const std::string& name) const override { return weights_.vector(name); }
  const ExpertLayout* expert_layout(const std::string& extent) const override { return weights_.expert_layout(extent); }
  uint64_t extent_address(const std::string& extent) const override { return weights_.extent_address(extent); }
  int64_t weight_bytes() const override { return weights_.bytes(); }

  Result<Tensor> allocate(DType dtype, int rows, int cols) override;
  Status allocate_kv(std::span<const KvGroup> groups, std::span<const int32_t> pages) override;
  void set_rope_tables(std::span<const RopeTable> tables) override;
  Status reserve(const OpsLimits& limits, const ModelSpec& spec) override;

  std::unique_ptr<Queue> make_queue() override;
  Status wait(Queue& queue, Ticket ticket) override;
  void begin_step(Queue& queue, const Batch& batch) override;
  Ticket end_step(Queue& queue) override;

  void copy_pages(Queue& queue, std::span<const PageCopy> copies) override;
  Ticket read_page(Queue& queue, int group, int32_t page, std::span<uint8_t> out) override;
  void write_page(Queue& queue, int group, int32_t page, std::span<const uint8_t> bytes) override;
  void open_sampler(Queue& queue, int slot, const SamplerInit& init) override;
  void advance_sampler(Queue& queue, int slot, std::span<const int32_t> tokens) override;

  void embed(Queue& queue, const Weight& table, float scale, Tensor out) override;
  void norm(Queue& queue, Tensor x, const NormSpec& spec, Tensor weight, Tensor bias, Tensor out) override;
  void linear(Queue& queue, Tensor x, std::span<const LinearOutput> outputs) override;
  void attention(Queue& queue, const AttentionArgs& args) override;
  void add(Queue& queue, Tensor x, Tensor y, float scale) override;
  void mlp(Queue& queue, Tensor x, const MlpArgs& args, Tensor out) override;
  void route(Queue& queue, Lane lane, Tensor x, const RouteArgs& args) override;
  void moe(Queue& queue, Lane lane, Tensor x, const MoeSpec& spec, const ExpertSet& experts, ExpertRange part,
           Tensor out) override;
  void gather(Queue& queue, Tensor x, std::span<const int32_t> rows, Tensor out) override;
  void logits(Queue& queue, Tensor x, const Weight& head, Tensor bias, float scale, float softcap, Tensor out) override;
  void sample(Queue& queue, Tensor logits, std::span<const SampleRow> rows, std::span<SampleResult> results) override;
  void read(Queue& queue, Tensor tensor, std::span<float> out) override;

 private:
  // Work that the host has not yet taken the results of.
  struct Pending {
    uint64_t ticket = 0;
    int ring = -1;   // of a step: where its results lie
    uint64_t slot_calls = 0;  // of a step: ExpertSlots::take_error() up to here; 0 = none
    Event done;
    Status error;
    std::vector<SampleDelivery> samples;
    std::vector<ByteDelivery> bytes;
  };
  struct Rope {
    RopeTable table;
    DeviceBuffer inv_freq, angles;  // [half]; [max_rows][2 * half], of the step at work
  };

  CudaOps(const DeviceOptions& options, const HostServices& host, Stream stream);
  Status start();
  void use_device() const { cudaSetDevice(options_.ordinal); }
  Status upload_ropes();

  // The step that is being recorded, where one is and nothing is wrong with it.
  RecordedStep* recording(const char* call);
  void record(RecordedStep& step, const char* call, std::function<cudaError_t(const StepContext&)> run) {
    step.launches.push_back({call, std::move(run)});
  }
  void fail_between(const Status& status) {
    if (between_error_.ok()) between_error_ = status;
  }
  Status fill_batch(RecordedStep& step, const Batch& batch);
  Status run(RecordedStep& step, int ring);
  Status enqueue(const RecordedStep& step, const StepContext& context);
  Ticket submit(Pending pending);
  // Waits for the oldest pending work and gives the host what is its.
  void retire();
  Result<PinnedBuffer> spare_pinned(size_t bytes);
  // Gate and up biases as the interleaved matrix has its rows.
  const float* interleaved_bias(RecordedStep& step, Tensor gate, Tensor up, int inner);
  // Where the experts of a set are: a table of addresses in device memory; null: only its resolver knows.
  Result<const uint64_t*> expert_table(const ExpertSet& experts);
  // The matmuls of the choice's range of experts; their outputs stay apart.
  void record_experts(RecordedStep& step, const ExpertChoice& choice, const ExpertLayout& layout, Tensor x, float* outputs);
  // Tokens of the rows that a step samples, on the device. Grows.
  Status reserve_sampled(int rows);

  DeviceOptions options_;
  HostServices host_;
  MemoryAccount account_;
  Stream stream_;
  UploadRing uploads_;
  WeightStore weights_;
  GraphCache graphs_;
  StepBlock block_;
  ResultBlock results_;
  Scratch scratch_;
  KvPools kv_;
  SamplerSlots samplers_;
  ExpertTables experts_;
  std::vector<DeviceBuffer> buffers_;
  std::vector<Rope> ropes_;
  DeviceBuffer usable_, sampled_;
  int max_sampled_ = 0, last_sampled_rows_ = 0;
  std::map<std::pair<uint64_t, uint64_t>, DeviceBuffer> interleaved_biases_;

  OpsLimits limits_;
  bool reserved_ = false, use_graphs_ = true;
  int max_positions_ = 0;
  RecordedStep step_;
  int ring_ = 0;
  Status between_error_;
  uint64_t next_ticket_ = 0;
  std::deque<Pending> pending_;
  std::vector<std::pair<uint64_t, Status>> errors_;  // of what was retired, by ticket
  std::vector<Event> spare_events_;
  std::vector<PinnedBuffer> spare_pinned_;
  CudaStats stats_;
  int expert_layers_ = 0, max_experts_ = 0;
  ExpertSlots slots_;  // last: it ends what the stream may still wait for
};

}  // namespace freetoken::cuda
