#include "cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "core/fp_env.h"
#include "quant/t32.h"

namespace freetoken {
CpuOps::CpuOps(CpuOptions options)
    : float32_activations_(options.float32_activations),
      isa_(options.isa),
      matmul_kernels_(matmul_kernels(options.isa)),
      rows_(row_kernels(options.isa)),
      attention_(attention_kernels(options.isa)),
      pool_(options.threads) {
  samplers_.reserve(options.threads);
  for (int t = 0; t < options.threads; t++) samplers_.emplace_back(options.usable_tokens);
}

OpsInfo CpuOps::info() const {
  return {.device = "cpu", .isa = isa_name(isa_), .threads = pool_.threads(), .batch_invariant = true};
}

Result<Tensor> CpuOps::allocate(DType dtype, int rows, int cols) {
  const int64_t row_bytes = int64_t(align_up(size_t(cols), kTileRows)) * dtype_bytes(dtype);
  FT_ASSIGN_OR_RETURN(Memory memory, Memory::allocate(size_t(row_bytes) * rows));
  const Tensor tensor{reinterpret_cast<uint64_t>(memory.data()), dtype, rows, cols, row_bytes};
  buffers_.push_back(std::move(memory));
  return tensor;
}

Status CpuOps::allocate_kv(std::span<const KvGroup> groups, std::span<const int32_t> pages) {
  kv_filler_.reset();
  kv_.clear();
  std::vector<std::span<uint8_t>> memories;
  for (size_t g = 0; g < groups.size(); g++) {
    KvPool pool{.group = groups[g]};
    for (const KvLayer& layer : groups[g].layers) {
      pool.layer_offset.push_back(pool.page_bytes);
      pool.page_bytes += int64_t(layer.kv_heads) * (layer.qk_dim + layer.v_dim) * groups[g].page_tokens *
                         dtype_bytes(groups[g].dtype);
    }
    FT_ASSIGN_OR_RETURN(pool.memory, Memory::allocate(size_t(pool.page_bytes) * pages[g]));
    memories.push_back({pool.memory.data(), pool.memory.size_bytes()});
    kv_.push_back(std::move(pool));
  }
  kv_filler_ = std::make_unique<MemoryFiller>(std::move(memories));
  return {};
}

void CpuOps::set_rope_tables(std::span<const RopeTable> tables) {
  ropes_.clear();
  for (const RopeTable& table : tables) ropes_.push_back({table, {}});
}

Status CpuOps::reserve(const OpsLimits& limits, const ModelSpec& spec) {
  const int max_rows = max_rows_ = limits.max_rows;
  slots_.resize(limits.sampler_slots);
  int max_k = spec.hidden, max_inner = 1, inner_rows = max_rows, max_experts = 1, max_per_token = 1, max_v = 16;
  for (const LayerSpec& layer : spec.layers)
    for (const SublayerSpec& s : layer.sublayers) {
      if (s.kind == SublayerKind::kAttention) {
        max_k = std::max(max_k, s.attention.q_heads * s.attention.v_dim);
        max_v = std::max(max_v, s.attention.v_dim);
      }
      if (s.kind == SublayerKind::kMlp) max_inner = std::max(max_inner, s.mlp.inner);
      if (s.kind == SublayerKind::kMoe) {
        max_inner = std::max(max_inner, s.moe.inner);
        max_experts = std::max(max_experts, s.moe.experts);
        max_per_token = std::max(max_per_token, s.moe.experts_per_token);
        inner_rows = std::max(inner_rows, max_rows * s.moe.experts_per_token);
      }
    }
  for (Activations& a : input_) FT_RETURN_IF_ERROR(a.reserve(max_rows, max_k));
  FT_RETURN_IF_ERROR(inner_.reserve(inner_rows, int(align_up(size_t(max_inner), 32))));
  for (RouteSlot& route : route_) route.reserve(max_rows, max_per_token, max_experts);
  if (limits.partial_moe && max_experts > 1) {
    FT_ASSIGN_OR_RETURN(kept_results_, allocate(DType::kF32, max_rows * max_per_token, spec.hidden));
  }
  answers_.resize(max_experts);
  FT_ASSIGN_OR_RETURN(router_logits_, allocate(DType::kF32, max_rows, max_experts));
  for (Rope& rope : ropes_) {
    FT_ASSIGN_OR_RETURN(rope.values, Memory::allocate(rope.table.inv_freq.size() * 2 * max_rows * sizeof(float) + 64));
  }
  const int64_t entries = int64_t(max_rows) * max_per_token;
  scratch_floats_ = std::max<int64_t>({int64_t(max_rows) * kGatedBlock * 2,
                                       std::max(kDownScratchFloats, entries * kTileRows),
                                       int64_t(kMaxQueries) * (kAttentionPartition + 2 * max_v) + 256});
  scratch_.resize(pool_.threads());
  for (ThreadScratch& s : scratch_) {
    FT_ASSIGN_OR_RETURN(s.memory, Memory::allocate(size_t(scratch_floats_) * sizeof(float)));
    s.out.resize(std::max<size_t>(entries, max_rows));
    s.in.resize(2 * size_t(max_rows));  // one expert's rows, for gate and for up of another kind
  }
  return {};
}

std::unique_ptr<Queue> CpuOps::make_queue() { return std::make_unique<Queue>(); }
Status CpuOps::wait(Queue&, Ticket) { return std::exchange(step_error_, {}); }

void CpuOps::begin_step(Queue&, const Batch& batch) {
  set_denormals_to_zero();
  sampled_in_step_ = false;
  batch_rows_.assign(batch.rows.begin(), batch.rows.end());
  sequences_.assign(batch.sequences.begin(), batch.sequences.end());
  pages_.resize(sequences_.size() * kv_.size());
  for (size_t s = 0; s < sequences_.size(); s++) {
    const BatchSequence& sequence = sequences_[s];
    const int last = batch_rows_[sequence.first_row + sequence.row_count - 1].position;
    for (size_t g = 0; g < kv_.size(); g++) {
      const int count = last / kv_[g].group.page_tokens + 1;
      pages_[s * kv_.size() + g].assign(sequence.pages[g], sequence.pages[g] + count);
    }
  }
  // Angles as the reference computes them: fp32 position * inv_freq, then the cosine of that fp32 number.
  pool_.run([&](int thread) {
    const int rows = int(batch_rows_.size()), n = pool_.threads();
    for (Rope& rope : ropes_)
      for (int r = rows * thread / n; r < rows * (thread + 1) / n; r++) {
        const float position = float(batch_rows_[r].position);
        for (size_t i = 0; i < rope.table.inv_freq.size(); i++) {
          const double angle = double(position * rope.table.inv_freq[i]);
          rope.cos(r)[i] = float(std::cos(angle)) * rope.table.attention_factor;
          rope.sin(r, max_rows_)[i] = float(std::sin(angle)) * rope.table.attention_factor;
        }
      }
  });
}

void CpuOps::embed(Queue&, const Weight& table, float scale, Tensor out) {
  const int rows = int(batch_rows_.size()), n = pool_.threads();
  pool_.run([&](int thread) {
    std::vector<uint8_t> source(source_row_bytes(table.format, table.k));
    for (int r = rows * thread / n; r < rows * (thread + 1) / n; r++) {
      const int32_t token = batch_rows_[r].token >= 0 ? batch_rows_[r].token : sampled_[~batch_rows_[r].token];
      float* row = reinterpret_cast<float*>(out.address + r * out.row_bytes);
      if (token < 0) {  // nothing could be drawn
        std::fill_n(row, table.k, std::numeric_limits<float>::quiet_NaN());
        continue;
      }
      uint8_t* wanted[kTileRows] = {};
      wanted[token % kTileRows] = source.data();
      const uint8_t* tile = reinterpret_cast<const uint8_t*>(table.address) +
                            size_t(token / kTileRows) * tile_bytes(table.format, table.k);
      unpack_tile(table.format, table.k, tile, wanted);
      decode_row(table.format, table.k, source.data(), row);
      if (scale != 1.0f)
        for (int i = 0; i < table.k; i++) row[i] = row[i] * scale;
    }
  });
}

void CpuOps::norm(Queue&, Tensor x, const NormSpec& spec, Tensor weight, Tensor bias, Tensor out) {
  const int n = pool_.threads();
  auto body = [&](int thread, int threads) {
    const float* w = reinterpret_cast<const float*>(weight.address);
    const float* b = reinterpret_cast<const float*>(bias.address);
    for (int r = x.rows * thread / threads; r < x.rows * (thread + 1) / threads; r++) {
      const float* from = reinterpret_cast<const float*>(x.address + r * x.row_bytes);
      float* to = reinterpret_cast<float*>(out.address + r * out.row_bytes);
      if (spec.kind == NormKind::kRms)
        rows_.rms_norm(from, w, spec.plus_one, spec.eps, x.cols, to);
      else
        rows_.layer_norm(from, w, b, spec.eps, x.cols, to);
    }
  };
  if (x.rows < n) return body(0, 1);
  pool_.run([&](int thread) { body(thread, n); });
}

void CpuOps::add(Queue&, Tensor x, Tensor y, float scale) {
  const int n = pool_.threads();
  auto body = [&](int thread, int threads) {
    for (int r = x.rows * thread / threads; r < x.rows * (thread + 1) / threads; r++)
      rows_.add_scaled(reinterpret_cast<float*>(x.address + r * x.row_bytes),
                       reinterpret_cast<const float*>(y.address + r * y.row_bytes), scale, x.cols);
  };
  if (x.rows < n) return body(0, 1);
  pool_.run([&](int thread) { body(thread, n); });
}

void CpuOps::gather(Queue&, Tensor x, std::span<const int32_t> rows, Tensor out) {
  for (size_t i = 0; i < rows.size(); i++)
    std::memcpy(reinterpret_cast<void*>(out.address + i * out.row_bytes),
                reinterpret_cast<const void*>(x.address + rows[i] * x.row_bytes), size_t(x.cols) * sizeof(float));
}

void CpuOps::read(Queue&, Tensor tensor, std::span<float> out) {
  for (int r = 0; r < tensor.rows; r++)
    std::memcpy(out.data() + size_t(r) * tensor.cols, reinterpret_cast<const void*>(tensor.address + r * tensor.row_bytes),
                size_t(tensor.cols) * sizeof(float));
}

void CpuOps::copy_pages(Queue&, std::span<const PageCopy> copies) {
  for (const PageCopy& c : copies) std::memcpy(page_at(c.group, c.to), page_at(c.group, c.from), size_t(kv_[c.group].page_bytes));
}

Ticket CpuOps::read_page(Queue&, int group, int32_t page, std::span<uint8_t> out) {
  std::memcpy(out.data(), page_at(group, page), size_t(kv_[group].page_bytes));
  return {};
}

void CpuOps::write_page(Queue&, int group, int32_t page, std::span<const uint8_t> bytes) {
  std::memcpy(page_at(group, page), bytes.data(), size_t(kv_[group].page_bytes));
}

void CpuOps::open_sampler(Queue&, int slot, const SamplerInit& init) {
  slots_[slot] = {std::make_unique<SamplerState>(init, samplers_[0].vocab()), init.sample_index};
}

void CpuOps::advance_sampler(Queue&, int slot, std::span<const int32_t> tokens) { slots_[slot].state->advance(tokens); }

void CpuOps::sample(Queue&, Tensor logits, std::span<const SampleRow> rows, std::span<SampleResult> results) {
  if (!sampled_in_step_) sampled_.clear();
  sampled_in_step_ = true;
  const size_t before = sampled_.size();
  sampled_.resize(before + rows.size());
  const int n = pool_.threads(), count = int(rows.size());
  pool_.run([&](int thread) {
    Sampler& sampler = samplers_[thread];
    for (int i = count * thread / n; i < count * (thread + 1) / n; i++) {
      const SampleRow& row = rows[i];
      const float* values = reinterpret_cast<const float*>(logits.address + row.logits_row * logits.row_bytes);
      SampleResult& result = results[i];
      const SamplerSlot& slot = slots_[row.slot];
      result.token = row.target >= 0 ? row.target
                                     : sampler.sample(values, *slot.state, row.ahead, uint32_t(row.position),
                                                      uint32_t(slot.sample_index));
      sampled_[before + i] = result.token;
      if (row.logprobs < 0 || result.token < 0) continue;
      RowLogprobs logprobs = sampler.logprobs(values, result.token, row.logprobs);
      result.logprob = logprobs.token_logprob;
      result.top = std::move(logprobs.top);
    }
  });
}

}  // namespace freetoken
