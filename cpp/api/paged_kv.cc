#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "api/tensor_pool.h"
#include "platform/memory_limits.h"

namespace freetoken {
namespace {

std::string at(const char* name, int64_t i, int64_t value) {
  return std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(value);
}

Status check_dimension(const char* name, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return {};
  return InvalidArgument(std::string(name) + " is " + std::to_string(value) + ": must be 1 to " + std::to_string(most));
}

constexpr int64_t kMaxHeads = 4096, kMaxHeadDim = 4096, kMaxLayers = 4096;

}  // namespace

struct PagedKv::State {
  PagedKvOptions options;
  pid_t process = 0;
  std::mutex mutex;
  std::unique_ptr<CpuOps> ops;
  std::vector<float> q, k;  // attention may leave anything in its inputs, so they are copied

  // The rows of a page that is written belong to one sequence alone: it stands once in what the table uses.
  Status check(const PagedStep& step, int64_t rows) const {
    FT_RETURN_IF_ERROR(check_dimension("q heads", step.q_heads, kMaxHeads));
    if (step.q_heads % options.kv_heads)
      return InvalidArgument("q has " + std::to_string(step.q_heads) + " heads: must be a multiple of the " +
                             std::to_string(options.kv_heads) + " of the cache");
    if (step.layer < 0 || step.layer >= options.layers)
      return InvalidArgument("layer is " + std::to_string(step.layer) + ": the cache has 0 to " +
                             std::to_string(options.layers - 1));
    if (step.window < 0 || step.window > kMaxTensorRows)
      return InvalidArgument("window is " + std::to_string(step.window) + ": must be 1 to " + std::to_string(kMaxTensorRows) +
                             ", or 0 for all positions");
    int64_t total = 0;
    std::vector<int32_t> uses(size_t(options.pages), 0);
    std::vector<std::pair<int32_t, int64_t>> written;  // page, sequence
    for (int64_t s = 0; s < step.sequences; s++) {
      const int64_t begin = step.context_lengths[s], count = step.row_counts[s];
      if (begin < 0) return InvalidArgument(at("context_lengths", s, begin) + ": must not be negative");
      if (count < 0) return InvalidArgument(at("row_counts", s, count) + ": must not be negative");
      if (count == 0) continue;
      total += count;
      const int64_t pages = (begin + count + kPageTokens - 1) / kPageTokens;
      if (pages > step.table_width)
        return InvalidArgument("sequence " + std::to_string(s) + " reaches position " + std::to_string(begin + count - 1) +
                               " and needs " + std::to_string(pages) + " pages: page_table has " +
                               std::to_string(step.table_width) + " columns");
      if (pages > options.pages)
        return InvalidArgument("sequence " + std::to_string(s) + " needs " + std::to_string(pages) +
                               " pages: the cache has " + std::to_string(options.pages));
      for (int64_t i = 0; i < pages; i++) {
        const int32_t page = step.page_table[s * step.table_width + i];
        if (page < 0 || page >= options.pages)
          return InvalidArgument("page_table[" + std::to_string(s) + ", " + std::to_string(i) + "] is " +
                                 std::to_string(page) + ": the cache has pages 0 to " + std::to_string(options.pages - 1));
        uses[size_t(page)]++;
        if ((i + 1) * kPageTokens > begin) written.push_back({page, s});
      }
    }
    if (total != rows)
      return InvalidArgument("row_counts add up to " + std::to_string(total) + ", q, k and v have " + std::to_string(rows) +
                             " rows");
    for (const auto& [page, sequence] : written)
      if (uses[size_t(page)] > 1)
        return InvalidArgument("page " + std::to_string(page) + " is written by sequence " + std::to_string(sequence) +
                               " and stands elsewhere in page_table: shared pages can only be read");
    return {};
  }
};

PagedKv::PagedKv(std::unique_ptr<State> state) : state_(std::move(state)) {}
const PagedKvOptions& PagedKv::options() const { return state_->options; }

PagedKv::~PagedKv() {
  // Threads do not survive a fork: the child cannot end them.
  if (state_->process != getpid()) (void)state_.release();
}

Status PagedKv::create(const PagedKvOptions& options, std::unique_ptr<PagedKv>* out) {
  FT_RETURN_IF_ERROR(check_dimension("pages", options.pages, kMaxTensorRows / kPageTokens));
  FT_RETURN_IF_ERROR(check_dimension("layers", options.layers, kMaxLayers));
  FT_RETURN_IF_ERROR(check_dimension("kv_heads", options.kv_heads, kMaxHeads));
  FT_RETURN_IF_ERROR(check_dimension("qk_dim", options.qk_dim, kMaxHeadDim));
  FT_RETURN_IF_ERROR(check_dimension("v_dim", options.v_dim, kMaxHeadDim));
  if (options.v_dim % 16)
    return InvalidArgument("v_dim is " + std::to_string(options.v_dim) + ": must be a multiple of 16");
  return guarded("making the cache", [&]() -> Status {
    KvGroup group;
    group.dtype = options.float32 ? DType::kF32 : DType::kBF16;
    group.page_tokens = kPageTokens;
    group.layers.assign(size_t(options.layers), {int(options.kv_heads), int(options.qk_dim), int(options.v_dim)});
    const AvailableMemory available = available_memory();
    const double bytes = double(group.page_bytes()) * double(options.pages);
    if (!available.limit.empty() && bytes > double(available.bytes))
      return ResourceExhausted("the cache needs " + std::to_string(int64_t(bytes)) + " bytes, " +
                               std::to_string(available.bytes) + " are available (" + available.limit + "): fewer pages");
    auto state = std::make_unique<State>();
    state->options = options;
    state->process = getpid();
    FT_ASSIGN_OR_RETURN(state->ops, make_tensor_ops(MatmulInput::kAuto));
    const int32_t pages = int32_t(options.pages);
    FT_RETURN_IF_ERROR(state->ops->allocate_kv({&group, 1}, {&pages, 1}));
    ModelSpec spec;
    spec.hidden = 1;
    SublayerSpec attention;
    attention.kind = SublayerKind::kAttention;
    attention.attention.v_dim = int(options.v_dim);
    LayerSpec layer;
    layer.sublayers.push_back(attention);
    spec.layers.push_back(layer);
    FT_RETURN_IF_ERROR(state->ops->reserve({.max_rows = kRowBlock, .max_sequences = kRowBlock, .sampler_slots = 0}, spec));
    out->reset(new PagedKv(std::move(state)));
    return {};
  });
}

Status PagedKv::attend(const PagedStep& step, int64_t rows, const float* q, const float* k, const float* v, float* out) {
  return guarded("attention", [&]() -> Status {
    State& s = *state_;
    if (s.process != getpid())
      return InvalidArgument("this cache belongs to process " + std::to_string(s.process) +
                             " and was carried over a fork: make one in the new process");
    FT_RETURN_IF_ERROR(s.check(step, rows));
    const std::lock_guard lock(s.mutex);
    const KeepFloatMode keep;
    AttentionSpec spec;
    spec.type = step.window ? AttentionType::kWindow : AttentionType::kFull;
    spec.window = int(step.window);
    spec.q_heads = int(step.q_heads);
    spec.kv_heads = int(s.options.kv_heads);
    spec.qk_dim = int(s.options.qk_dim);
    spec.v_dim = int(s.options.v_dim);
    spec.scale = step.scale;
    const int q_cols = spec.q_heads * spec.qk_dim, k_cols = spec.kv_heads * spec.qk_dim, v_cols = spec.kv_heads * spec.v_dim,
              out_cols = spec.q_heads * spec.v_dim;
    Queue queue;
    std::vector<BatchRow> batch_rows;
    std::vector<BatchSequence> sequences;
    std::vector<const int32_t*> pages(size_t(step.sequences));  // of the one group
    int64_t sequence = 0, done = 0;                              // rows of `sequence` that are done
    for (int64_t first = 0; first < rows;) {
      batch_rows.clear();
      sequences.clear();
      while (batch_rows.size() < kRowBlock && sequence < step.sequences) {
        const int64_t left = step.row_counts[sequence] - done;
        const int count = int(std::min<int64_t>(left, kRowBlock - int64_t(batch_rows.size())));
        if (count > 0) {
          pages[size_t(sequence)] = step.page_table + sequence * step.table_width;
          for (int r = 0; r < count; r++)
            batch_rows.push_back({.sequence = int32_t(sequences.size()),
                                  .position = int32_t(step.context_lengths[sequence] + done + r)});
          sequences.push_back({int32_t(batch_rows.size()) - count, count, &pages[size_t(sequence)]});
        }
        done += count;
        if (count < left) break;
        sequence++;
        done = 0;
      }
      const int count = int(batch_rows.size());
      s.q.assign(q + first * q_cols, q + (first + count) * q_cols);
      s.k.assign(k + first * k_cols, k + (first + count) * k_cols);
      s.ops->begin_step(queue, {.rows = batch_rows, .sequences = sequences});
      s.ops->attention(queue, {.spec = &spec,
                               .group = 0,
                               .layer = int(step.layer),
                               .q = host_tensor(s.q.data(), count, q_cols),
                               .k = host_tensor(s.k.data(), count, k_cols),
                               .v = host_tensor(v + first * v_cols, count, v_cols),
                               .out = host_tensor(out + first * out_cols, count, out_cols)});
      FT_RETURN_IF_ERROR(s.ops->wait(queue, s.ops->end_step(queue)));
      first += count;
    }
    return {};
  });
}

}  // namespace freetoken
