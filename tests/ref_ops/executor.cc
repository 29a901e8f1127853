// A step: its calls in order, the checks around each, and what the host gets at the end.
#include "ref_ops/executor.h"

#include <algorithm>

#include "ref_ops/poison.h"

namespace freetoken::ref {

Executor::Executor(const RefOptions& options, DeviceMemory& memory, Violations& violations)
    : float32_activations_(options.float32_activations),
      memory_(memory),
      violations_(violations),
      matmul_kernels_(matmul_kernels(options.isa)),
      row_kernels_(row_kernels(options.isa)),
      attention_kernels_(attention_kernels(options.isa)),
      sampler_(options.usable_tokens),
      mailbox_(options.seed, options.max_delay_us) {}

Status Executor::allocate_kv(std::span<const KvGroup> groups, std::span<const int32_t> pages) {
  kv_.clear();
  appended_.clear();
  for (size_t g = 0; g < groups.size(); g++) {
    FT_ASSIGN_OR_RETURN(KvPages kv, KvPages::create(groups[g], int(g), pages[g], memory_));
    kv_.push_back(std::move(kv));
    appended_.emplace_back(size_t(pages[g]), -1);
  }
  return {};
}

void Executor::violation(const std::string& what) {
  if (error_.ok()) violations_.add(std::string(call_) + ": " + what);
}

Executor::View Executor::view(const Tensor& t) const {
  const size_t bytes = t.rows ? size_t(t.rows - 1) * size_t(t.row_bytes) + size_t(t.cols) * 4 : 0;
  return {memory_.at(t.address, bytes), t};
}

const float* Executor::vector_or_null(const Tensor& t) const {
  return t.valid() ? reinterpret_cast<const float*>(memory_.at(t.address, size_t(t.cols) * 4)) : nullptr;
}

const uint8_t* Executor::weight_data(const Weight& w) const { return memory_.at(w.address, packed_bytes(w.format, w.n, w.k)); }

Executor::View Executor::input(const char* name, const Tensor& t) {
  const View v = view(t);
  for (int r = 0; r < t.rows && error_.ok(); r++) {
    const size_t at = find_poison(v.row(r), size_t(t.cols), true);
    if (at == size_t(t.cols)) continue;
    violation(std::string("reads ") + name + "[" + std::to_string(r) + "][" + std::to_string(at) + "], which was never written (" +
              memory_.describe(t.address) + ")");
    break;
  }
  return v;
}

void Executor::poison_padding(const View& v) {
  const Tensor& t = v.tensor;
  for (int r = 0; r < t.rows; r++) fill_poison(v.row(r) + t.cols, size_t(t.row_bytes) - size_t(t.cols) * 4);
  // Rows after these, as far as anybody wrote them.
  Block* block = memory_.find(t.address, 0);
  const int first = int((t.address - block->address()) / uint64_t(block->row_bytes)) + t.rows;
  if (block->used_rows > first)
    fill_poison(block->data() + first * block->row_bytes, size_t(block->used_rows - first) * size_t(block->row_bytes));
  block->used_rows = first;
}

Executor::View Executor::output(const char*, const Tensor& t) {
  const View v = view(t);
  for (int r = 0; r < t.rows; r++) fill_poison(v.row(r), size_t(t.cols) * 4);
  poison_padding(v);
  outputs_.push_back(v);
  return v;
}

// After a call: nothing but the outputs' own elements may have been written.
void Executor::check_outputs() {
  for (const View& v : outputs_) {
    const Tensor& t = v.tensor;
    for (int r = 0; r < t.rows; r++) {
      const size_t padding = size_t(t.row_bytes) / 4 - size_t(t.cols);
      const size_t at = find_poison(v.row(r) + t.cols, padding, false);
      if (at < padding)
        violation("wrote column " + std::to_string(t.cols + int(at)) + " of a tensor with " + std::to_string(t.cols) + " columns");
    }
    if (Block* block = memory_.find(t.address, 0))
      if (const std::string damage = block->check_guards(); !damage.empty()) violation(damage);
  }
  outputs_.clear();
}

Status Executor::run_step(const std::vector<Call>& calls, const StepData& data) {
  step_ = &data;
  error_ = {};
  sampled_in_step_ = false;
  results_.assign(data.samples.size(), {});
  reads_.assign(data.reads.size(), {});
  for (const Call& call : calls) {
    call_ = call_name(call);
    std::visit([&](const auto& c) { run(c); }, call);
    check_outputs();
  }
  call_ = "a step";
  if (const std::string damage = memory_.check(1); !damage.empty()) violation(damage);
  for (const auto& [group, page] : appended_pages_) {
    appended_[size_t(group)][size_t(page)] = -1;
    if (const std::string damage = kv_[size_t(group)].check_guard(page); !damage.empty()) violation(damage);
  }
  appended_pages_.clear();
  mailbox_.drain();
  for (size_t i = 0; i < results_.size(); i++) std::move(results_[i].begin(), results_[i].end(), data.samples[i].results.begin());
  for (size_t i = 0; i < reads_.size(); i++) std::copy(reads_[i].begin(), reads_[i].end(), data.reads[i].begin());
  step_ = nullptr;
  return error_;
}

void Executor::run(const ReadCall& c) {
  const View t = input("its tensor", c.tensor);
  std::vector<float>& out = reads_[c.data];
  for (int r = 0; r < c.tensor.rows; r++) out.insert(out.end(), t.row(r), t.row(r) + c.tensor.cols);
}

void Executor::run(const ProbeCall& c) {
  step_->probes[c.data](memory_);
}

void Executor::copy_pages(std::span<const PageCopy> copies) {
  for (const PageCopy& c : copies) kv_[size_t(c.group)].copy(c.from, c.to);
}

void Executor::read_page(int group, int32_t page, std::span<uint8_t> out) { kv_[size_t(group)].read(page, out); }

void Executor::write_page(int group, int32_t page, std::span<const uint8_t> bytes) { kv_[size_t(group)].write(page, bytes); }

}  // namespace freetoken::ref
