// Ops: what a device must be able to do. Coarse, fused operations over handles; only Ops touches bytes.
//
// Every call enqueues on a Queue and may return before the work is done; calls on one queue take effect in order.
// Results reach the host through Tickets. A step is begin_step, then the operations on that step's rows; buffers are
// allocated once at their largest size and keep their addresses, so a device may capture a step and replay it.
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
  Tensor q, k, v;                // [rows, heads * dim], before norm and rotation
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
  // Limits of a step, before the first begin_step: fixes the size of scratch memory.
  virtual Status reserve(int max_rows, int max_sequences, const ModelSpec& spec) = 0;

  virtual std::unique_ptr<Queue> make_queue() = 0;
  virtual Status wait(Queue& queue, Ticket ticket) = 0;

  // Makes `batch` current on the queue; copied before the call returns.
  virtual void begin_step(Queue& queue, const Batch& batch) = 0;

  // out[r] = scale * row(token of r)
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
  // Chooses experts and weights of every row; the choice stays in the queue's route slot until the next route().
  virtual void route(Queue& queue, Tensor x, const RouteArgs& args) = 0;
  // out[r] = sum over ranks of weight * expert(x[r]), added in rank order, experts chosen by the last route().
  virtual void moe(Queue& queue, Tensor x, const MoeSpec& spec, const ExpertSet& experts, Tensor out) = 0;
  // out[i] = x[rows[i]]
  virtual void gather(Queue& queue, Tensor x, std::span<const int32_t> rows, Tensor out) = 0;
  // logits[i] = softcap(scale * (x[i] W^T + bias)) for i < x.rows
  virtual void logits(Queue& queue, Tensor x, const Weight& head, Tensor bias, float scale, float softcap, Tensor out) = 0;
  // Draws or scores rows of logits. results (one per row) are valid once the ticket has been waited for.
  virtual Ticket sample(Queue& queue, Tensor logits, std::span<const SampleRow> rows, std::span<SampleResult> results) = 0;
  // Copies a tensor's first rows * cols values, densely, to host memory.
  virtual Ticket read(Queue& queue, Tensor tensor, std::span<float> out) = 0;
};

}  // namespace freetoken
