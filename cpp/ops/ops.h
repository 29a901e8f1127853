// Ops: what a device must be able to do. Coarse, fused operations over handles; only Ops touches bytes.
//
// Every call enqueues on a Queue and may return before the work is done; calls on one queue take effect in order, and
// nothing has to start before end_step(). Results reach the host through Tickets.
//
// A step is begin_step, operations on that step's rows, end_step. Its *shape* is the sequence of calls with their handles,
// numbers and sizes; its *data* is the contents of the batch and of the spans given to gather(), sample(), advance_sampler()
// and copy_pages(). Buffers are allocated once at their largest size and keep their addresses, so a device may capture a
// step and replay it, with new data, for a later one of the same shape.
// Spans are copied before a call returns, except results and out: those must stay valid until the step's ticket was waited for.
// x.rows is the number of rows an operation works on: the rows of the current step, or those that gather() picked.
// All tensors are fp32 unless said.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/status.h"
#include "ops/batch.h"
#include "ops/experts.h"
#include "ops/kv_group.h"
#include "ops/sampling.h"
#include "ops/tensor.h"
#include "ops/weight_sink.h"
#include "spec/model_spec.h"

namespace freetoken {

class Queue {
 public:
  virtual ~Queue() = default;
};

struct Ticket {
  uint64_t id = 0;
};

struct LinearOutput {
  Weight weight;    // [n, k]
  Tensor bias;      // [1, n] or not valid
  Tensor out;       // [rows, n]
};

struct AttentionArgs {
  const AttentionSpec* spec = nullptr;
  int group = 0, layer = 0;      // KV group, layer within the group
  Tensor q, k, v;                // [rows, heads * dim], before norm and rotation; q and k hold nothing afterwards
  Tensor q_norm, k_norm;         // [1, qk_dim] or not valid
  Tensor sinks;                  // [1, q_heads] or not valid
  Tensor out;                    // [rows, q_heads * v_dim]
};

struct MlpArgs {
  Weight gate_up;                // interleaved, or gate with up valid
  Weight up;
  Tensor gate_bias, up_bias;     // [1, inner] or not valid
  Weight down;
  Tensor down_bias;              // [1, hidden] or not valid
  int32_t inner = 0;
  GatedActivation activation;
};

struct RouteArgs {
  const MoeSpec* spec = nullptr;
  Weight router;                 // [experts, hidden]
  Tensor selection_bias;         // [1, experts] or not valid
};

// Where the state of a half-done layer lives: two batches may be in work at once, a main one that ends within its step and
// a resumable one whose layers are spread over several.
enum class Lane { kMain, kResumable };
constexpr int kLanes = 2;

// The experts of one moe() call: [begin, end) by id. A layer is done in ascending parts; only the last one gives `out`.
struct ExpertRange {
  int32_t begin = 0, end = 0;
};

// Upper bounds of a step, and the number of sampler slots.
struct OpsLimits {
  int max_rows = 0;
  int max_sequences = 0;
  int sampler_slots = 0;
  bool partial_moe = false;      // moe() may be called with a part of the experts (costs memory)
};

struct OpsInfo {
  std::string device;            // "cpu"
  std::string isa;
  int threads = 1;
  bool batch_invariant = false;  // a request's bits do not depend on what else is in the batch
};

class Ops : public WeightSink {
 public:
  virtual OpsInfo info() const = 0;

  // Weights that were committed, by canonical name; not valid when there is none.
  virtual Weight weight(const std::string& name) const = 0;
  virtual Tensor vector(const std::string& name) const = 0;
  // An expert's extent that lies in this device's memory; null and 0 when there is none.
  virtual const ExpertLayout* expert_layout(const std::string& extent) const = 0;
  virtual uint64_t extent_address(const std::string& extent) const = 0;
  virtual int64_t weight_bytes() const = 0;

  // Memory. Buffers are zeroed and live as long as the Ops. Rows are padded to whole tiles.
  virtual Result<Tensor> allocate(DType dtype, int rows, int cols) = 0;
  virtual Status allocate_kv(std::span<const KvGroup> groups, std::span<const int32_t> pages) = 0;
  virtual void set_rope_tables(std::span<const RopeTable> tables) = 0;
  // Before the first begin_step: fixes the size of scratch memory.
  virtual Status reserve(const OpsLimits& limits, const ModelSpec& spec) = 0;

  virtual std::unique_ptr<Queue> make_queue() = 0;
  // Blocks until all up to the ticket is done; the first error since the last wait. Work after an error is undefined but safe.
  virtual Status wait(Queue& queue, Ticket ticket) = 0;

  virtual void begin_step(Queue& queue, const Batch& batch) = 0;
  virtual Ticket end_step(Queue& queue) = 0;

  // KV pages, between steps. Copies happen in the order of the list: one may overwrite what an earlier one has read.
  virtual void copy_pages(Queue& queue, std::span<const PageCopy> copies) = 0;
  // All bytes of a page (KvGroup::page_bytes), in the device's own order: for spilling, and back.
  virtual Ticket read_page(Queue& queue, int group, int32_t page, std::span<uint8_t> out) = 0;
  virtual void write_page(Queue& queue, int group, int32_t page, std::span<const uint8_t> bytes) = 0;

  // Sampler slots, between steps. Opening one that is open replaces it.
  virtual void open_sampler(Queue& queue, int slot, const SamplerInit& init) = 0;
  // These tokens are now part of the slot's sequence.
  virtual void advance_sampler(Queue& queue, int slot, std::span<const int32_t> tokens) = 0;

  // out[r] = scale * row(token of r); NaN where the token is that of a row that could draw none.
  virtual void embed(Queue& queue, const Weight& table, float scale, Tensor out) = 0;
  // out[r] = norm(x[r]); weight and bias [1, cols] or not valid, as the spec says.
  virtual void norm(Queue& queue, Tensor x, const NormSpec& spec, Tensor weight, Tensor bias, Tensor out) = 0;
  // outputs[i].out[r] = x[r] W_i^T + bias_i
  virtual void linear(Queue& queue, Tensor x, std::span<const LinearOutput> outputs) = 0;
  // Per-head norms, rotation, append of k and v to the cache, attention over the cache (causal).
  virtual void attention(Queue& queue, const AttentionArgs& args) = 0;
  // x[r] += scale * y[r]
  virtual void add(Queue& queue, Tensor x, Tensor y, float scale) = 0;
  // out[r] = down(act(gate(x[r])) * up(x[r]))
  virtual void mlp(Queue& queue, Tensor x, const MlpArgs& args, Tensor out) = 0;
  // Chooses experts and weights of every row; the choice stays in the lane until its next route().
  virtual void route(Queue& queue, Lane lane, Tensor x, const RouteArgs& args) = 0;
  // out[r] = sum over ranks of weight * expert(x[r]), added in rank order, experts chosen by the lane's last route().
  // Less than all experts only in the resumable lane: the parts of one layer may lie in different steps, other steps of the
  // main lane between them; x and the lane's choice are the same in all parts.
  virtual void moe(Queue& queue, Lane lane, Tensor x, const MoeSpec& spec, const ExpertSet& experts, ExpertRange part,
                   Tensor out) = 0;
  // out[i] = x[rows[i]]
  virtual void gather(Queue& queue, Tensor x, std::span<const int32_t> rows, Tensor out) = 0;
  // logits[i] = softcap(scale * (x[i] W^T + bias)) for i < x.rows
  virtual void logits(Queue& queue, Tensor x, const Weight& head, Tensor bias, float scale, float softcap, Tensor out) = 0;
  // Draws or scores rows of logits; does not advance the slots. One result per row, valid after the step.
  virtual void sample(Queue& queue, Tensor logits, std::span<const SampleRow> rows, std::span<SampleResult> results) = 0;
  // Copies a tensor's first rows * cols values, densely, to host memory; valid after the step.
  virtual void read(Queue& queue, Tensor tensor, std::span<float> out) = 0;
};

}  // namespace freetoken
