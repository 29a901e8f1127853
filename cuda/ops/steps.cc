// From recorded calls to work on the stream, and back to the host.
#include <algorithm>
#include <cstring>
#include <utility>

#include "cuda/ops/cuda_ops.h"
#include "cuda/runtime/cuda_status.h"
#include "cuda/runtime/graph_capture.h"

namespace freetoken::cuda {
namespace {

// Numbers of rows of the decode steps that become graphs.
bool graph_rows(int rows) { return rows == 1 || rows == 2 || rows == 4; }

void deliver(const ResultBlock& results, int ring, const SampleDelivery& sample) {
  const auto* rows = reinterpret_cast<const SampleResultView*>(results.host(ring, sample.results));
  const auto* ids = reinterpret_cast<const int32_t*>(results.host(ring, sample.top_ids));
  const auto* logprobs = reinterpret_cast<const float*>(results.host(ring, sample.top_logprobs));
  for (size_t i = 0; i < sample.out.size(); i++) {
    SampleResult& out = sample.out[i];
    out.token = rows[i].token;
    out.logprob = rows[i].logprob;
    out.top.clear();
    for (int n = 0; n < rows[i].top_count; n++) {
      const size_t at = i * size_t(sample.top_stride) + size_t(n);
      out.top.emplace_back(ids[at], logprobs[at]);
    }
  }
}

}  // namespace

RecordedStep* CudaOps::recording(const char* call) {
  if (!step_.open) {
    fail_between(Internal(std::string(call) + " outside a step"));
    return nullptr;
  }
  return step_.error.ok() ? &step_ : nullptr;
}

void CudaOps::begin_step(Queue&, const Batch& batch) {
  use_device();
  step_ = {};
  step_.open = true;
  ring_ = (ring_ + 1) % StepBlock::kRing;
  // The place in the ring is that of the step before the last: what is left of that one goes to the host first.
  while (std::any_of(pending_.begin(), pending_.end(), [&](const Pending& p) { return p.ring == ring_; })) retire();
  results_.begin();
  step_.error = block_.begin();
  if (!reserved_ && step_.error.ok()) step_.error = Internal("begin_step before reserve()");
  if (step_.error.ok()) step_.error = fill_batch(step_, batch);
}

Status CudaOps::fill_batch(RecordedStep& step, const Batch& batch) {
  const int rows = step.rows = int(batch.rows.size()), sequences = step.sequences = int(batch.sequences.size());
  if (rows > limits_.max_rows || sequences > limits_.max_sequences)
    return InvalidArgument("a step of " + std::to_string(rows) + " rows and " + std::to_string(sequences) +
                           " sequences, but reserve() said at most " + std::to_string(limits_.max_rows) + " and " +
                           std::to_string(limits_.max_sequences));
  int32_t* tokens = block_.put<int32_t>(size_t(rows), &step.row_token);
  for (int r = 0; tokens && r < rows; r++) {
    tokens[r] = batch.rows[size_t(r)].token;
    if (tokens[r] < 0 && ~tokens[r] >= last_sampled_rows_)
      return InvalidArgument("row " + std::to_string(r) + " takes what row " + std::to_string(~tokens[r]) +
                             " of the last step that sampled drew, but that one sampled " + std::to_string(last_sampled_rows_));
    step.max_token = std::max(step.max_token, tokens[r]);
  }
  int32_t* positions = block_.put<int32_t>(size_t(rows), &step.row_position);
  for (int r = 0; positions && r < rows; r++) {
    positions[r] = batch.rows[size_t(r)].position;
    if (positions[r] < 0 || positions[r] >= max_positions_)
      return InvalidArgument("position " + std::to_string(positions[r]) + ", but the model has " + std::to_string(max_positions_));
    step.last_position = std::max(step.last_position, positions[r]);
  }
  int32_t* in_sequence = block_.put<int32_t>(size_t(rows), &step.row_sequence);
  for (int r = 0; in_sequence && r < rows; r++) in_sequence[r] = batch.rows[size_t(r)].sequence;
  while (step.partitions * kAttentionPartition <= step.last_position) step.partitions *= 2;

  // [sequence][group][stride]: a step's size follows its sequences and its longest context.
  int stride = 0;
  for (int g = 0; g < kv_.size(); g++) {
    const int tokens_per_page = kv_[g].group.page_tokens;
    stride = std::max(stride, (step.partitions * kAttentionPartition + tokens_per_page - 1) / tokens_per_page);
  }
  step.group_stride = stride;
  step.sequence_stride = int64_t(stride) * kv_.size();
  int32_t* table = block_.put<int32_t>(size_t(step.sequence_stride) * size_t(sequences), &step.page_table);
  for (int s = 0; table && s < sequences; s++) {
    const BatchSequence& sequence = batch.sequences[size_t(s)];
    if (sequence.first_row < 0 || sequence.row_count <= 0 || sequence.first_row + sequence.row_count > rows)
      return InvalidArgument("sequence " + std::to_string(s) + " has rows that the step lacks");
    const int last = batch.rows[size_t(sequence.first_row + sequence.row_count) - 1].position;
    for (int g = 0; g < kv_.size(); g++) {
      int32_t* list = table + s * step.sequence_stride + g * stride;
      const int count = last / kv_[g].group.page_tokens + 1;
      // A page that no layer of the group sees any more may be named by a number that is none.
      std::memcpy(list, sequence.pages[g], size_t(count) * sizeof(int32_t));
      std::fill(list + count, list + stride, -1);
    }
  }
  KeyWriter(step.key, "begin_step") << rows << sequences << step.partitions << stride;
  step.angles.assign(ropes_.size(), false);
  return {};
}

Status CudaOps::enqueue(const RecordedStep& step, const StepContext& context) {
  for (const Launch& launch : step.launches)
    if (const cudaError_t error = launch.run(context); error != cudaSuccess) return cuda_status(error, launch.call);
  return {};
}

Status CudaOps::run(RecordedStep& step, int ring) {
  bool moved = false;
  FT_RETURN_IF_ERROR(weights_.join(stream_.get()));
  FT_RETURN_IF_ERROR(block_.copy(account_, stream_.get(), &moved));
  FT_RETURN_IF_ERROR(results_.reserve(account_, stream_.get(), ring, &moved));
  if (moved) graphs_.clear();
  StepContext context{.view = {}, .block = &block_, .results = &results_, .stream = stream_.get()};
  context.view = {.row_token = context.at<int32_t>(step.row_token),
                  .row_position = context.at<int32_t>(step.row_position),
                  .row_sequence = context.at<int32_t>(step.row_sequence),
                  .sampled = sampled_.as<int32_t>(),
                  .page_table = context.at<int32_t>(step.page_table),
                  .group_stride = step.group_stride,
                  .sequence_stride = step.sequence_stride};
  const bool decode = graph_rows(step.rows) && step.rows == step.sequences;
  GraphEntry* entry = use_graphs_ && step.capturable && decode ? &graphs_.find(step.key) : nullptr;
  if (!entry || entry->uses++ == 0) {
    stats_.eager++;
    FT_RETURN_IF_ERROR(enqueue(step, context));
  } else {
    if (!entry->graph) {
      stats_.captures++;
      FT_RETURN_IF_ERROR(capture_graph(stream_.get(), [&] { return enqueue(step, context); }, &entry->graph));
    } else {
      stats_.replays++;
    }
    FT_CUDA_RETURN_IF_ERROR(cudaGraphLaunch(entry->graph, stream_.get()), "cudaGraphLaunch");
  }
  return results_.copy(stream_.get(), ring);
}

Ticket CudaOps::end_step(Queue&) {
  use_device();
  stats_.steps++;
  Pending pending;
  if (!step_.open) {
    fail_between(Internal("end_step outside a step"));
    return submit(std::move(pending));
  }
  step_.open = false;
  pending.ring = ring_;
  pending.error = step_.error.ok() ? run(step_, ring_) : step_.error;
  if (step_.slot_rounds > 0 && step_.error.ok()) pending.slot_calls = slots_.count_calls(step_.slot_rounds);
  if (step_.sampled_rows > 0) last_sampled_rows_ = step_.sampled_rows;
  pending.samples = std::move(step_.samples);
  pending.bytes = std::move(step_.reads);
  return submit(std::move(pending));
}

Ticket CudaOps::submit(Pending pending) {
  pending.ticket = ++next_ticket_;
  if (pending.error.ok()) pending.error = between_error_;
  between_error_ = {};
  if (spare_events_.empty()) {
    Result<Event> event = Event::create();
    if (event.ok())
      spare_events_.push_back(std::move(*event));
    else if (pending.error.ok())
      pending.error = event.status();
  }
  if (!spare_events_.empty()) {
    pending.done = std::move(spare_events_.back());
    spare_events_.pop_back();
    if (const Status recorded = pending.done.record(stream_.get()); pending.error.ok()) pending.error = recorded;
  }
  pending_.push_back(std::move(pending));
  return {next_ticket_};
}

void CudaOps::retire() {
  Pending work = std::move(pending_.front());
  pending_.pop_front();
  Status status = work.error;
  if (work.done.get()) {
    const Status done = work.done.synchronize();
    if (status.ok()) status = done;
    // Whatever else went wrong: an error of this step's experts must not be taken for a later one's.
    if (work.slot_calls > 0)
      if (const Status experts = slots_.take_error(work.slot_calls); status.ok()) status = experts;
    spare_events_.push_back(std::move(work.done));
  }
  if (status.ok()) {
    for (const SampleDelivery& sample : work.samples) deliver(results_, work.ring, sample);
    for (const ByteDelivery& bytes : work.bytes) std::memcpy(bytes.out.data(), bytes.pinned.data(), bytes.out.size());
  }
  for (ByteDelivery& bytes : work.bytes) spare_pinned_.push_back(std::move(bytes.pinned));
  if (!status.ok()) errors_.emplace_back(work.ticket, status);
}

Status CudaOps::wait(Queue&, Ticket ticket) {
  use_device();
  while (!pending_.empty() && pending_.front().ticket <= ticket.id) retire();
  Status first;
  std::erase_if(errors_, [&](const std::pair<uint64_t, Status>& error) {
    if (error.first > ticket.id) return false;
    if (first.ok()) first = error.second;
    return true;
  });
  if (first.ok() && pending_.empty()) first = std::exchange(between_error_, {});
  return first;
}

Result<PinnedBuffer> CudaOps::spare_pinned(size_t bytes) {
  const auto fits = std::find_if(spare_pinned_.begin(), spare_pinned_.end(), [&](const PinnedBuffer& b) { return b.bytes() >= bytes; });
  if (fits == spare_pinned_.end()) {
    spare_pinned_.clear();  // none is in use
    return PinnedBuffer::allocate("reading from the GPU", std::max<size_t>(bytes, 4096));
  }
  PinnedBuffer buffer = std::move(*fits);
  spare_pinned_.erase(fits);
  return buffer;
}

}  // namespace freetoken::cuda
