// CpuOps: the Ops of the CPU. Operations run at once, on one pool whose worker 0 is the calling (engine) thread.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/memory.h"
#include "core/thread_pool.h"
#include "cpu/activations.h"
#include "cpu/memory_filler.h"
#include "cpu/route_slot.h"
#include "cpu/weight_arena.h"
#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "kernels/row_ops.h"
#include "ops/ops.h"
#include "sample/sampler.h"
#include "sample/sampler_state.h"

namespace freetoken {

struct CpuOptions {
  int threads = 1;
  IsaLevel isa = IsaLevel::kScalar;
  bool float32_activations = false;
  std::vector<uint8_t> usable_tokens;  // per id of the output matrix: may it be sampled
};

class CpuOps final : public Ops {
 public:
  explicit CpuOps(CpuOptions options);

  // WeightSink
  Result<uint8_t*> open(const PackedTensorInfo& info) override;
  Status commit(const PackedTensorInfo& info) override { return {}; }
  Result<uint8_t*> open_extent(const ExtentInfo& info) override;
  Status commit_extent(const ExtentInfo& info) override { return {}; }

  OpsInfo info() const override;
  Weight weight(const std::string& name) const override;
  Tensor vector(const std::string& name) const override;
  const ExpertLayout* expert_layout(const std::string& extent) const override;
  uint64_t extent_address(const std::string& extent) const override;
  int64_t weight_bytes() const override { return arena_.total_bytes(); }

  Result<Tensor> allocate(DType dtype, int rows, int cols) override;
  Status allocate_kv(std::span<const KvGroup> groups, std::span<const int32_t> pages) override;
  void set_rope_tables(std::span<const RopeTable> tables) override;
  Status reserve(const OpsLimits& limits, const ModelSpec& spec) override;

  std::unique_ptr<Queue> make_queue() override;
  Status wait(Queue& queue, Ticket ticket) override;
  void begin_step(Queue& queue, const Batch& batch) override;
  Ticket end_step(Queue&) override { return {}; }

  void copy_pages(Queue&, std::span<const PageCopy> copies) override;
  Ticket read_page(Queue&, int group, int32_t page, std::span<uint8_t> out) override;
  void write_page(Queue&, int group, int32_t page, std::span<const uint8_t> bytes) override;
  void open_sampler(Queue&, int slot, const SamplerInit& init) override;
  void advance_sampler(Queue&, int slot, std::span<const int32_t> tokens) override;

  void embed(Queue&, const Weight& table, float scale, Tensor out) override;
  void norm(Queue&, Tensor x, const NormSpec& spec, Tensor weight, Tensor bias, Tensor out) override;
  void linear(Queue&, Tensor x, std::span<const LinearOutput> outputs) override;
  void attention(Queue&, const AttentionArgs& args) override;
  void add(Queue&, Tensor x, Tensor y, float scale) override;
  void mlp(Queue&, Tensor x, const MlpArgs& args, Tensor out) override;
  void route(Queue&, Lane lane, Tensor x, const RouteArgs& args) override;
  void moe(Queue&, Lane lane, Tensor x, const MoeSpec& spec, const ExpertSet& experts, ExpertRange part, Tensor out) override;
  void gather(Queue&, Tensor x, std::span<const int32_t> rows, Tensor out) override;
  void logits(Queue&, Tensor x, const Weight& head, Tensor bias, float scale, float softcap, Tensor out) override;
  void sample(Queue&, Tensor logits, std::span<const SampleRow> rows, std::span<SampleResult> results) override;
  void read(Queue&, Tensor tensor, std::span<float> out) override;

  // In place of route(): a choice made elsewhere, ids and weights [rows][per_token] in rank order, the ids of a row distinct.
  void set_route(Lane lane, int rows, int experts, int per_token, const int32_t* ids, const float* weights);

 private:
  // inner columns of one gate/up block (scratch stays in L2), and floats of scratch for the outputs of down.
  static constexpr int kGatedBlock = 128;
  static constexpr int64_t kDownScratchFloats = 1 << 19;

  struct GatedWeights {
    Weight gate;                                 // interleaved with up when `up` is not valid
    Weight up;
    const float *gate_bias = nullptr, *up_bias = nullptr;
    const uint8_t* const* up_activations = nullptr;
  };
  struct KvPool {
    KvGroup group;
    Memory memory;
    std::vector<int64_t> layer_offset;  // within a page
    int64_t page_bytes = 0;
  };
  struct Rope {
    RopeTable table;
    Memory values;  // [max_rows][half] cosines, then the sines
    float* cos(int row) const { return values.as<float>() + size_t(row) * table.inv_freq.size(); }
    float* sin(int row, int max_rows) const { return cos(max_rows + row); }
  };

  ActivationKind kind_of(WeightFormat f) const {
    return float32_activations_ ? ActivationKind::kF32 : traits(f).activation;
  }
  uint8_t* page_at(int group, int32_t page) const { return kv_[group].memory.data() + kv_[group].page_bytes * page; }
  KvHead kv_head(const AttentionArgs& args, int sequence, int head) const;
  void prepare_heads(const AttentionArgs& args, int row);
  void linear_one(Tensor x, const LinearOutput& output);
  void matmul(const Weight& w, int tile_begin, int tile_end, int rows, ActivationKind kind,
              const uint8_t* const* activations, float* const* out, const uint8_t* next) const;
  // Rows out_row.. of inner_, columns [inner_begin, inner_end) = act(gate) * up, encoded for down.
  void gated_block(const GatedWeights& w, int inner_begin, int inner_end, int rows, ActivationKind kind,
                   const uint8_t* const* activations, ActivationKind out_kind, int out_row, const uint8_t* next,
                   int thread);

  bool float32_activations_;
  IsaLevel isa_;
  const MatmulKernels& matmul_kernels_;
  const RowKernels& rows_;
  const AttentionKernels& attention_;
  ThreadPool pool_;
  std::vector<Sampler> samplers_;  // one per thread

  // Weights
  WeightArena arena_;
  std::map<std::string, std::pair<PackedTensorInfo, uint8_t*>> tensors_;
  std::map<std::string, std::pair<ExpertLayout, uint8_t*>> extents_;

  // Step
  int max_rows_ = 0;
  std::vector<BatchRow> batch_rows_;
  std::vector<BatchSequence> sequences_;
  std::vector<std::vector<int32_t>> pages_;           // [sequence * groups + group]
  std::vector<int32_t> sampled_;                       // by the last step that sampled
  bool sampled_in_step_ = false;
  struct SamplerSlot {
    std::unique_ptr<SamplerState> state;
    int32_t sample_index = 0;
  };
  std::vector<SamplerSlot> slots_;
  std::vector<KvPool> kv_;
  std::unique_ptr<MemoryFiller> kv_filler_;  // after kv_: it ends first
  std::vector<Rope> ropes_;
  std::vector<Memory> buffers_;

  // Scratch, sized by reserve()
  Activations input_[2];           // encoded inputs of linear, mlp and moe, by kind in use
  Activations inner_;              // encoded inputs of down matrices
  RouteSlot route_[kLanes];
  Tensor kept_results_;            // of a layer done in parts: [rows * experts per token, hidden]
  Tensor router_logits_;
  struct ThreadScratch {
    Memory memory;
    std::vector<float*> out;       // row pointers of one matmul
    std::vector<const uint8_t*> in;
  };
  std::vector<ThreadScratch> scratch_;
  int64_t scratch_floats_ = 0;     // per thread
  Memory partials_;                // attention partitions computed by different workers
  std::vector<ExpertAnswer> answers_;
  Status step_error_;              // the first since the last wait()
};

}  // namespace freetoken
