// Executor: the device's side. Runs the captured calls of a step on the scalar kernels, one row, one head, one expert at a
// time, between checks of what is read and what is written. Used by the device thread alone once steps are submitted.
#pragma once
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "kernels/row_ops.h"
#include "ref_ops/calls.h"
#include "ref_ops/device_memory.h"
#include "ref_ops/kv_pages.h"
#include "ref_ops/mailbox.h"
#include "ref_ops/options.h"
#include "ref_ops/violations.h"
#include "sample/sampler.h"
#include "sample/sampler_state.h"

namespace freetoken::ref {

// What open_sampler() was given, owned.
struct OwnedSamplerInit {
  SamplingParams params;
  std::vector<int32_t> prompt, sampled, end_tokens;
  SamplerInit init;  // its numbers
};

class Executor {
 public:
  Executor(const RefOptions& options, DeviceMemory& memory, Violations& violations);

  // Before steps.
  void set_rope_tables(std::span<const RopeTable> tables) { ropes_.assign(tables.begin(), tables.end()); }
  Status allocate_kv(std::span<const KvGroup> groups, std::span<const int32_t> pages);
  void reserve(const OpsLimits& limits) { slots_.resize(size_t(limits.sampler_slots)); }
  const std::vector<KvPages>& kv() const { return kv_; }

  // Between steps.
  void copy_pages(std::span<const PageCopy> copies);
  void read_page(int group, int32_t page, std::span<uint8_t> out);
  void write_page(int group, int32_t page, std::span<const uint8_t> bytes);
  void open_sampler(int slot, const OwnedSamplerInit& owned);
  void advance_sampler(int slot, std::span<const int32_t> tokens);

  // Runs the calls with this data. What the host gets is written at the very end.
  Status run_step(const std::vector<Call>& calls, const StepData& data);

  int64_t posted_experts() const { return posted_experts_; }
  int64_t answered_experts() const { return answered_experts_; }

 private:
  // A tensor's rows where this device can read them.
  struct View {
    uint8_t* data = nullptr;
    Tensor tensor;
    float* row(int r) const { return reinterpret_cast<float*>(data + r * tensor.row_bytes); }
  };
  // What a lane keeps of its last route(), and of a layer that is done in parts.
  struct LaneState {
    int rows = 0, experts = 0, per_token = 0;
    std::vector<int32_t> ids;     // [rows * per_token], in rank order
    std::vector<float> weights;
    std::vector<float> results;   // [rows * per_token, hidden]
    int next = 0;                 // where the next part begins
    uint64_t input = 0;           // checksum of x, between parts
  };
  struct SamplerSlot {
    std::unique_ptr<SamplerState> state;
    int32_t sample_index = 0;
  };
  struct FeedForward {
    Weight gate, up, down;        // gate interleaved with up where up is not valid
    const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
    int hidden = 0, inner = 0;
  };

  void run(const EmbedCall& c);
  void run(const NormCall& c);
  void run(const LinearCall& c);
  void run(const AttentionCall& c);
  void run(const AddCall& c);
  void run(const MlpCall& c);
  void run(const RouteCall& c);
  void run(const MoeCall& c);
  void run(const GatherCall& c);
  void run(const LogitsCall& c);
  void run(const SampleCall& c);
  void run(const ReadCall& c);
  void run(const ProbeCall& c);

  // Reports with the call's name.
  void violation(const std::string& what);
  View view(const Tensor& t) const;
  const float* vector_or_null(const Tensor& t) const;
  const uint8_t* weight_data(const Weight& w) const;
  // A tensor that the call reads: it must have been written.
  View input(const char* name, const Tensor& t);
  // A tensor that the call writes whole: poisoned, with everything after its columns and rows.
  View output(const char* name, const Tensor& t);
  void poison_padding(const View& v);
  void check_outputs();

  ActivationKind kind_of(WeightFormat f) const {
    return float32_activations_ ? ActivationKind::kF32 : traits(f).activation;
  }
  // out[0 .. w.n) = x W^T, one row.
  void matmul(const Weight& w, ActivationKind kind, const float* x, float* out);
  void add_bias(float* x, const float* bias, int n) const;
  void linear(const View& x, const Weight& w, const float* bias, const View& out);
  void feed_forward(const FeedForward& f, const float* x, float* out);
  // Normed and rotated heads of one row.
  void prepare_heads(const NormSpec& norm, const float* weight, int heads, int dim, int rope, int position, const float* from,
                     float* to);
  void append(const AttentionCall& c, int row, const float* keys, const float* values);
  void attend(const AttentionCall& c, int row, const float* queries, float* out);

  bool float32_activations_;
  DeviceMemory& memory_;
  Violations& violations_;
  const MatmulKernels& matmul_kernels_;
  const RowKernels& row_kernels_;
  const AttentionKernels& attention_kernels_;
  Sampler sampler_;
  Mailbox mailbox_;

  std::vector<RopeTable> ropes_;
  std::vector<KvPages> kv_;
  std::vector<SamplerSlot> slots_;
  LaneState lanes_[kLanes];
  std::vector<int32_t> sampled_;   // by the last step that sampled
  int64_t posted_experts_ = 0, answered_experts_ = 0;

  // The step at work.
  const StepData* step_ = nullptr;
  const char* call_ = "";
  Status error_;
  bool sampled_in_step_ = false;
  std::vector<View> outputs_;      // of the call at work
  std::vector<std::vector<SampleResult>> results_;
  std::vector<std::vector<float>> reads_;
  std::vector<std::vector<int32_t>> appended_;  // [group][page]: sequence of this step that writes it, -1 = none
  std::vector<std::pair<int, int32_t>> appended_pages_;

  // Scratch
  std::vector<uint8_t> record_, source_;
  std::vector<float> wide_, inner_, heads_;
};

}  // namespace freetoken::ref
