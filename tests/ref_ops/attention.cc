// Attention, one row and one head at a time over its partitions in order.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ref_ops/executor.h"
#include "ref_ops/poison.h"

namespace freetoken::ref {

void Executor::prepare_heads(const NormSpec& norm, const float* weight, int heads, int dim, int rope, int position,
                             const float* from, float* to) {
  std::vector<float> cosines, sines;
  if (rope >= 0) {
    // fp32 position * inv_freq, then the cosine of that fp32 number, as the reference models do.
    const RopeTable& table = ropes_[size_t(rope)];
    for (const float f : table.inv_freq) {
      const double angle = double(float(position) * f);
      cosines.push_back(float(std::cos(angle)) * table.attention_factor);
      sines.push_back(float(std::sin(angle)) * table.attention_factor);
    }
  }
  for (int h = 0; h < heads; h++) {
    float* head = to + h * dim;
    std::copy_n(from + h * dim, dim, head);
    if (norm.kind == NormKind::kRms) row_kernels_.rms_norm(head, weight, norm.plus_one, norm.eps, dim, head);
    if (rope < 0) continue;
    const RopeTable& table = ropes_[size_t(rope)];
    row_kernels_.rotate(head + table.offset, cosines.data(), sines.data(), int(cosines.size()), table.interleaved);
  }
}

void Executor::append(const AttentionCall& c, int row, const float* keys, const float* values) {
  KvPages& kv = kv_[size_t(c.args.group)];
  const BatchRow& at = step_->rows[size_t(row)];
  const std::vector<int32_t>& pages = step_->pages[size_t(at.sequence) * kv_.size() + size_t(c.args.group)];
  const int tokens = kv.group().page_tokens;
  const int32_t page = pages[size_t(at.position / tokens)];
  if (const std::string wrong = kv.prepare_append(c.args.layer, page, at.position % tokens); !wrong.empty()) {
    violation(wrong);
    if (!kv.check_page(page).empty()) return;
  }
  int32_t& writer = appended_[size_t(c.args.group)][size_t(page)];
  if (writer < 0) appended_pages_.push_back({c.args.group, page});
  if (writer >= 0 && writer != at.sequence)
    violation("sequences " + std::to_string(writer) + " and " + std::to_string(at.sequence) + " both write page " +
              std::to_string(page) + " of KV group " + std::to_string(c.args.group));
  writer = at.sequence;
  const std::vector<int32_t> table = kv.table(pages);
  for (int h = 0; h < c.spec.kv_heads; h++)
    attention_kernels_.append(kv.head(c.args.layer, h, table.data()), at.position, keys + h * c.spec.qk_dim,
                              values + h * c.spec.v_dim);
}

void Executor::attend(const AttentionCall& c, int row, const float* queries, float* out) {
  const AttentionSpec& spec = c.spec;
  const KvPages& kv = kv_[size_t(c.args.group)];
  const BatchRow& at = step_->rows[size_t(row)];
  const std::vector<int32_t>& pages = step_->pages[size_t(at.sequence) * kv_.size() + size_t(c.args.group)];
  const std::vector<int32_t> table = kv.table(pages);
  const int begin = spec.type == AttentionType::kWindow ? std::max(0, at.position - spec.window + 1) : 0;
  const int end = at.position + 1;
  if (const std::string wrong = kv.check_visible(c.args.layer, pages, begin, end); !wrong.empty()) violation(wrong);
  std::vector<float> scores(kAttentionPartition), part(size_t(spec.v_dim)), total(size_t(spec.v_dim));
  for (int h = 0; h < spec.q_heads; h++) {
    Queries q;
    q.count = 1;
    q.q[0] = queries + h * spec.qk_dim;
    q.begin[0] = begin;
    q.end[0] = end;
    q.scale = spec.scale;
    const KvHead head = kv.head(c.args.layer, h / (spec.q_heads / spec.kv_heads), table.data());
    float m = -std::numeric_limits<float>::infinity(), l = 0, m_part = 0, l_part = 0;
    for (int p = 0; p * kAttentionPartition < end; p++) {
      fill_poison(scores.data(), scores.size() * sizeof(float));
      fill_poison(part.data(), part.size() * sizeof(float));
      float* to = part.data();
      attention_kernels_.partition(head, q, p, scores.data(), &m_part, &l_part, &to);
      attention_kernels_.fold(&m, &l, total.data(), m_part, l_part, part.data(), spec.v_dim);
    }
    attention_kernels_.finish(l, total.data(), spec.v_dim, out + h * spec.v_dim);
  }
}

void Executor::run(const AttentionCall& c) {
  const AttentionSpec& spec = c.spec;
  const View q = input("q", c.args.q), k = input("k", c.args.k), v = input("v", c.args.v), out = output("out", c.args.out);
  const float *q_norm = vector_or_null(c.args.q_norm), *k_norm = vector_or_null(c.args.k_norm);
  std::vector<float> queries(size_t(spec.q_heads) * size_t(spec.qk_dim)), keys(size_t(spec.kv_heads) * size_t(spec.qk_dim));
  // A row sees its own key and those before it: appending row by row shows it nothing else.
  for (int r = 0; r < c.args.q.rows; r++) {
    const int position = step_->rows[size_t(r)].position;
    prepare_heads(spec.q_norm, q_norm, spec.q_heads, spec.qk_dim, spec.rope, position, q.row(r), queries.data());
    prepare_heads(spec.k_norm, k_norm, spec.kv_heads, spec.qk_dim, spec.rope, position, k.row(r), keys.data());
    append(c, r, keys.data(), v.row(r));
    attend(c, r, queries.data(), out.row(r));
  }
  // Other devices norm and rotate in place: nothing may be read here afterwards.
  for (const View& used : {q, k})
    for (int r = 0; r < used.tensor.rows; r++) fill_poison(used.row(r), size_t(used.tensor.cols) * 4);
}

}  // namespace freetoken::ref
