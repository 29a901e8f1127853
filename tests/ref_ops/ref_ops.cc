// Weights, memory, steps and what happens between them.
#include "ref_ops/ref_ops.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ref_ops/check.h"
#include "ref_ops/poison.h"

#include "ops/expert_extent.h"

namespace freetoken::ref {

RefOps::RefOps(RefOptions options)
    : options_(std::move(options)),
      executor_(options_, memory_, violations_),
      device_(executor_, options_.seed, options_.max_delay_us) {}

RefOps::~RefOps() {
  device_.idle();
  if (!told_ && !violations_.status().ok()) {
    std::fprintf(stderr, "RefOps: violations that no wait() told of; see above\n");
    std::abort();
  }
}

RefStats RefOps::stats() const {
  return {steps_, captures_, replays_, executor_.posted_experts(), executor_.answered_experts()};
}

OpsInfo RefOps::info() const {
  return {.device = "ref", .isa = isa_name(options_.isa), .threads = 1, .batch_invariant = true};
}

Result<uint8_t*> RefOps::open(const PackedTensorInfo& info) {
  Staging staging;
  FT_ASSIGN_OR_RETURN(staging.memory, Memory::allocate(std::max<size_t>(info.bytes(), 64)));
  uint8_t* data = staging.memory.data();
  fill_poison(data, info.bytes() / 2 * 2);
  staging_[info.name] = std::move(staging);
  return data;
}

Status RefOps::commit(const PackedTensorInfo& info) {
  const auto it = staging_.find(info.name);
  if (it == staging_.end()) return Internal("RefOps: " + info.name + " is committed but was not opened");
  FT_ASSIGN_OR_RETURN(Block * block, memory_.allocate(info.name, info.bytes()));
  std::memcpy(block->data(), it->second.memory.data(), info.bytes());
  staging_.erase(it);
  block->sealed = true;
  block->sealed_checksum = block->checksum();
  tensors_[info.name] = {info, block};
  if (!info.vector) weights_at_[block->address()] = info;
  weight_bytes_ += int64_t(info.bytes());
  return {};
}

Result<uint8_t*> RefOps::open_extent(const ExtentInfo& info) {
  Staging staging;
  FT_ASSIGN_OR_RETURN(staging.layout, freetoken::expert_layout(info));
  FT_ASSIGN_OR_RETURN(staging.memory, Memory::allocate(info.bytes));
  uint8_t* data = staging.memory.data();
  fill_poison(data, info.bytes);
  staging_[info.name] = std::move(staging);
  return data;
}

Status RefOps::commit_extent(const ExtentInfo& info) {
  const auto it = staging_.find(info.name);
  if (it == staging_.end()) return Internal("RefOps: " + info.name + " is committed but was not opened");
  FT_ASSIGN_OR_RETURN(Block * block, memory_.allocate(info.name, info.bytes));
  std::memcpy(block->data(), it->second.memory.data(), info.bytes);
  extents_[info.name] = {it->second.layout, block};
  staging_.erase(it);
  block->sealed = true;
  block->sealed_checksum = block->checksum();
  weight_bytes_ += int64_t(info.bytes);
  return {};
}

Weight RefOps::weight(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end() || it->second.info.vector) return {};
  const PackedTensorInfo& info = it->second.info;
  return {it->second.block->address(), info.format, info.n, info.k};
}

Tensor RefOps::vector(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end() || !it->second.info.vector) return {};
  const PackedTensorInfo& info = it->second.info;
  return {it->second.block->address(), DType::kF32, 1, info.n, int64_t(info.bytes())};
}

const ExpertLayout* RefOps::expert_layout(const std::string& extent) const {
  const auto it = extents_.find(extent);
  return it == extents_.end() ? nullptr : &it->second.first;
}

uint64_t RefOps::extent_address(const std::string& extent) const {
  const auto it = extents_.find(extent);
  return it == extents_.end() ? 0 : it->second.second->address();
}

Result<Tensor> RefOps::allocate(DType dtype, int rows, int cols) {
  device_.idle();
  const int64_t row_bytes = int64_t(align_up(size_t(cols), kTileRows)) * dtype_bytes(dtype);
  const std::string name =
      "buffer " + std::to_string(buffers_++) + " [" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
  FT_ASSIGN_OR_RETURN(Block * block, memory_.allocate(name, size_t(row_bytes) * size_t(rows)));
  block->row_bytes = row_bytes;
  block->rows = block->used_rows = rows;
  return Tensor{block->address(), dtype, rows, cols, row_bytes};
}

Status RefOps::allocate_kv(std::span<const KvGroup> groups, std::span<const int32_t> pages) {
  device_.idle();
  return executor_.allocate_kv(groups, pages);
}

void RefOps::set_rope_tables(std::span<const RopeTable> tables) {
  device_.idle();
  rope_tables_ = int(tables.size());
  executor_.set_rope_tables(tables);
}

Status RefOps::reserve(const OpsLimits& limits, const ModelSpec& spec) {
  if (steps_ > 0) reject("reserve", "after the first begin_step");
  device_.idle();
  limits_ = limits;
  reserved_ = true;
  max_positions_ = spec.max_positions;
  executor_.reserve(limits);
  return {};
}

std::unique_ptr<Queue> RefOps::make_queue() { return std::make_unique<RefQueue>(); }

RefOps::RefQueue& RefOps::of(Queue& queue) {
  if (auto* own = dynamic_cast<RefQueue*>(&queue)) return *own;
  // There is nothing to record into: no call can go on from here.
  std::fprintf(stderr, "RefOps: a queue that make_queue() did not make\n");
  std::abort();
}

RefOps::RefQueue* RefOps::between_steps(Queue& queue, const char* call) {
  RefQueue& q = of(queue);
  if (!q.in_step) return &q;
  reject(call, "inside a step");
  return nullptr;
}

RefOps::RefQueue* RefOps::in_step(Queue& queue, const char* call) {
  RefQueue& q = of(queue);
  if (!q.in_step) reject(call, "outside a step");
  return q.in_step && !broken_step_ ? &q : nullptr;
}

Status RefOps::wait(Queue& queue, Ticket ticket) {
  of(queue);
  if (ticket.id > next_ticket_) reject("wait", "for ticket " + std::to_string(ticket.id) + ", which was never given");
  Status status = device_.wait(std::min(ticket.id, next_ticket_));
  if (Status violated = violations_.status(); !violated.ok()) {
    told_ = true;
    return violated;
  }
  return status;
}

void RefOps::begin_step(Queue& queue, const Batch& batch) {
  RefQueue* q = between_steps(queue, "begin_step");
  if (!q) return;
  q->in_step = true;
  broken_step_ = false;
  q->calls.clear();
  q->shape = {};
  q->data = {};
  q->data.rows.assign(batch.rows.begin(), batch.rows.end());
  q->data.sequences.assign(batch.sequences.begin(), batch.sequences.end());
  add_step_to_shape(q->data, &q->shape);
  if (!reserved_) return reject("begin_step", "before reserve()");
  Check check(*this, "begin_step");
  check.that(int(batch.rows.size()) <= limits_.max_rows, [&] {
    return std::to_string(batch.rows.size()) + " rows, but reserve() said at most " + std::to_string(limits_.max_rows);
  });
  check.that(int(batch.sequences.size()) <= limits_.max_sequences, [&] {
    return std::to_string(batch.sequences.size()) + " sequences, but reserve() said at most " +
           std::to_string(limits_.max_sequences);
  });
  int row = 0;
  for (size_t s = 0; s < batch.sequences.size(); s++) {
    const BatchSequence& sequence = batch.sequences[s];
    q->data.sequences[s].pages = nullptr;
    check.that(sequence.first_row == row && sequence.row_count > 0 && row + sequence.row_count <= int(batch.rows.size()), [&] {
      return "sequence " + std::to_string(s) + " has " + std::to_string(sequence.row_count) + " rows from row " +
             std::to_string(sequence.first_row) + ", which do not follow those of the one before";
    });
    if (!check.ok()) return;
    for (int i = 0; i < sequence.row_count; i++, row++) {
      const BatchRow& at = batch.rows[size_t(row)];
      check.that(at.sequence == int(s) && at.position == batch.rows[size_t(sequence.first_row)].position + i && at.position >= 0,
                 [&] { return "row " + std::to_string(row) + " is not the next one of sequence " + std::to_string(s); });
      check.that(at.position < max_positions_, [&] {
        return "position " + std::to_string(at.position) + ", but the model has " + std::to_string(max_positions_);
      });
      check.that(at.token >= 0 || ~at.token < last_sampled_rows_, [&] {
        return "row " + std::to_string(row) + " takes what row " + std::to_string(~at.token) +
               " of the last step that sampled drew, but it sampled " + std::to_string(last_sampled_rows_) + " rows";
      });
    }
    const int last = batch.rows[size_t(row) - 1].position;
    check.that(executor_.kv().empty() || sequence.pages, [&] { return "sequence " + std::to_string(s) + " has no pages"; });
    if (!check.ok()) return;
    for (size_t g = 0; g < executor_.kv().size(); g++) {
      const int count = last / executor_.kv()[g].group().page_tokens + 1;
      const int32_t* pages = sequence.pages[g];
      q->data.pages.emplace_back(pages, pages + count);
    }
  }
  check.that(row == int(batch.rows.size()), [] { return "rows without a sequence"; });
}

Ticket RefOps::end_step(Queue& queue) {
  RefQueue* q = &of(queue);
  if (!q->in_step) {
    reject("end_step", "outside a step");
    return {next_ticket_};
  }
  q->in_step = false;
  steps_++;
  if (broken_step_) return submit(*q);
  int sampled = 0;
  for (const StepData::Sample& s : q->data.samples) sampled += int(s.rows.size());
  if (!q->data.samples.empty()) last_sampled_rows_ = sampled;
  const int variants = graphs_.variants(q->shape);
  bool replay = false;
  std::shared_ptr<const Graph> graph = graphs_.find_or_capture(std::move(q->shape), std::move(q->calls), &replay);
  (replay ? replays_ : captures_)++;
  // A lane has buffers of its own, so the same calls may come on as many sets of them as there are lanes.
  if (options_.fixed_addresses && !replay && variants >= kLanes)
    reject("end_step", "the same calls as in an earlier step, but on other buffers: addresses must stay the same");
  q->before.push_back([graph, data = std::make_shared<StepData>(std::move(q->data))](Executor& executor) {
    return executor.run_step(graph->calls, *data);
  });
  return submit(*q);
}

Ticket RefOps::submit(RefQueue& queue) {
  device_.submit(++next_ticket_, std::exchange(queue.before, {}));
  return {next_ticket_};
}

void RefOps::copy_pages(Queue& queue, std::span<const PageCopy> copies) {
  RefQueue* q = between_steps(queue, "copy_pages");
  if (!q) return;
  Check check(*this, "copy_pages");
  for (const PageCopy& c : copies) check.page(c.group, c.from), check.page(c.group, c.to);
  if (!check.ok()) return;
  q->before.push_back([owned = std::vector<PageCopy>(copies.begin(), copies.end())](Executor& executor) {
    executor.copy_pages(owned);
    return Status();
  });
}

Ticket RefOps::read_page(Queue& queue, int group, int32_t page, std::span<uint8_t> out) {
  RefQueue* q = between_steps(queue, "read_page");
  Check check(*this, "read_page");
  check.page(group, page, out.size());
  if (!q || !check.ok()) return {next_ticket_};
  std::fill(out.begin(), out.end(), uint8_t(0xa5));
  q->before.push_back([=](Executor& executor) {
    executor.read_page(group, page, out);
    return Status();
  });
  return submit(*q);
}

void RefOps::write_page(Queue& queue, int group, int32_t page, std::span<const uint8_t> bytes) {
  RefQueue* q = between_steps(queue, "write_page");
  Check check(*this, "write_page");
  check.page(group, page, bytes.size());
  if (!q || !check.ok()) return;
  q->before.push_back([=, owned = std::vector<uint8_t>(bytes.begin(), bytes.end())](Executor& executor) {
    executor.write_page(group, page, owned);
    return Status();
  });
}

void RefOps::open_sampler(Queue& queue, int slot, const SamplerInit& init) {
  RefQueue* q = between_steps(queue, "open_sampler");
  Check check(*this, "open_sampler");
  check.slot(slot);
  check.that(init.params != nullptr, [] { return "no parameters"; });
  if (!q || !check.ok()) return;
  auto owned = std::make_shared<OwnedSamplerInit>();
  owned->params = *init.params;
  owned->prompt.assign(init.prompt.begin(), init.prompt.end());
  owned->sampled.assign(init.sampled.begin(), init.sampled.end());
  owned->end_tokens.assign(init.end_tokens.begin(), init.end_tokens.end());
  owned->init = init;
  q->before.push_back([slot, owned](Executor& executor) {
    executor.open_sampler(slot, *owned);
    return Status();
  });
}

void RefOps::advance_sampler(Queue& queue, int slot, std::span<const int32_t> tokens) {
  RefQueue* q = between_steps(queue, "advance_sampler");
  Check check(*this, "advance_sampler");
  check.slot(slot);
  if (!q || !check.ok()) return;
  q->before.push_back([slot, owned = std::vector<int32_t>(tokens.begin(), tokens.end())](Executor& executor) {
    executor.advance_sampler(slot, owned);
    return Status();
  });
}

}  // namespace freetoken::ref
