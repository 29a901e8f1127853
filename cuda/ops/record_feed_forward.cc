// mlp, route and moe: checked and recorded.
#include <algorithm>
#include <array>
#include <utility>

#include "cuda/kernels/matmul.h"
#include "cuda/kernels/moe_matmul.h"
#include "cuda/kernels/router.h"
#include "cuda/ops/checks.h"
#include "cuda/ops/cuda_ops.h"
#include "cuda/ops/support.h"
#include "cuda/runtime/cuda_status.h"

namespace freetoken::cuda {
namespace {

constexpr int kHalf = kTileRows / 2;  // rows of gate, then as many of up, in a tile of an interleaved pair

int interleaved_rows(int inner) { return 2 * int(align_up(size_t(inner), kHalf)); }

const void* bytes_of(const Weight& w) { return reinterpret_cast<const void*>(w.address); }

}  // namespace

const float* CudaOps::interleaved_bias(RecordedStep& step, Tensor gate, Tensor up, int inner) {
  DeviceBuffer& made = interleaved_biases_[{gate.address, up.address}];
  if (made.bytes() > 0) return made.as<float>();
  const size_t rows = size_t(interleaved_rows(inner)), half = kHalf * sizeof(float);
  Result<DeviceBuffer> buffer = DeviceBuffer::allocate(account_, "biases", rows * sizeof(float));
  if (!buffer.ok()) {
    step.error = buffer.status();
    return nullptr;
  }
  made = std::move(*buffer);
  cudaError_t error = cudaMemsetAsync(made.data(), 0, made.bytes(), stream_.get());
  const size_t whole = size_t(inner / kHalf), rest = size_t(inner % kHalf) * sizeof(float);
  for (const auto& [from, offset] : {std::pair(gate, size_t(0)), std::pair(up, half)}) {
    const uint8_t* source = reinterpret_cast<const uint8_t*>(from.address);
    if (error == cudaSuccess && whole > 0)
      error = cudaMemcpy2DAsync(made.data() + offset, 2 * half, source, half, half, whole, cudaMemcpyDeviceToDevice, stream_.get());
    if (error == cudaSuccess && rest > 0)
      error = cudaMemcpyAsync(made.data() + whole * 2 * half + offset, source + whole * half, rest, cudaMemcpyDeviceToDevice,
                              stream_.get());
  }
  step.error = cuda_status(error, "mlp");
  return made.as<float>();
}

void CudaOps::mlp(Queue&, Tensor x, const MlpArgs& args, Tensor out) {
  RecordedStep* step = recording("mlp");
  if (!step) return;
  Checks check(*step, "mlp");
  const bool apart = args.up.valid();
  const int inner = args.inner, rows = x.rows;
  check.that(check_activation(args.activation));
  check.tensor("x", x, rows, -1);
  check.weight("gate_up", args.gate_up, apart ? inner : interleaved_rows(inner), x.cols);
  if (apart) check.weight("up", args.up, inner, x.cols);
  check.weight("down", args.down, out.cols, inner);
  check.optional_vector("gate_bias", args.gate_bias, inner);
  check.optional_vector("up_bias", args.up_bias, inner);
  check.optional_vector("down_bias", args.down_bias, args.down.n);
  check.tensor("out", out, rows, args.down.n);
  const int64_t inner_stride = scratch_stride(inner);
  check.that(rows * inner_stride <= scratch_.inner_floats, "larger than reserve() was told");
  check.that(args.gate_bias.valid() == args.up_bias.valid(), "a bias of gate or up alone");
  if (!check.ok()) return;
  KeyWriter(step->key, "mlp") << x << args.gate_up << args.up << args.gate_bias << args.up_bias << args.down << args.down_bias
                              << inner << out;
  float *result = scratch_.inner.as<float>(), *wide = scratch_.wide.as<float>();
  const Rows in{floats(x), stride(x)};
  if (apart) {
    float* up = wide + rows * inner_stride;
    const std::array<LinearTarget, 2> targets = {
        LinearTarget{bytes_of(args.gate_up), args.gate_up.format, inner, floats(args.gate_bias), wide, inner_stride},
        LinearTarget{bytes_of(args.up), args.up.format, inner, floats(args.up_bias), up, inner_stride}};
    record(*step, "mlp", [=, k = x.cols](const StepContext& c) {
      if (const cudaError_t error = launch_linear(in, rows, k, targets.data(), 2, c.stream); error != cudaSuccess) return error;
      return launch_gated_rows({wide, inner_stride}, {up, inner_stride}, rows, inner, result, inner_stride, c.stream);
    });
  } else if (gated_supports(args.gate_up.format)) {
    const GatedTarget target{bytes_of(args.gate_up), args.gate_up.format, inner, floats(args.gate_bias), floats(args.up_bias),
                             result, inner_stride};
    record(*step, "mlp", [=, k = x.cols](const StepContext& c) { return launch_gated(in, rows, k, target, c.stream); });
  } else {
    // The interleaved outputs as they come: every run of 16 columns of gate, then of up, is taken for a row of its own.
    const float* bias = args.gate_bias.valid() ? interleaved_bias(*step, args.gate_bias, args.up_bias, inner) : nullptr;
    if (!step->error.ok()) return;
    const int n = args.gate_up.n;
    const int64_t pairs = inner_stride / kHalf;  // of a row of `wide`, whole ones of gate_up first
    const LinearTarget target{bytes_of(args.gate_up), args.gate_up.format, n, bias, wide, 2 * inner_stride};
    record(*step, "mlp", [=, k = x.cols](const StepContext& c) {
      if (const cudaError_t error = launch_linear(in, rows, k, &target, 1, c.stream); error != cudaSuccess) return error;
      return launch_gated_rows({wide, kTileRows}, {wide + kHalf, kTileRows}, int(rows * pairs), kHalf, result, kHalf, c.stream);
    });
  }
  const LinearTarget down{bytes_of(args.down), args.down.format, args.down.n, floats(args.down_bias), floats(out), stride(out)};
  record(*step, "mlp", [=](const StepContext& c) {
    return launch_linear({result, inner_stride}, rows, inner, &down, 1, c.stream);
  });
}

void CudaOps::route(Queue&, Lane lane, Tensor x, const RouteArgs& args) {
  RecordedStep* step = recording("route");
  if (!step) return;
  Checks check(*step, "route");
  const MoeSpec& spec = *args.spec;
  LaneScratch& state = scratch_.lanes[int(lane)];
  check.that(check_moe(spec));
  check.tensor("x", x, step->rows, -1);
  check.weight("router", args.router, spec.experts, x.cols);
  check.optional_vector("selection_bias", args.selection_bias, spec.experts);
  check.that(size_t(x.rows) * size_t(spec.experts_per_token) * sizeof(int32_t) <= state.ids.bytes() &&
                 size_t(x.rows) * size_t(scratch_stride(spec.experts)) * sizeof(float) <= scratch_.router_logits.bytes(),
             "more experts than reserve() was told");
  if (!check.ok()) return;
  state.rows = x.rows;
  state.experts = spec.experts;
  state.per_token = spec.experts_per_token;
  state.next_expert = 0;
  KeyWriter(step->key, "route") << int(lane) << x << args.router << args.selection_bias << spec.experts << spec.experts_per_token
                                << int(spec.scoring) << spec.normalise << spec.normalise_eps << spec.scaling;
  const RouterView router{.experts = spec.experts,
                          .per_token = spec.experts_per_token,
                          .scoring = spec.scoring == RouterScoring::kSigmoid ? RouteScoring::kSigmoid : RouteScoring::kSoftmax,
                          .normalise = spec.normalise,
                          .normalise_eps = spec.normalise_eps,
                          .scaling = spec.scaling,
                          .selection_bias = floats(args.selection_bias)};
  const int64_t logits_stride = scratch_stride(spec.experts);
  float* logits = scratch_.router_logits.as<float>();
  const LinearTarget target{bytes_of(args.router), args.router.format, spec.experts, nullptr, logits, logits_stride};
  record(*step, "route", [=, ids = state.ids.as<int32_t>(), weights = state.weights.as<float>()](const StepContext& c) {
    const cudaError_t error = launch_linear_f32({floats(x), stride(x)}, x.rows, x.cols, target, c.stream);
    return error != cudaSuccess ? error : launch_route(router, logits, logits_stride, x.rows, ids, weights, c.stream);
  });
}

void CudaOps::moe(Queue&, Lane lane, Tensor x, const MoeSpec& spec, const ExpertSet& experts, ExpertRange part, Tensor out) {
  RecordedStep* step = recording("moe");
  if (!step) return;
  Checks check(*step, "moe");
  const ExpertLayout& layout = experts.layout;
  LaneScratch& state = scratch_.lanes[int(lane)];
  const bool whole = part.begin == 0 && part.end == spec.experts;
  check.that(check_moe(spec));
  check.that(check_expert("layer " + std::to_string(experts.layer), layout));
  check.tensor("x", x, step->rows, layout.hidden);
  check.tensor("out", out, x.rows, x.cols);
  check.that(experts.experts == spec.experts && part.begin >= 0 && part.begin < part.end && part.end <= spec.experts,
             "a part of other experts than there are");
  check.that(whole || (lane == Lane::kResumable && limits_.partial_moe), "a part of the experts that reserve() was not told of");
  check.that(state.rows == x.rows && state.experts == spec.experts && state.per_token == spec.experts_per_token,
             "after a route() of other rows or experts");
  check.that(part.begin == state.next_expert, "a part that does not follow the lane's last");
  const int entries = x.rows * spec.experts_per_token;
  const int64_t inner_stride = scratch_stride(layout.inner), out_stride = scratch_stride(layout.hidden);
  check.that(entries * inner_stride <= scratch_.inner_floats, "larger than reserve() was told");
  if (!check.ok()) return;
  state.next_expert = part.end == spec.experts ? 0 : part.end;
  if (!whole) step->capturable = false;
  KeyWriter(step->key, "moe") << int(lane) << x << experts.layer << static_cast<const void*>(experts.resolver) << spec.experts
                              << part.begin << part.end << int(layout.gate_format) << int(layout.up_format)
                              << int(layout.down_format) << layout.gate_offset << layout.up_offset << layout.down_offset
                              << layout.inner << out;
  const Result<const uint64_t*> table = expert_table(experts);
  if (!table.ok()) return check.that(table.status());
  ExpertChoice choice{.expert = state.ids.as<int32_t>(),
                      .rows = x.rows,
                      .ranks = spec.experts_per_token,
                      .experts = spec.experts,
                      .begin = part.begin,
                      .end = part.end,
                      .extents = *table};
  float* outputs = scratch_.outputs(lane);
  if (options_.expert_slots == 0) {
    record_experts(*step, choice, layout, x, outputs);
  } else {
    check.that(experts.layer >= 0 && experts.layer < expert_layers_, "a layer of experts that reserve() was not told of");
    if (!check.ok()) return;
    KeyWriter(step->key, "slots") << *table;
    choice.extents = slots_.extents();
    const auto rounds = slots_.rounds(part.begin, part.end, entries, !experts_grouped(x.rows));
    step->slot_rounds += int(rounds.size());
    for (const SlotRound& round : rounds) {
      record(*step, "moe", [=, this, sources = *table, layer = experts.layer](const StepContext& c) {
        return slots_.enqueue(layer, choice.expert, entries, round, sources, layout.bytes, c.stream);
      });
      choice.begin = round.begin;
      choice.end = round.end;
      record_experts(*step, choice, layout, x, outputs);
    }
  }
  if (part.end < spec.experts) return;
  record(*step, "moe", [=, weights = state.weights.as<float>()](const StepContext& c) {
    return launch_combine_experts(outputs, out_stride, weights, choice.rows, choice.ranks, layout.hidden, floats(out), stride(out),
                                  c.stream);
  });
}

void CudaOps::record_experts(RecordedStep& step, const ExpertChoice& choice, const ExpertLayout& layout, Tensor x, float* outputs) {
  const int entries = choice.entries();
  const int64_t inner_stride = scratch_stride(layout.inner), out_stride = scratch_stride(layout.hidden);
  const bool grouped = experts_grouped(x.rows);
  const ExpertGroups groups = grouped ? expert_groups(scratch_.groups.data(), entries, choice.experts) : ExpertGroups{};
  if (grouped)
    record(step, "moe", [=](const StepContext& c) { return launch_group_experts(choice, groups, c.stream); });
  float *result = scratch_.inner.as<float>(), *wide = scratch_.wide.as<float>();
  const Rows in{floats(x), stride(x)};
  const ExpertMatrix gate{layout.gate_format, layout.gate_offset, layout.inner, layout.hidden};
  const ExpertMatrix down{layout.down_format, layout.down_offset, layout.hidden, layout.inner};
  if (layout.up_offset < 0) {
    record(step, "moe", [=](const StepContext& c) {
      return launch_expert_gated(choice, grouped ? &groups : nullptr, gate, in, result, inner_stride, c.stream);
    });
  } else {
    const ExpertMatrix up{layout.up_format, layout.up_offset, layout.inner, layout.hidden};
    float* ups = wide + entries * inner_stride;
    record(step, "moe", [=](const StepContext& c) {
      const ExpertGroups* in_groups = grouped ? &groups : nullptr;
      cudaError_t error = launch_expert_linear(choice, in_groups, gate, in, EntryInput::kRow, wide, inner_stride, c.stream);
      if (error == cudaSuccess)
        error = launch_expert_linear(choice, in_groups, up, in, EntryInput::kRow, ups, inner_stride, c.stream);
      if (error != cudaSuccess) return error;
      return launch_gated_rows({wide, inner_stride}, {ups, inner_stride}, entries, layout.inner, result, inner_stride, c.stream);
    });
  }
  record(step, "moe", [=](const StepContext& c) {
    return launch_expert_linear(choice, grouped ? &groups : nullptr, down, {result, inner_stride}, EntryInput::kEntry, outputs,
                                out_stride, c.stream);
  });
}

Result<const uint64_t*> CudaOps::expert_table(const ExpertSet& experts) {
  const std::span<const uint64_t> resident = experts.resolver->resident(experts.layer);
  if (!resident.empty()) return experts_.resident(experts, resident);
  if (options_.expert_slots == 0)
    return Unsupported("the CUDA backend computes experts that come through a resolver in expert slots only, and there are none");
  FT_RETURN_IF_ERROR(slots_.use_resolver(experts.resolver));
  return static_cast<const uint64_t*>(nullptr);
}

}  // namespace freetoken::cuda
