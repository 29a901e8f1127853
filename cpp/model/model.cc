#include "model/model.h"

#include <algorithm>

#include "model/support.h"

namespace freetoken {

Result<std::unique_ptr<Model>> Model::create(const ModelSpec& spec, Ops& ops, const ModelLimits& limits) {
  FT_RETURN_IF_ERROR(check_model_supported(spec));
  std::unique_ptr<Model> model(new Model(spec, ops, limits));
  model->kv_ = make_kv_layout(model->spec_, limits.kv_dtype);
  FT_RETURN_IF_ERROR(model->bind());
  model->make_units();
  ops.set_rope_tables(model->spec_.rope_tables);
  FT_RETURN_IF_ERROR(ops.reserve({.max_rows = limits.max_rows,
                                  .max_sequences = limits.max_sequences,
                                  .sampler_slots = limits.sampler_slots,
                                  .partial_moe = true},
                                 model->spec_));
  FT_RETURN_IF_ERROR(model->allocate());
  return model;
}

void Model::forward(Queue& queue, Lane lane, int rows, int first, int last) {
  if (first == 0) ops_.embed(queue, embed_, spec_.embed_scale, hidden_[int(lane)].first_rows(rows));
  for (int u = first; u < last;) {
    const Sublayer& s = *units_[u].sublayer;
    ExpertRange part = units_[u++].experts;
    // Parts of one layer that are done together are one call.
    for (; u < last && units_[u].sublayer == &s; u++) part.end = units_[u].experts.end;
    run(queue, lane, rows, s, part);
  }
}

void Model::run(Queue& queue, Lane lane, int rows, const Sublayer& s, ExpertRange part) {
  const Tensor hidden = hidden_[int(lane)].first_rows(rows), normed = normed_[int(lane)].first_rows(rows);
  const Tensor update = update_.first_rows(rows);
  if (part.begin == 0) ops_.norm(queue, hidden, s.spec->pre_norm, s.pre_norm, s.pre_norm_bias, normed);
  if (s.spec->kind == SublayerKind::kAttention) {
    const AttentionSpec& a = s.spec->attention;
    auto shaped = [&](Tensor t, int cols) {
      t.cols = cols;
      return t.first_rows(rows);
    };
    const Tensor q = shaped(q_, a.q_heads * a.qk_dim), k = shaped(k_, a.kv_heads * a.qk_dim);
    const Tensor v = shaped(v_, a.kv_heads * a.v_dim), attended = shaped(attended_, a.q_heads * a.v_dim);
    const LinearOutput projections[] = {{s.q, s.q_bias, q}, {s.k, s.k_bias, k}, {s.v, s.v_bias, v}};
    ops_.linear(queue, normed, projections);
    ops_.attention(queue, {.spec = &a, .group = s.kv.group, .layer = s.kv.layer, .q = q, .k = k, .v = v,
                           .q_norm = s.q_norm, .k_norm = s.k_norm, .sinks = {}, .out = attended});
    const LinearOutput output{s.o, s.o_bias, update};
    ops_.linear(queue, attended, {&output, 1});
  } else if (s.spec->kind == SublayerKind::kMlp) {
    ops_.mlp(queue, normed, s.mlp, update);
  } else {
    const RouteArgs route{.spec = &s.spec->moe, .router = s.router, .selection_bias = {}};
    if (part.begin == 0) ops_.route(queue, lane, normed, route);
    ops_.moe(queue, lane, normed, s.spec->moe, s.experts, part, update);
    if (part.end < s.spec->moe.experts) return;
  }
  ops_.add(queue, hidden, update, s.spec->residual_scale);
}

Tensor Model::logits(Queue& queue, Lane lane, std::span<const int32_t> rows) {
  const int count = int(rows.size());
  const Tensor picked = picked_.first_rows(count), normed = picked_normed_.first_rows(count);
  const Tensor out = logits_.first_rows(count);
  ops_.gather(queue, hidden_[int(lane)], rows, picked);
  ops_.norm(queue, picked, spec_.final_norm, final_norm_, final_norm_bias_, normed);
  ops_.logits(queue, normed, head_, head_bias_, spec_.logit_scale, spec_.logit_softcap, out);
  return out;
}

}  // namespace freetoken
