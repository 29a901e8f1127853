// RefOps: the device that proves the contract of ops/ops.h.
//
// Its memory is an address space of its own; calls are only recorded, and run on a thread of the device's own once the step
// has ended; a step of a shape that was seen before runs the calls captured then. Everything that holds no value is poisoned,
// reads of it and writes beyond a tensor are violations, as are handles, sizes and page tables that make no sense. Arithmetic
// is the scalar kernels, one row at a time: the bits of every device that claims batch invariance.
//
// A violation is printed and fails every wait() from then on. A RefOps that dies with one nobody was told of ends the process.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ops/ops.h"
#include "ref_ops/device_memory.h"
#include "ref_ops/device_thread.h"
#include "ref_ops/executor.h"
#include "ref_ops/graphs.h"
#include "ref_ops/options.h"
#include "ref_ops/violations.h"

namespace freetoken::ref {

class RefOps final : public Ops {
 public:
  explicit RefOps(RefOptions options);
  ~RefOps() override;

  // For tests of the device itself.
  RefStats stats() const;
  std::vector<std::string> take_violations() { return violations_.take(); }
  // A call that does as it likes with the device's memory.
  void probe(Queue& queue, std::function<void(DeviceMemory&)> body);

  Result<uint8_t*> open(const PackedTensorInfo& info) override;
  Status commit(const PackedTensorInfo& info) override;
  Result<uint8_t*> open_extent(const ExtentInfo& info) override;
  Status commit_extent(const ExtentInfo& info) override;

  OpsInfo info() const override;
  Weight weight(const std::string& name) const override;
  Tensor vector(const std::string& name) const override;
  const ExpertLayout* expert_layout(const std::string& extent) const override;
  uint64_t extent_address(const std::string& extent) const override;
  int64_t weight_bytes() const override { return weight_bytes_; }

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
  // What was recorded since the last submission.
  struct RefQueue final : Queue {
    bool in_step = false;
    std::vector<Task> before;  // between steps
    StepData data;
    std::vector<Call> calls;
    Shape shape;
  };
  struct Staging {
    Memory memory;
    ExpertLayout layout;
  };
  struct Stored {
    PackedTensorInfo info;
    Block* block = nullptr;
  };

  // One call's checks: every method reports what is wrong once, and then the call is not recorded.
  class Check;

  RefQueue& of(Queue& queue);
  // The queue when no step is being recorded; null, and a violation, otherwise.
  RefQueue* between_steps(Queue& queue, const char* call);
  // The queue when a step is being recorded; null, and a violation, otherwise. Null too when the step already has one.
  RefQueue* in_step(Queue& queue, const char* call);
  void record(RefQueue& queue, Call call);
  Ticket submit(RefQueue& queue);
  // Also keeps the step that is being recorded from running: what it lacks or has wrong would only give more of the same.
  void reject(const char* call, const std::string& what) {
    broken_step_ = true;
    violations_.add(std::string(call) + ": " + what);
  }

  RefOptions options_;
  Violations violations_;
  DeviceMemory memory_;
  Executor executor_;
  DeviceThread device_;

  std::map<std::string, Staging> staging_;
  std::map<std::string, Stored> tensors_;
  std::map<std::string, std::pair<ExpertLayout, Block*>> extents_;
  std::map<uint64_t, PackedTensorInfo> weights_at_;
  int64_t weight_bytes_ = 0;
  int buffers_ = 0;

  OpsLimits limits_;
  bool reserved_ = false;
  int max_positions_ = 0;
  int rope_tables_ = 0;
  GraphCache graphs_;
  uint64_t next_ticket_ = 0;
  bool broken_step_ = false;
  int last_sampled_rows_ = 0;   // of the last step that sampled, as recorded
  std::atomic<int64_t> steps_{0}, captures_{0}, replays_{0};
  std::atomic<bool> told_{false};
};

}  // namespace freetoken::ref
