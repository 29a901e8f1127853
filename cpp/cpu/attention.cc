// Attention of CpuOps. A unit is one KV head of one sequence and a block of rows; when there are too few units for the
// workers, a unit is one partition of that and the partitions are folded afterwards, in the same order and so to the same
// bits.
#include <algorithm>
#include <atomic>
#include <limits>

#include "cpu/cpu_ops.h"

namespace freetoken {
namespace {

float* row_of(Tensor t, int r) { return reinterpret_cast<float*>(t.address + r * t.row_bytes); }
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// A block of queries: rows x heads of one KV head's group.
struct Unit {
  int sequence = 0, kv_head = 0, first_head = 0, heads = 0, first_row = 0, rows = 0, partitions = 0;
  int64_t partial = 0;  // first partial result, when partitions are spread
};

}  // namespace

KvHead CpuOps::kv_head(const AttentionArgs& args, int sequence, int head) const {
  const KvPool& pool = kv_[args.group];
  const KvLayer& layer = pool.group.layers[args.layer];
  const int64_t value_bytes = dtype_bytes(pool.group.dtype), tokens = pool.group.page_tokens;
  const int64_t head_bytes = (layer.qk_dim + layer.v_dim) * tokens * value_bytes;
  const uint8_t* base = pool.memory.data() + pool.layer_offset[args.layer] + head * head_bytes;
  return {base, base + layer.qk_dim * tokens * value_bytes, pool.page_bytes,
          pages_[size_t(sequence) * kv_.size() + args.group].data(), int(tokens), pool.group.dtype, layer.qk_dim,
          layer.v_dim};
}

void CpuOps::prepare_heads(const AttentionArgs& args, int row) {
  const AttentionSpec& spec = *args.spec;
  for (const bool keys : {false, true}) {
    const int heads = keys ? spec.kv_heads : spec.q_heads;
    const NormSpec& norm = keys ? spec.k_norm : spec.q_norm;
    const Tensor weight = keys ? args.k_norm : args.q_norm;
    for (int h = 0; h < heads; h++) {
      float* head = row_of(keys ? args.k : args.q, row) + h * spec.qk_dim;
      if (norm.kind == NormKind::kRms)
        rows_.rms_norm(head, reinterpret_cast<const float*>(weight.address), norm.plus_one, norm.eps, spec.qk_dim, head);
      if (spec.rope < 0) continue;
      const Rope& rope = ropes_[spec.rope];
      rows_.rotate(head + rope.table.offset, rope.cos(row), rope.sin(row, max_rows_), int(rope.table.inv_freq.size()),
                   rope.table.interleaved);
    }
  }
  for (int h = 0; h < spec.kv_heads; h++)
    attention_.append(kv_head(args, batch_rows_[row].sequence, h), batch_rows_[row].position,
                      row_of(args.k, row) + h * spec.qk_dim, row_of(args.v, row) + h * spec.v_dim);
}

void CpuOps::attention(Queue&, const AttentionArgs& args) {
  const AttentionSpec& spec = *args.spec;
  const int threads = pool_.threads(), rows = args.q.rows, group = spec.q_heads / spec.kv_heads;
  const int heads_per_block = std::min(group, kMaxQueries), rows_per_block = std::max(1, kMaxQueries / group);

  std::vector<Unit> units;
  int64_t partials = 0;
  int max_queries = 0;
  for (int s = 0; s < int(sequences_.size()); s++)
    for (int kv = 0; kv < spec.kv_heads; kv++)
      for (int h = 0; h < group; h += heads_per_block)
        for (int r = 0; r < sequences_[s].row_count; r += rows_per_block) {
          Unit u{s, kv, kv * group + h, std::min(heads_per_block, group - h), sequences_[s].first_row + r,
                 std::min(rows_per_block, sequences_[s].row_count - r)};
          u.partitions = batch_rows_[u.first_row + u.rows - 1].position / kAttentionPartition + 1;
          max_queries = std::max(max_queries, u.rows * u.heads);
          u.partial = partials;
          partials += u.partitions;
          units.push_back(u);
        }
  bool spread = int(units.size()) < 4 * threads && partials > int64_t(units.size());
  const int64_t partial_floats = int64_t(max_queries) * (2 + spec.v_dim);  // maxima, sums, accumulators
  if (spread && partials_.size_bytes() < size_t(partials * partial_floats) * sizeof(float)) {
    auto memory = Memory::allocate(size_t(partials * partial_floats) * sizeof(float));
    if (memory.ok()) partials_ = std::move(*memory);
    else spread = false;
  }
  std::vector<std::pair<int, int>> spread_units;  // (unit, partition)
  if (spread)
    for (int u = 0; u < int(units.size()); u++)
      for (int p = 0; p < units[u].partitions; p++) spread_units.push_back({u, p});

  auto queries_of = [&](const Unit& u) {
    Queries q;
    q.scale = spec.scale;
    for (int r = 0; r < u.rows; r++)
      for (int h = 0; h < u.heads; h++) {
        const int position = batch_rows_[u.first_row + r].position;
        q.q[q.count] = row_of(args.q, u.first_row + r) + (u.first_head + h) * spec.qk_dim;
        q.begin[q.count] = spec.type == AttentionType::kWindow ? std::max(0, position - spec.window + 1) : 0;
        q.end[q.count++] = position + 1;
      }
    return q;
  };
  auto output_of = [&](const Unit& u, int i) {
    return row_of(args.out, u.first_row + i / u.heads) + (u.first_head + i % u.heads) * spec.v_dim;
  };

  std::atomic<int> next_unit{0}, next_fold{0};
  pool_.run([&](int thread) {
    for (int r = rows * thread / threads; r < rows * (thread + 1) / threads; r++) prepare_heads(args, r);
    pool_.barrier();
    float* scores = scratch_[thread].memory.as<float>();
    float* accumulators = scores + kMaxQueries * kAttentionPartition;
    float *acc_p[kMaxQueries], *acc[kMaxQueries], m_p[kMaxQueries], l_p[kMaxQueries], m[kMaxQueries], l[kMaxQueries];
    for (int i = 0; i < kMaxQueries; i++) {
      acc_p[i] = accumulators + i * spec.v_dim;
      acc[i] = accumulators + (kMaxQueries + i) * spec.v_dim;
    }
    if (!spread) {
      for (int i; (i = next_unit.fetch_add(1)) < int(units.size());) {
        const Unit& u = units[i];
        const Queries q = queries_of(u);
        const KvHead head = kv_head(args, u.sequence, u.kv_head);
        std::fill_n(m, q.count, kMinusInfinity);
        for (int p = 0; p < u.partitions; p++) {
          attention_.partition(head, q, p, scores, m_p, l_p, acc_p);
          for (int j = 0; j < q.count; j++) attention_.fold(&m[j], &l[j], acc[j], m_p[j], l_p[j], acc_p[j], spec.v_dim);
        }
        for (int j = 0; j < q.count; j++) attention_.finish(l[j], acc[j], spec.v_dim, output_of(u, j));
      }
      return;
    }
    auto partial = [&](const Unit& u, int p) { return partials_.as<float>() + (u.partial + p) * partial_floats; };
    for (int i; (i = next_unit.fetch_add(1)) < int(spread_units.size());) {
      const Unit& u = units[spread_units[i].first];
      float* result = partial(u, spread_units[i].second);
      for (int j = 0; j < max_queries; j++) acc_p[j] = result + 2 * max_queries + j * spec.v_dim;
      attention_.partition(kv_head(args, u.sequence, u.kv_head), queries_of(u), spread_units[i].second, scores, result,
                           result + max_queries, acc_p);
    }
    pool_.barrier();
    for (int i; (i = next_fold.fetch_add(1)) < int(units.size());) {
      const Unit& u = units[i];
      for (int j = 0; j < u.rows * u.heads; j++) {
        m[j] = kMinusInfinity;
        for (int p = 0; p < u.partitions; p++) {
          const float* result = partial(u, p);
          attention_.fold(&m[j], &l[j], acc[j], result[j], result[max_queries + j],
                          result + 2 * max_queries + j * spec.v_dim, spec.v_dim);
        }
        attention_.finish(l[j], acc[j], spec.v_dim, output_of(u, j));
      }
    }
  });
}

}  // namespace freetoken
