#include "ref_ops/calls.h"

#include <bit>

namespace freetoken::ref {
namespace {

// Appends one call's shape.
struct ShapeWriter {
  Shape& shape;

  void number(uint64_t n) { shape.numbers.push_back(n); }
  void number(int n) { number(uint64_t(int64_t(n))); }
  void number(float f) { number(uint64_t(std::bit_cast<uint32_t>(f))); }
  void tensor(const Tensor& t) {
    number(int(t.dtype)), number(t.rows), number(t.cols), number(uint64_t(t.row_bytes)), number(int(t.valid()));
    shape.buffers.push_back(t.address);
  }
  void weight(const Weight& w) { number(w.address), number(int(w.format)), number(w.n), number(w.k); }
  void norm(const NormSpec& s) {
    number(int(s.kind)), number(int(s.plus_one)), number(int(s.has_weight)), number(int(s.has_bias)), number(s.eps);
  }

  void operator()(const EmbedCall& c) { weight(c.table), number(c.scale), tensor(c.out); }
  void operator()(const NormCall& c) { tensor(c.x), norm(c.spec), tensor(c.weight), tensor(c.bias), tensor(c.out); }
  void operator()(const LinearCall& c) {
    tensor(c.x), number(uint64_t(c.outputs.size()));
    for (const LinearOutput& o : c.outputs) weight(o.weight), tensor(o.bias), tensor(o.out);
  }
  void operator()(const AttentionCall& c) {
    const AttentionSpec& s = c.spec;
    for (int n : {int(s.type), s.q_heads, s.kv_heads, s.qk_dim, s.v_dim, s.window, s.rope}) number(n);
    number(s.scale), norm(s.q_norm), norm(s.k_norm);
    number(c.args.group), number(c.args.layer);
    for (const Tensor& t : {c.args.q, c.args.k, c.args.v, c.args.q_norm, c.args.k_norm, c.args.sinks, c.args.out}) tensor(t);
  }
  void operator()(const AddCall& c) { tensor(c.x), tensor(c.y), number(c.scale); }
  void operator()(const MlpCall& c) {
    tensor(c.x), weight(c.args.gate_up), weight(c.args.up), tensor(c.args.gate_bias), tensor(c.args.up_bias);
    weight(c.args.down), tensor(c.args.down_bias), number(c.args.inner), tensor(c.out);
  }
  void moe(const MoeSpec& s) {
    for (int n : {s.experts, s.experts_per_token, s.inner, int(s.normalise)}) number(n);
    number(s.scaling);
  }
  void operator()(const RouteCall& c) { number(int(c.lane)), tensor(c.x), moe(c.spec), weight(c.router); }
  void operator()(const MoeCall& c) {
    number(int(c.lane)), tensor(c.x), moe(c.spec);
    number(c.experts.layer), number(c.experts.experts), number(uint64_t(std::bit_cast<uintptr_t>(c.experts.resolver)));
    number(c.part.begin), number(c.part.end), tensor(c.out);
  }
  void operator()(const GatherCall& c) { tensor(c.x), number(c.rows), tensor(c.out); }
  void operator()(const LogitsCall& c) {
    tensor(c.x), weight(c.head), tensor(c.bias), number(c.scale), number(c.softcap), tensor(c.out);
  }
  void operator()(const SampleCall& c) { tensor(c.logits), number(c.rows); }
  void operator()(const ReadCall& c) { tensor(c.tensor); }
  void operator()(const ProbeCall&) {}
};

}  // namespace

const char* call_name(const Call& call) {
  static constexpr const char* kNames[] = {"embed", "norm",   "linear", "attention", "add",  "mlp",  "route",
                                           "moe",   "gather", "logits", "sample",    "read", "probe"};
  static_assert(std::size(kNames) == std::variant_size_v<Call>);
  return kNames[call.index()];
}

void add_step_to_shape(const StepData& data, Shape* shape) {
  shape->numbers.push_back(data.rows.size());
  shape->numbers.push_back(data.sequences.size());
}

void add_call_to_shape(const Call& call, Shape* shape) {
  ShapeWriter writer{*shape};
  writer.number(uint64_t(call.index()));
  std::visit(writer, call);
}

}  // namespace freetoken::ref
