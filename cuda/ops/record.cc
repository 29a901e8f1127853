// The operations but those of feed-forward networks: checked and recorded.
#include <algorithm>
#include <bit>
#include <utility>

#include "cuda/kernels/embed.h"
#include "cuda/kernels/matmul.h"
#include "cuda/kernels/norm.h"
#include "cuda/kernels/rope.h"
#include "cuda/kernels/rows.h"
#include "cuda/kernels/sample.h"
#include "cuda/ops/checks.h"
#include "cuda/ops/cuda_ops.h"
#include "cuda/ops/support.h"
#include "cuda/runtime/cuda_status.h"

namespace freetoken::cuda {
namespace {

HeadNorm head_norm(const NormSpec& spec, const Tensor& weight) {
  return {.rms = spec.kind == NormKind::kRms, .plus_one = spec.plus_one, .eps = spec.eps, .weight = floats(weight)};
}

bool overlap(const Tensor& a, const Tensor& b) {
  const auto end = [](const Tensor& t) { return t.address + uint64_t(t.rows) * uint64_t(t.row_bytes); };
  return a.address < end(b) && b.address < end(a);
}

// Whether the last launch is an add to the x that is normed: then a launch of both reads the residual stream once.
bool fuses(const RecordedStep& step, const Tensor& x, const Tensor& out) {
  const RecordedAdd& add = step.add;
  return add.launch + 1 == step.launches.size() && add.x.address == x.address && add.x.rows == x.rows && add.x.cols == x.cols &&
         add.x.row_bytes == x.row_bytes && add.y.address % 16 == 0 && add.y.row_bytes % 16 == 0 && !overlap(out, add.x) &&
         !overlap(out, add.y);
}

LinearTarget target_of(const Weight& weight, const Tensor& bias, const Tensor& out) {
  return {.weight = reinterpret_cast<const void*>(weight.address),
          .format = weight.format,
          .n = weight.n,
          .bias = floats(bias),
          .out = floats(out),
          .out_stride = stride(out)};
}

}  // namespace

void CudaOps::embed(Queue&, const Weight& table, float scale, Tensor out) {
  RecordedStep* step = recording("embed");
  if (!step) return;
  Checks check(*step, "embed");
  check.weight("the table", table, -1, out.cols);
  check.tensor("out", out, step->rows, table.k);
  check.that(step->max_token < table.n, "a token that the table lacks");
  if (!check.ok()) return;
  KeyWriter(step->key, "embed") << table << scale << out;
  record(*step, "embed", [=, rows = step->rows](const StepContext& c) {
    return launch_embed(c.view, rows, table.format, reinterpret_cast<const uint8_t*>(table.address), table.k, scale, floats(out),
                        stride(out), c.stream);
  });
}

void CudaOps::norm(Queue&, Tensor x, const NormSpec& spec, Tensor weight, Tensor bias, Tensor out) {
  RecordedStep* step = recording("norm");
  if (!step) return;
  Checks check(*step, "norm");
  check.that(check_norm(spec));
  check.that(spec.kind != NormKind::kNone, "of no kind");
  check.tensor("x", x, x.rows, -1);
  check.tensor("out", out, x.rows, x.cols);
  check.optional_vector("weight", weight, x.cols);
  check.optional_vector("bias", bias, x.cols);
  if (!check.ok()) return;
  KeyWriter(step->key, "norm") << x << spec << weight << bias << out;
  const NormArgs args{.layer = spec.kind == NormKind::kLayer,
                      .plus_one = spec.plus_one,
                      .eps = spec.eps,
                      .weight = floats(weight),
                      .bias = floats(bias)};
  if (fuses(*step, x, out)) {
    const RecordedAdd add = std::exchange(step->add, {});
    step->launches.pop_back();
    record(*step, "add and norm", [=](const StepContext& c) {
      return launch_add_norm(args, floats(x), stride(x), floats(add.y), stride(add.y), add.scale, x.rows, x.cols, floats(out),
                             stride(out), c.stream);
    });
    return;
  }
  record(*step, "norm", [=](const StepContext& c) {
    return launch_norm(args, floats(x), stride(x), x.rows, x.cols, floats(out), stride(out), c.stream);
  });
}

void CudaOps::linear(Queue&, Tensor x, std::span<const LinearOutput> outputs) {
  RecordedStep* step = recording("linear");
  if (!step) return;
  Checks check(*step, "linear");
  check.tensor("x", x, x.rows, -1);
  KeyWriter key(step->key, "linear");
  key << x << uint64_t(outputs.size());
  for (size_t first = 0; first < outputs.size(); first += kMaxLinearTargets) {
    const int count = int(std::min<size_t>(kMaxLinearTargets, outputs.size() - first));
    std::array<LinearTarget, kMaxLinearTargets> targets;
    for (int i = 0; i < count; i++) {
      const LinearOutput& o = outputs[first + size_t(i)];
      check.weight("a weight", o.weight, o.out.cols, x.cols);
      check.optional_vector("a bias", o.bias, o.weight.n);
      check.tensor("an output", o.out, x.rows, o.weight.n);
      key << o.weight << o.bias << o.out;
      targets[size_t(i)] = target_of(o.weight, o.bias, o.out);
    }
    if (!check.ok()) return;
    record(*step, "linear", [=](const StepContext& c) {
      return launch_linear({floats(x), stride(x)}, x.rows, x.cols, targets.data(), count, c.stream);
    });
  }
}

void CudaOps::attention(Queue&, const AttentionArgs& args) {
  RecordedStep* step = recording("attention");
  if (!step) return;
  Checks check(*step, "attention");
  const AttentionSpec& spec = *args.spec;
  const int rows = step->rows;
  check.that(check_attention(spec));
  check.that(kv_.has_layer(args.group, args.layer), "a KV group or layer that does not exist");
  check.that(spec.rope < int(ropes_.size()), "a rope table that does not exist");
  check.tensor("q", args.q, rows, spec.q_heads * spec.qk_dim);
  check.tensor("k", args.k, rows, spec.kv_heads * spec.qk_dim);
  check.tensor("v", args.v, rows, spec.kv_heads * spec.v_dim);
  check.tensor("out", args.out, rows, spec.q_heads * spec.v_dim);
  check.optional_vector("q_norm", args.q_norm, spec.qk_dim);
  check.optional_vector("k_norm", args.k_norm, spec.qk_dim);
  check.optional_vector("sinks", args.sinks, spec.q_heads);
  if (!check.ok()) return;
  const KvView kv = kv_.view(args.group, args.layer);
  check.that(kv.kv_heads == spec.kv_heads && kv.qk_dim == spec.qk_dim && kv.v_dim == spec.v_dim,
             "heads of another size than the KV group's");
  if (!check.ok()) return;
  KeyWriter(step->key, "attention") << int(spec.type) << spec.window << spec.rope << spec.scale << spec.softcap << spec.q_heads
                                    << spec.q_norm << spec.k_norm << args.group << args.layer << args.q << args.k << args.v
                                    << args.q_norm << args.k_norm << args.sinks << args.out;
  PrepareArgs prepare{.q = floats(args.q),
                      .k = floats(args.k),
                      .v = floats(args.v),
                      .q_stride = stride(args.q),
                      .k_stride = stride(args.k),
                      .v_stride = stride(args.v),
                      .q_heads = spec.q_heads,
                      .q_norm = head_norm(spec.q_norm, args.q_norm),
                      .k_norm = head_norm(spec.k_norm, args.k_norm),
                      .rope = {},
                      .angles = nullptr};
  if (spec.rope >= 0 && !ropes_[size_t(spec.rope)].table.inv_freq.empty()) {
    const Rope& rope = ropes_[size_t(spec.rope)];
    prepare.rope = {.inv_freq = rope.inv_freq.as<float>(),
                    .half = int(rope.table.inv_freq.size()),
                    .attention_factor = rope.table.attention_factor,
                    .interleaved = rope.table.interleaved,
                    .offset = rope.table.offset};
    prepare.angles = rope.angles.as<float>();
    if (!step->angles[size_t(spec.rope)])
      record(*step, "attention", [=, view = prepare.rope, angles = rope.angles.as<float>()](const StepContext& c) {
        return launch_rope_angles(c.view, rows, view, angles, c.stream);
      });
    step->angles[size_t(spec.rope)] = true;
  }
  record(*step, "attention", [=](const StepContext& c) { return launch_prepare_heads(c.view, rows, kv, prepare, c.stream); });
  const AttentionView view{.q = floats(args.q),
                           .q_stride = stride(args.q),
                           .out = floats(args.out),
                           .out_stride = stride(args.out),
                           .q_heads = spec.q_heads,
                           .window = spec.type == AttentionType::kWindow ? spec.window : 0,
                           .scale = spec.scale,
                           .softcap = spec.softcap,
                           .sinks = floats(args.sinks)};
  const int partitions = step->partitions;
  const bool split = rows <= kSplitRows &&
                     attention_scratch_floats(rows, spec.q_heads, spec.v_dim, partitions) <= scratch_.attention_floats;
  record(*step, "attention", [=, scratch = scratch_.attention.as<float>()](const StepContext& c) {
    return split ? launch_attention_split(c.view, rows, kv, view, partitions, scratch, c.stream)
                 : launch_attention_rows(c.view, rows, kv, view, c.stream);
  });
}

void CudaOps::add(Queue&, Tensor x, Tensor y, float scale) {
  RecordedStep* step = recording("add");
  if (!step) return;
  Checks check(*step, "add");
  check.tensor("x", x, x.rows, -1);
  check.tensor("y", y, x.rows, x.cols);
  if (!check.ok()) return;
  KeyWriter(step->key, "add") << x << y << scale;
  step->add = {.launch = step->launches.size(), .x = x, .y = y, .scale = scale};
  record(*step, "add", [=](const StepContext& c) {
    return launch_add(floats(x), stride(x), floats(y), stride(y), scale, x.rows, x.cols, c.stream);
  });
}

void CudaOps::gather(Queue&, Tensor x, std::span<const int32_t> rows, Tensor out) {
  RecordedStep* step = recording("gather");
  if (!step) return;
  Checks check(*step, "gather");
  const int count = int(rows.size());
  check.tensor("x", x, x.rows, -1);
  check.tensor("out", out, count, x.cols);
  for (const int32_t row : rows) check.that(row >= 0 && row < x.rows, "a row that x lacks");
  if (!check.ok()) return;
  size_t at = 0;
  if (int32_t* list = block_.put<int32_t>(rows.size(), &at)) std::copy(rows.begin(), rows.end(), list);
  KeyWriter(step->key, "gather") << x << count << out << uint64_t(at);
  record(*step, "gather", [=](const StepContext& c) {
    return launch_gather(floats(x), stride(x), c.at<int32_t>(at), count, x.cols, floats(out), stride(out), c.stream);
  });
}

void CudaOps::logits(Queue&, Tensor x, const Weight& head, Tensor bias, float scale, float softcap, Tensor out) {
  RecordedStep* step = recording("logits");
  if (!step) return;
  Checks check(*step, "logits");
  check.tensor("x", x, x.rows, -1);
  check.weight("head", head, out.cols, x.cols);
  check.optional_vector("bias", bias, head.n);
  check.tensor("out", out, x.rows, head.n);
  if (!check.ok()) return;
  KeyWriter(step->key, "logits") << x << head << bias << scale << softcap << out;
  record(*step, "logits", [=, target = target_of(head, bias, out)](const StepContext& c) {
    return launch_logits({floats(x), stride(x)}, x.rows, x.cols, target, scale, softcap, c.stream);
  });
}

void CudaOps::sample(Queue&, Tensor logits, std::span<const SampleRow> rows, std::span<SampleResult> results) {
  RecordedStep* step = recording("sample");
  if (!step) return;
  Checks check(*step, "sample");
  const int count = int(rows.size()), vocab = int(options_.usable_tokens.size());
  check.tensor("logits", logits, logits.rows, vocab);
  check.that(results.size() == rows.size(), "another number of results than of rows");
  int top = 0;
  for (const SampleRow& row : rows) {
    check.that(row.logits_row >= 0 && row.logits_row < logits.rows, "a row that the logits lack");
    check.that(row.target < vocab, "a target that is no token");
    check.that(row.target >= 0 || (row.slot >= 0 && row.slot < samplers_.size() && samplers_.opened(row.slot)),
               "a slot that was never opened");
    top = std::max(top, row.logprobs);
  }
  if (!check.ok()) return;
  if (const Status status = reserve_sampled(step->sampled_rows + count); !status.ok()) return check.that(status);
  top = top > 0 ? int(std::bit_ceil(unsigned(top))) : 0;
  size_t ahead_at = 0, at = 0, ahead_count = 0;
  for (const SampleRow& row : rows) ahead_count += row.ahead.size();
  int32_t* ahead = block_.put<int32_t>(ahead_count, &ahead_at);
  for (const SampleRow& row : rows)
    if (ahead) ahead = std::copy(row.ahead.begin(), row.ahead.end(), ahead);
  SampleRowView* views = block_.put<SampleRowView>(rows.size(), &at);
  int32_t ahead_begin = int32_t(ahead_at / sizeof(int32_t));
  for (size_t i = 0; views && i < rows.size(); i++) {
    const SampleRow& row = rows[i];
    views[i] = {.logits_row = row.logits_row,
                .slot = row.target >= 0 ? 0 : row.slot,
                .position = row.position,
                .target = row.target,
                .logprobs = row.logprobs,
                .ahead_begin = ahead_begin,
                .ahead_count = int32_t(row.ahead.size())};
    ahead_begin += int32_t(row.ahead.size());
  }
  SampleDelivery delivery{.out = results, .top_stride = top};
  delivery.results = results_.put(rows.size() * sizeof(SampleResultView));
  delivery.top_ids = results_.put(rows.size() * size_t(top) * sizeof(int32_t));
  delivery.top_logprobs = results_.put(rows.size() * size_t(top) * sizeof(float));
  step->samples.push_back(delivery);
  KeyWriter(step->key, "sample") << logits << count << top << step->sampled_rows << uint64_t(at) << uint64_t(delivery.results);
  SampleView view{.logits = floats(logits), .logits_stride = stride(logits), .vocab = vocab, .usable = usable_.data(),
                  .slots = samplers_.device(), .top_stride = top};
  record(*step, "sample", [this, view, at, delivery, count, drawn_before = step->sampled_rows](const StepContext& c) {
    SampleView v = view;
    v.rows = c.at<SampleRowView>(at);
    v.ahead = c.at<int32_t>(0);  // places in the block
    v.results = c.result_at<SampleResultView>(delivery.results);
    v.top_ids = c.result_at<int32_t>(delivery.top_ids);
    v.top_logprobs = c.result_at<float>(delivery.top_logprobs);
    v.sampled = sampled_.as<int32_t>() + drawn_before;
    return launch_sample(v, count, scratch_.sample.data(), c.stream);
  });
  step->sampled_rows += count;
}

void CudaOps::read(Queue&, Tensor tensor, std::span<float> out) {
  RecordedStep* step = recording("read");
  if (!step) return;
  Checks check(*step, "read");
  check.tensor("the tensor", tensor, tensor.rows, -1);
  check.that(int64_t(out.size()) == int64_t(tensor.rows) * tensor.cols, "room for another number of values");
  if (!check.ok() || out.empty()) return;
  Result<PinnedBuffer> pinned = spare_pinned(out.size_bytes());
  if (!pinned.ok()) return check.that(pinned.status());
  step->capturable = false;
  record(*step, "read", [=, to = pinned->data()](const StepContext& c) {
    const size_t width = size_t(tensor.cols) * sizeof(float);
    return cudaMemcpy2DAsync(to, width, floats(tensor), size_t(tensor.row_bytes), width, size_t(tensor.rows),
                             cudaMemcpyDeviceToHost, c.stream);
  });
  step->reads.push_back({{reinterpret_cast<uint8_t*>(out.data()), out.size_bytes()}, std::move(*pinned)});
}

}  // namespace freetoken::cuda
