// Model: the forward pass, written once over Ops.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/kv_layout.h"
#include "moe/resident_experts.h"
#include "ops/ops.h"

namespace freetoken {

struct ModelLimits {
  int max_rows = 512;        // of one step
  int max_sequences = 32;
  int max_logit_rows = 64;   // of one logits() call
  DType kv_dtype = DType::kBF16;
};

class Model {
 public:
  // Weights are already committed in `ops`, which outlives the model. Allocates the step's buffers; the caller allocates KV.
  static Result<std::unique_ptr<Model>> create(const ModelSpec& spec, Ops& ops, const ModelLimits& limits);

  const ModelSpec& spec() const { return spec_; }
  const KvLayout& kv_layout() const { return kv_; }
  int layers() const { return int(spec_.layers.size()); }

  // Runs layers [first, last) for the rows of the current step (Ops::begin_step). The residual stream stays in the model's
  // buffer between calls, so a step may be cut at any layer; no other step may run in between.
  void forward(Queue& queue, int rows, int first, int last);

  // Logits of the given rows (at most max_logit_rows) after the last layer: [rows.size(), vocab].
  Tensor logits(Queue& queue, std::span<const int32_t> rows);

 private:
  struct Sublayer {
    const SublayerSpec* spec = nullptr;
    KvSlot kv;
    Tensor pre_norm, pre_norm_bias;
    Weight q, k, v, o;
    Tensor q_bias, k_bias, v_bias, o_bias, q_norm, k_norm;
    MlpArgs mlp;
    Weight router;
    ExpertSet experts;
  };

  Model(const ModelSpec& spec, Ops& ops, const ModelLimits& limits) : spec_(spec), ops_(ops), limits_(limits) {}
  Status bind();
  Status bind_attention(const std::string& prefix, Sublayer& s);
  Status bind_mlp(const std::string& prefix, Sublayer& s);
  Status bind_moe(const std::string& prefix, Sublayer& s);
  Status allocate();
  Result<Weight> matrix(const std::string& name, int n, int k) const;
  Result<Tensor> vector(const std::string& name, int n) const;
  void run(Queue& queue, int rows, const Sublayer& s);

  ModelSpec spec_;
  Ops& ops_;
  ModelLimits limits_;
  KvLayout kv_;
  ResidentExperts resident_;
  std::vector<std::vector<Sublayer>> layers_;
  Weight embed_, head_;
  Tensor final_norm_, final_norm_bias_, head_bias_;
  Tensor hidden_, normed_, q_, k_, v_, attended_, update_;  // [max_rows, ...]
  Tensor picked_, picked_normed_, logits_;                  // [max_logit_rows, ...]
};

}  // namespace freetoken
