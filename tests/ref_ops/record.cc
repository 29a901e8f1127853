// The operations: checked and recorded.
#include <algorithm>
#include <limits>

#include "ref_ops/check.h"

namespace freetoken::ref {
namespace {

// What the host finds in a result before its step is done.
SampleResult unwritten_result() { return {-0x5ef0, std::numeric_limits<float>::quiet_NaN(), {}}; }

}  // namespace

void RefOps::record(RefQueue& queue, Call call) {
  add_call_to_shape(call, &queue.shape);
  queue.calls.push_back(std::move(call));
}

void RefOps::embed(Queue& queue, const Weight& table, float scale, Tensor out) {
  RefQueue* q = in_step(queue, "embed");
  if (!q) return;
  Check check(*this, "embed");
  check.weight("the table", table, -1, out.cols);
  check.tensor("out", out, out.rows, table.k);
  check.step_rows(*q, out.rows);
  if (check.ok()) record(*q, EmbedCall{table, scale, out});
}

void RefOps::norm(Queue& queue, Tensor x, const NormSpec& spec, Tensor weight, Tensor bias, Tensor out) {
  RefQueue* q = in_step(queue, "norm");
  if (!q) return;
  Check check(*this, "norm");
  check.that(spec.kind != NormKind::kNone, [] { return "of no kind"; });
  check.tensor("x", x, x.rows, -1);
  check.tensor("out", out, x.rows, x.cols);
  check.optional_vector("weight", weight, x.cols);
  check.optional_vector("bias", bias, x.cols);
  check.that(spec.has_weight == weight.valid() && spec.has_bias == bias.valid(),
             [] { return "weight or bias is there and not in the spec, or the other way round"; });
  check.apart(x, out);
  if (check.ok()) record(*q, NormCall{x, spec, weight, bias, out});
}

void RefOps::linear(Queue& queue, Tensor x, std::span<const LinearOutput> outputs) {
  RefQueue* q = in_step(queue, "linear");
  if (!q) return;
  Check check(*this, "linear");
  check.tensor("x", x, x.rows, -1);
  for (const LinearOutput& o : outputs) {
    check.weight("a weight", o.weight, o.out.cols, x.cols);
    check.optional_vector("a bias", o.bias, o.weight.n);
    check.tensor("an output", o.out, x.rows, o.weight.n);
    check.apart(x, o.out);
  }
  if (check.ok()) record(*q, LinearCall{x, {outputs.begin(), outputs.end()}});
}

void RefOps::attention(Queue& queue, const AttentionArgs& args) {
  RefQueue* q = in_step(queue, "attention");
  if (!q) return;
  Check check(*this, "attention");
  const AttentionSpec& spec = *args.spec;
  const int rows = args.q.rows;
  check.step_rows(*q, rows);
  check.that(spec.type == AttentionType::kFull || spec.type == AttentionType::kWindow, [] { return "of a type this device lacks"; });
  check.that(spec.v_dim % 16 == 0, [&] { return "value heads of " + std::to_string(spec.v_dim) + " elements"; });
  check.tensor("q", args.q, rows, spec.q_heads * spec.qk_dim);
  check.tensor("k", args.k, rows, spec.kv_heads * spec.qk_dim);
  check.tensor("v", args.v, rows, spec.kv_heads * spec.v_dim);
  check.tensor("out", args.out, rows, spec.q_heads * spec.v_dim);
  for (const Tensor& t : {args.q, args.k, args.v}) check.apart(t, args.out);
  check.optional_vector("q_norm", args.q_norm, spec.qk_dim);
  check.optional_vector("k_norm", args.k_norm, spec.qk_dim);
  check.that(!args.sinks.valid(), [] { return "sinks, which this device lacks"; });
  check.that(spec.rope < rope_tables_, [&] { return "rope table " + std::to_string(spec.rope) + " does not exist"; });
  const std::vector<KvPages>& kv = executor_.kv();
  check.that(args.group >= 0 && args.group < int(kv.size()) && args.layer >= 0 &&
                 args.layer < int(kv[size_t(args.group)].group().layers.size()),
             [&] { return "KV group " + std::to_string(args.group) + ", layer " + std::to_string(args.layer) + " does not exist"; });
  if (!check.ok()) return;
  const KvLayer& layer = kv[size_t(args.group)].group().layers[size_t(args.layer)];
  check.that(layer.kv_heads == spec.kv_heads && layer.qk_dim == spec.qk_dim && layer.v_dim == spec.v_dim,
             [] { return "heads of another size than the KV group's"; });
  const KvGroup& group = kv[size_t(args.group)].group();
  check.that(group.retention != Retention::kWindow || (spec.type == AttentionType::kWindow && spec.window <= group.window),
             [] { return "sees more than its KV group keeps"; });
  AttentionCall call{spec, args};
  call.args.spec = nullptr;
  if (check.ok()) record(*q, std::move(call));
}

void RefOps::add(Queue& queue, Tensor x, Tensor y, float scale) {
  RefQueue* q = in_step(queue, "add");
  if (!q) return;
  Check check(*this, "add");
  check.tensor("x", x, x.rows, -1);
  check.tensor("y", y, x.rows, x.cols);
  check.apart(x, y);
  if (check.ok()) record(*q, AddCall{x, y, scale});
}

void RefOps::mlp(Queue& queue, Tensor x, const MlpArgs& args, Tensor out) {
  RefQueue* q = in_step(queue, "mlp");
  if (!q) return;
  Check check(*this, "mlp");
  const int gate_n = args.up.valid() ? args.inner : 2 * int(align_up(size_t(args.inner), 16));
  check.that(args.activation.kind == Activation::kSilu, [] { return "an activation this device lacks"; });
  check.tensor("x", x, x.rows, -1);
  check.weight("gate_up", args.gate_up, gate_n, x.cols);
  if (args.up.valid()) check.weight("up", args.up, args.inner, x.cols);
  check.weight("down", args.down, out.cols, args.inner);
  check.optional_vector("gate_bias", args.gate_bias, args.inner);
  check.optional_vector("up_bias", args.up_bias, args.inner);
  check.optional_vector("down_bias", args.down_bias, args.down.n);
  check.tensor("out", out, x.rows, args.down.n);
  check.apart(x, out);
  if (check.ok()) record(*q, MlpCall{x, args, out});
}

void RefOps::route(Queue& queue, Lane lane, Tensor x, const RouteArgs& args) {
  RefQueue* q = in_step(queue, "route");
  if (!q) return;
  Check check(*this, "route");
  check.step_rows(*q, x.rows);
  check.tensor("x", x, x.rows, -1);
  check.weight("router", args.router, args.spec->experts, x.cols);
  check.that(!args.selection_bias.valid(), [] { return "a selection bias, which this device lacks"; });
  if (check.ok()) record(*q, RouteCall{lane, x, *args.spec, args.router});
}

void RefOps::moe(Queue& queue, Lane lane, Tensor x, const MoeSpec& spec, const ExpertSet& experts, ExpertRange part,
                 Tensor out) {
  RefQueue* q = in_step(queue, "moe");
  if (!q) return;
  Check check(*this, "moe");
  check.step_rows(*q, x.rows);
  check.tensor("x", x, x.rows, experts.layout.hidden);
  check.tensor("out", out, x.rows, x.cols);
  check.apart(x, out);
  check.that(experts.experts == spec.experts && part.begin >= 0 && part.begin < part.end && part.end <= spec.experts, [&] {
    return "experts " + std::to_string(part.begin) + ".." + std::to_string(part.end - 1) + " of " + std::to_string(spec.experts);
  });
  check.that(limits_.partial_moe || (part.begin == 0 && part.end == spec.experts),
             [] { return "a part of the experts, but reserve() said there would be none"; });
  if (check.ok()) record(*q, MoeCall{lane, x, spec, experts, part, out});
}

void RefOps::gather(Queue& queue, Tensor x, std::span<const int32_t> rows, Tensor out) {
  RefQueue* q = in_step(queue, "gather");
  if (!q) return;
  Check check(*this, "gather");
  check.tensor("x", x, x.rows, -1);
  check.tensor("out", out, int(rows.size()), x.cols);
  check.apart(x, out);
  for (const int32_t row : rows)
    check.that(row >= 0 && row < x.rows && row < int(q->data.rows.size()), [&] {
      return "row " + std::to_string(row) + " of x, which has " + std::to_string(x.rows) + ", in a step of " +
             std::to_string(q->data.rows.size());
    });
  if (!check.ok()) return;
  q->data.gathers.emplace_back(rows.begin(), rows.end());
  record(*q, GatherCall{x, int(rows.size()), out, q->data.gathers.size() - 1});
}

void RefOps::logits(Queue& queue, Tensor x, const Weight& head, Tensor bias, float scale, float softcap, Tensor out) {
  RefQueue* q = in_step(queue, "logits");
  if (!q) return;
  Check check(*this, "logits");
  check.tensor("x", x, x.rows, -1);
  check.weight("head", head, out.cols, x.cols);
  check.optional_vector("bias", bias, head.n);
  check.tensor("out", out, x.rows, head.n);
  check.apart(x, out);
  if (check.ok()) record(*q, LogitsCall{x, head, bias, scale, softcap, out});
}

void RefOps::sample(Queue& queue, Tensor logits, std::span<const SampleRow> rows, std::span<SampleResult> results) {
  RefQueue* q = in_step(queue, "sample");
  if (!q) return;
  Check check(*this, "sample");
  check.tensor("logits", logits, logits.rows, int(options_.usable_tokens.size()));
  check.that(results.size() == rows.size(), [&] {
    return std::to_string(rows.size()) + " rows, but room for " + std::to_string(results.size()) + " results";
  });
  for (const SampleRow& row : rows) {
    check.that(row.logits_row >= 0 && row.logits_row < logits.rows, [&] {
      return "row " + std::to_string(row.logits_row) + " of " + std::to_string(logits.rows) + " rows of logits";
    });
    check.that(row.target < logits.cols, [&] { return "target " + std::to_string(row.target) + " is no token"; });
    if (row.target < 0) check.slot(row.slot);
  }
  if (!check.ok()) return;
  std::fill(results.begin(), results.end(), unwritten_result());
  StepData::Sample& sample = q->data.samples.emplace_back();
  sample.rows.assign(rows.begin(), rows.end());
  sample.results = results;
  for (SampleRow& row : sample.rows) sample.ahead.emplace_back(row.ahead.begin(), row.ahead.end());
  for (size_t i = 0; i < sample.rows.size(); i++) sample.rows[i].ahead = sample.ahead[i];
  record(*q, SampleCall{logits, int(rows.size()), q->data.samples.size() - 1});
}

void RefOps::read(Queue& queue, Tensor tensor, std::span<float> out) {
  RefQueue* q = in_step(queue, "read");
  if (!q) return;
  Check check(*this, "read");
  check.tensor("the tensor", tensor, tensor.rows, -1);
  check.that(int64_t(out.size()) == int64_t(tensor.rows) * tensor.cols, [&] {
    return std::to_string(int64_t(tensor.rows) * tensor.cols) + " values into room for " + std::to_string(out.size());
  });
  if (!check.ok()) return;
  std::fill(out.begin(), out.end(), std::numeric_limits<float>::quiet_NaN());
  q->data.reads.push_back(out);
  record(*q, ReadCall{tensor, q->data.reads.size() - 1});
}

void RefOps::probe(Queue& queue, std::function<void(DeviceMemory&)> body) {
  RefQueue* q = in_step(queue, "probe");
  if (!q) return;
  q->data.probes.push_back(std::move(body));
  record(*q, ProbeCall{q->data.probes.size() - 1});
}

}  // namespace freetoken::ref
