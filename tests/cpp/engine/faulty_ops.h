// Ops before another Ops that fail when told to, or whose experts come from elsewhere.
#pragma once
#include <atomic>
#include <memory>
#include <new>
#include <thread>
#include <utility>

#include "ops/ops.h"

namespace freetoken::testing {

class FaultyOps final : public Ops {
 public:
  struct Faults {
    std::atomic<bool> no_kv{false};       // there is no memory for KV
    std::atomic<bool> fail_step{false};   // the next begin_step's work is broken: the next wait() says so, once
    std::atomic<bool> throw_step{false};  // begin_step throws
    std::atomic<bool> hold_step{false}, held{false};  // begin_step waits, and says that it does
    ExpertResolver* resolver = nullptr;   // in place of the model's; layers keep their numbers
  };
  FaultyOps(std::unique_ptr<Ops> ops, std::shared_ptr<Faults> faults)
      : ops_(std::move(ops)), faults_(std::move(faults)) {}

  Result<uint8_t*> open(const PackedTensorInfo& info) override { return ops_->open(info); }
  Status commit(const PackedTensorInfo& info) override { return ops_->commit(info); }
  Result<uint8_t*> open_extent(const ExtentInfo& info) override { return ops_->open_extent(info); }
  Status commit_extent(const ExtentInfo& info) override { return ops_->commit_extent(info); }
  OpsInfo info() const override { return ops_->info(); }
  Weight weight(const std::string& name) const override { return ops_->weight(name); }
  Tensor vector(const std::string& name) const override { return ops_->vector(name); }
  const ExpertLayout* expert_layout(const std::string& extent) const override { return ops_->expert_layout(extent); }
  uint64_t extent_address(const std::string& extent) const override { return ops_->extent_address(extent); }
  int64_t weight_bytes() const override { return ops_->weight_bytes(); }
  Result<Tensor> allocate(DType dtype, int rows, int cols) override { return ops_->allocate(dtype, rows, cols); }
  Status allocate_kv(std::span<const KvGroup> g, std::span<const int32_t> pages) override {
    if (faults_->no_kv) return ResourceExhausted("no memory is left on the device");
    return ops_->allocate_kv(g, pages);
  }
  void set_rope_tables(std::span<const RopeTable> tables) override { ops_->set_rope_tables(tables); }
  Status reserve(const OpsLimits& limits, const ModelSpec& spec) override { return ops_->reserve(limits, spec); }
  std::unique_ptr<Queue> make_queue() override { return ops_->make_queue(); }

  void begin_step(Queue& queue, const Batch& batch) override {
    while (faults_->hold_step) {
      faults_->held = true;
      std::this_thread::yield();
    }
    if (faults_->throw_step) throw std::bad_alloc();
    if (faults_->fail_step.exchange(false)) pending_ = IoError("the disk is gone");
    ops_->begin_step(queue, batch);
  }
  Ticket end_step(Queue& queue) override { return ops_->end_step(queue); }
  void copy_pages(Queue& queue, std::span<const PageCopy> copies) override { ops_->copy_pages(queue, copies); }
  Ticket read_page(Queue& queue, int group, int32_t page, std::span<uint8_t> out) override {
    return ops_->read_page(queue, group, page, out);
  }
  void write_page(Queue& queue, int group, int32_t page, std::span<const uint8_t> bytes) override {
    ops_->write_page(queue, group, page, bytes);
  }
  void open_sampler(Queue& queue, int slot, const SamplerInit& init) override { ops_->open_sampler(queue, slot, init); }
  void advance_sampler(Queue& queue, int slot, std::span<const int32_t> tokens) override {
    ops_->advance_sampler(queue, slot, tokens);
  }
  Status wait(Queue& queue, Ticket ticket) override {
    const Status status = ops_->wait(queue, ticket);
    return pending_.ok() ? status : std::exchange(pending_, Status());
  }

  void embed(Queue& q, const Weight& table, float scale, Tensor out) override { ops_->embed(q, table, scale, out); }
  void norm(Queue& q, Tensor x, const NormSpec& s, Tensor w, Tensor b, Tensor out) override {
    ops_->norm(q, x, s, w, b, out);
  }
  void linear(Queue& q, Tensor x, std::span<const LinearOutput> outputs) override { ops_->linear(q, x, outputs); }
  void attention(Queue& q, const AttentionArgs& args) override { ops_->attention(q, args); }
  void add(Queue& q, Tensor x, Tensor y, float scale) override { ops_->add(q, x, y, scale); }
  void mlp(Queue& q, Tensor x, const MlpArgs& args, Tensor out) override { ops_->mlp(q, x, args, out); }
  void route(Queue& q, Lane lane, Tensor x, const RouteArgs& args) override { ops_->route(q, lane, x, args); }
  void moe(Queue& q, Lane lane, Tensor x, const MoeSpec& s, const ExpertSet& e, ExpertRange part, Tensor out) override {
    ExpertSet set = e;
    if (faults_->resolver) set.resolver = faults_->resolver;
    ops_->moe(q, lane, x, s, set, part, out);
  }
  void gather(Queue& q, Tensor x, std::span<const int32_t> rows, Tensor out) override { ops_->gather(q, x, rows, out); }
  void logits(Queue& q, Tensor x, const Weight& head, Tensor bias, float scale, float softcap, Tensor out) override {
    ops_->logits(q, x, head, bias, scale, softcap, out);
  }
  void sample(Queue& q, Tensor logits, std::span<const SampleRow> rows, std::span<SampleResult> results) override {
    ops_->sample(q, logits, rows, results);
  }
  void read(Queue& q, Tensor tensor, std::span<float> out) override { ops_->read(q, tensor, out); }

 private:
  std::unique_ptr<Ops> ops_;
  std::shared_ptr<Faults> faults_;
  Status pending_;
};

}  // namespace freetoken::testing
