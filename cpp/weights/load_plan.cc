#include "weights/load_plan.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "ops/expert_extent.h"

namespace freetoken {
namespace {

std::string shape_text(int64_t n, int64_t k) {
  std::string text = "[";
  text += std::to_string(n);
  if (k > 0) text.append(", ").append(std::to_string(k));
  return text += "]";
}

// Takes the tensors that a spec needs out of a table and remembers which are left.
class Builder {
 public:
  Builder(const WeightTable& table, const ModelSpec& spec) : table_(table), spec_(spec) {
    for (const WeightEntry& entry : table.tensors) entries_.emplace(entry.name, &entry);
  }

  Result<LoadPlan> build() {
    FT_RETURN_IF_ERROR(matrix("embed", spec_.vocab, spec_.hidden, &plan_.embedding_bytes));
    if (!spec_.tied_embedding) FT_RETURN_IF_ERROR(matrix("lm_head", spec_.vocab, spec_.hidden, &plan_.embedding_bytes));
    if (spec_.lm_head_bias) FT_RETURN_IF_ERROR(vector("lm_head_bias", spec_.vocab));
    FT_RETURN_IF_ERROR(norm("final_norm", spec_.final_norm, spec_.hidden));
    for (size_t l = 0; l < spec_.layers.size(); l++)
      for (size_t s = 0; s < spec_.layers[l].sublayers.size(); s++)
        FT_RETURN_IF_ERROR(sublayer("layers." + std::to_string(l) + "." + std::to_string(s) + ".", spec_.layers[l].sublayers[s]));
    FT_RETURN_IF_ERROR(check_nothing_left());
    for (const LoadItem& item : plan_.items)
      for (const LoadTensor& tensor : item.tensors)
        plan_.source_bytes += tensor.first->bytes + (tensor.second ? tensor.second->bytes : 0);
    std::stable_sort(plan_.items.begin(), plan_.items.end(), [](const LoadItem& a, const LoadItem& b) {
      const WeightEntry *x = a.tensors[0].first, *y = b.tensors[0].first;
      return std::tie(x->file, x->offset) < std::tie(y->file, y->offset);
    });
    return std::move(plan_);
  }

 private:
  Status sublayer(const std::string& prefix, const SublayerSpec& s) {
    FT_RETURN_IF_ERROR(norm(prefix + "pre_norm", s.pre_norm, spec_.hidden));
    FT_RETURN_IF_ERROR(norm(prefix + "post_norm", s.post_norm, spec_.hidden));
    switch (s.kind) {
      case SublayerKind::kAttention: return attention(prefix, s.attention);
      case SublayerKind::kMlp: return mlp(prefix, s.mlp);
      case SublayerKind::kMoe: return moe(prefix, s.moe);
      default: return Unsupported(prefix + "*: this kind of sublayer is not loaded by this version");
    }
  }

  Status attention(const std::string& prefix, const AttentionSpec& a) {
    const int64_t q = int64_t(a.q_heads) * a.qk_dim, k = int64_t(a.kv_heads) * a.qk_dim, v = int64_t(a.kv_heads) * a.v_dim;
    FT_RETURN_IF_ERROR(matrix(prefix + "q", q, spec_.hidden, &plan_.dense_bytes, a.q_heads));
    FT_RETURN_IF_ERROR(matrix(prefix + "k", k, spec_.hidden, &plan_.dense_bytes, a.kv_heads));
    FT_RETURN_IF_ERROR(matrix(prefix + "v", v, spec_.hidden, &plan_.dense_bytes));
    FT_RETURN_IF_ERROR(matrix(prefix + "o", spec_.hidden, int64_t(a.q_heads) * a.v_dim, &plan_.dense_bytes));
    if (a.qkv_bias) {
      FT_RETURN_IF_ERROR(vector(prefix + "q_bias", q, a.q_heads));
      FT_RETURN_IF_ERROR(vector(prefix + "k_bias", k, a.kv_heads));
      FT_RETURN_IF_ERROR(vector(prefix + "v_bias", v));
    }
    if (a.o_bias) FT_RETURN_IF_ERROR(vector(prefix + "o_bias", spec_.hidden));
    FT_RETURN_IF_ERROR(norm(prefix + "q_norm", a.q_norm, a.qk_dim));
    FT_RETURN_IF_ERROR(norm(prefix + "k_norm", a.k_norm, a.qk_dim));
    if (a.sinks) FT_RETURN_IF_ERROR(vector(prefix + "sinks", a.q_heads));
    return {};
  }

  Status mlp(const std::string& prefix, const MlpSpec& m) {
    FT_RETURN_IF_ERROR(dense_feed_forward(prefix, m.inner));
    if (!m.bias) return {};
    FT_RETURN_IF_ERROR(vector(prefix + "gate_bias", m.inner));
    FT_RETURN_IF_ERROR(vector(prefix + "up_bias", m.inner));
    return vector(prefix + "down_bias", spec_.hidden);
  }

  Status moe(const std::string& prefix, const MoeSpec& m) {
    FT_RETURN_IF_ERROR(matrix(prefix + "router", m.experts, spec_.hidden, &plan_.dense_bytes));
    if (m.selection_bias) FT_RETURN_IF_ERROR(vector(prefix + "selection_bias", m.experts));
    for (int e = 0; e < m.experts; e++) FT_RETURN_IF_ERROR(expert(prefix + "experts." + std::to_string(e), m.inner));
    return m.shared_inner > 0 ? dense_feed_forward(prefix + "shared.", m.shared_inner) : Status();
  }

  Status norm(const std::string& name, const NormSpec& norm, int n) {
    if (norm.kind == NormKind::kNone) return {};
    if (norm.has_weight) FT_RETURN_IF_ERROR(vector(name, n));
    return norm.has_bias ? vector(name + "_bias", n) : Status();
  }

  // gate, up and down; the first two become one tensor where they have one format.
  Result<std::vector<LoadTensor>> feed_forward(const std::string& prefix, int inner) {
    FT_ASSIGN_OR_RETURN(const WeightEntry* gate, take(prefix + "gate", inner, spec_.hidden, 0));
    FT_ASSIGN_OR_RETURN(const WeightEntry* up, take(prefix + "up", inner, spec_.hidden, 0));
    FT_ASSIGN_OR_RETURN(const WeightEntry* down, take(prefix + "down", spec_.hidden, inner, 0));
    const std::vector<PackedTensorInfo> infos = gated_tensors(prefix, gate->format, up->format, down->format, inner, spec_.hidden);
    if (infos.size() == 2) return std::vector<LoadTensor>{{infos[0], gate, up}, {infos[1], down, nullptr}};
    return std::vector<LoadTensor>{{infos[0], gate, nullptr}, {infos[1], up, nullptr}, {infos[2], down, nullptr}};
  }

  Status dense_feed_forward(const std::string& prefix, int inner) {
    FT_ASSIGN_OR_RETURN(std::vector<LoadTensor> tensors, feed_forward(prefix, inner));
    for (LoadTensor& tensor : tensors) add(std::move(tensor), &plan_.dense_bytes);
    return {};
  }

  Status expert(const std::string& name, int inner) {
    LoadItem item;
    item.is_extent = true;
    item.extent.name = name;
    FT_ASSIGN_OR_RETURN(item.tensors, feed_forward(name + ".", inner));
    for (const LoadTensor& tensor : item.tensors) item.extent.append(tensor.info);
    plan_.expert_bytes += int64_t(item.extent.bytes);
    plan_.items.push_back(std::move(item));
    return {};
  }

  Status matrix(const std::string& name, int64_t n, int64_t k, int64_t* bytes, int heads = 0) {
    FT_ASSIGN_OR_RETURN(const WeightEntry* entry, take(name, n, k, heads));
    add({{name, false, entry->format, entry->n, entry->k}, entry, nullptr}, bytes);
    return {};
  }

  Status vector(const std::string& name, int64_t n, int heads = 0) {
    FT_ASSIGN_OR_RETURN(const WeightEntry* entry, take(name, n, 0, heads));
    add({{name, true, WeightFormat::kF32, entry->n, 1}, entry, nullptr}, &plan_.dense_bytes);
    return {};
  }

  void add(LoadTensor tensor, int64_t* bytes) {
    *bytes += int64_t(tensor.info.bytes());
    LoadItem item;
    item.tensors.push_back(std::move(tensor));
    plan_.items.push_back(std::move(item));
  }

  // heads: how many heads the rows form where rotary pairs are allowed, else 0.
  Result<const WeightEntry*> take(const std::string& name, int64_t n, int64_t k, int heads) {
    const auto it = entries_.find(name);
    if (it == entries_.end())
      return InvalidArgument("tensor " + name + " " + shape_text(n, k) + " is missing from the checkpoint");
    const WeightEntry* entry = it->second;
    entries_.erase(it);
    const std::string where = table_.files[size_t(entry->file)] + ": tensor '" + entry->source + "' (" + name + ")";
    if (entry->n != n || entry->k != k)
      return InvalidArgument(where + " has shape " + shape_text(entry->n, entry->k) + ", the model needs " + shape_text(n, k));
    if (entry->rotary_heads != 0 && entry->rotary_heads != heads)
      return InvalidArgument(where + " has rotary rows of " + std::to_string(entry->rotary_heads) + " heads, the model has " +
                             std::to_string(heads) + " here");
    return entry;
  }

  Status check_nothing_left() const {
    if (entries_.empty()) return {};
    std::vector<const WeightEntry*> left;
    for (const auto& [name, entry] : entries_) left.push_back(entry);
    std::sort(left.begin(), left.end(), [](const WeightEntry* a, const WeightEntry* b) { return a->name < b->name; });
    std::string names;
    for (size_t i = 0; i < left.size() && i < 3; i++)
      names += std::string(i ? ", " : "") + "'" + left[i]->source + "' (" + left[i]->name + ")";
    return InvalidArgument(table_.files[size_t(left[0]->file)] + ": " + std::to_string(left.size()) +
                           " tensors that the model has no place for: " + names + (left.size() > 3 ? ", ..." : ""));
  }

  const WeightTable& table_;
  const ModelSpec& spec_;
  std::unordered_map<std::string_view, const WeightEntry*> entries_;
  LoadPlan plan_;
};

}  // namespace

Result<LoadPlan> make_load_plan(const WeightTable& table, const ModelSpec& spec) { return Builder(table, spec).build(); }

}  // namespace freetoken
