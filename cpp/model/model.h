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
  int sampler_slots = 32;
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

  // The forward pass in units of work: a sublayer each, the experts of an MoE sublayer several.
  int units() const { return int(units_.size()); }

  // Runs units [first, last) for the rows of the current step (Ops::begin_step); unit 0 starts with the embedding. The
  // residual stream stays in the lane's buffer, so a batch of the resumable lane may be cut at any unit and go on in a later
  // step with the same rows, whatever the main lane did between. A batch of the main lane runs all units in one step.
  void forward(Queue& queue, Lane lane, int rows, int first, int last);

  // Logits of the given rows (at most max_logit_rows) of the lane after its last unit: [rows.size(), vocab].
  Tensor logits(Queue& queue, Lane lane, std::span<const int32_t> rows);

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

  struct Unit {
    const Sublayer* sublayer = nullptr;
    ExpertRange experts;    // of an MoE sublayer
  };

  Model(const ModelSpec& spec, Ops& ops, const ModelLimits& limits) : spec_(spec), ops_(ops), limits_(limits) {}
  Status bind();
  void make_units();
  Status bind_attention(const std::string& prefix, Sublayer& s);
  Status bind_mlp(const std::string& prefix, Sublayer& s);
  Status bind_moe(const std::string& prefix, Sublayer& s);
  Status allocate();
  Result<Weight> matrix(const std::string& name, int n, int k) const;
  Result<Tensor> vector(const std::string& name, int n) const;
  void run(Queue& queue, Lane lane, int rows, const Sublayer& s, ExpertRange part);

  ModelSpec spec_;
  Ops& ops_;
  ModelLimits limits_;
  KvLayout kv_;
  ResidentExperts resident_;
  std::vector<std::vector<Sublayer>> layers_;
  std::vector<Unit> units_;
  Weight embed_, head_;
  Tensor final_norm_, final_norm_bias_, head_bias_;
  Tensor hidden_[kLanes], normed_[kLanes];                  // [max_rows, hidden]
  Tensor q_, k_, v_, attended_, update_;                    // [max_rows, ...], within a unit
  Tensor picked_, picked_normed_, logits_;                  // [max_logit_rows, ...]
};

}  // namespace freetoken
