// Routing and the expert block of CpuOps.
//
// gate/up: a unit is (expert, half of its inner columns), claimed dynamically one ahead so that the prefetch knows where to
// go. down: a unit is a range of output columns; outputs are kept per (row, rank) and added in rank order. When a layer is
// done in parts, those of all parts are kept in the lane's memory and added after the last.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "cpu/cpu_ops.h"

namespace freetoken {
namespace {

float* row_of(Tensor t, int r) { return reinterpret_cast<float*>(t.address + r * t.row_bytes); }

Weight matrix_at(uint64_t extent, int64_t offset, WeightFormat format, int n, int k) {
  return {extent + uint64_t(offset), format, n, k};
}

}  // namespace

void CpuOps::route(Queue&, Lane lane, Tensor x, const RouteArgs& args) {
  RouteSlot& route = route_[int(lane)];
  const MoeSpec& spec = *args.spec;
  const int threads = pool_.threads(), rows = x.rows, tiles = tile_count(spec.experts);
  route.start(rows, spec.experts, spec.experts_per_token);
  const PackedMatrix router{args.router.format, args.router.n, args.router.k,
                            reinterpret_cast<const uint8_t*>(args.router.address)};
  pool_.run([&](int thread) {
    // The router always runs in fp32: its inputs are the rows themselves.
    const uint8_t** in = scratch_[thread].in.data();
    float** out = scratch_[thread].out.data();
    for (int r = 0; r < rows; r++) {
      in[r] = reinterpret_cast<const uint8_t*>(row_of(x, r));
      out[r] = row_of(router_logits_, r);
    }
    const bool by_rows = rows >= threads;
    const int r0 = by_rows ? rows * thread / threads : 0, r1 = by_rows ? rows * (thread + 1) / threads : rows;
    const int t0 = by_rows ? 0 : tiles * thread / threads, t1 = by_rows ? tiles : tiles * (thread + 1) / threads;
    if (t0 < t1 && r0 < r1)
      matmul_kernels_.matmul_tiles(router, t0, t1, r1 - r0, ActivationKind::kF32, in + r0, out + r0, nullptr);
    if (!by_rows) pool_.barrier();
    for (int r = rows * thread / threads; r < rows * (thread + 1) / threads; r++) {
      rows_.softmax(out[r], spec.experts, out[r]);
      choose_experts(out[r], spec.experts, spec.experts_per_token, spec.normalise, spec.scaling, route.ids(r),
                     route.weights(r));
    }
  });
  route.group();
}

void CpuOps::set_route(Lane lane, int rows, int experts, int per_token, const int32_t* ids, const float* weights) {
  RouteSlot& route = route_[int(lane)];
  route.start(rows, experts, per_token);
  const size_t entries = size_t(rows) * size_t(per_token);
  std::copy_n(ids, entries, route.ids(0));
  std::copy_n(weights, entries, route.weights(0));
  route.group();
}

void CpuOps::moe(Queue&, Lane lane, Tensor x, const MoeSpec& spec, const ExpertSet& set, ExpertRange part, Tensor out) {
  const ExpertLayout& layout = set.layout;
  const RouteSlot& route = route_[int(lane)];
  // Active experts of this part: indices [first_active, first_active + experts).
  const std::span<const int32_t> all = route.active();
  const int first_active = int(std::lower_bound(all.begin(), all.end(), part.begin) - all.begin());
  const std::span<const int32_t> active =
      all.subspan(first_active, std::lower_bound(all.begin(), all.end(), part.end) - all.begin() - first_active);
  const bool partial = part.begin > 0 || part.end < spec.experts, last_part = part.end >= spec.experts;
  const int threads = pool_.threads(), rows = x.rows, experts = int(active.size()), entries = route.entries();
  const ActivationKind gate_kind = kind_of(layout.gate_format), up_kind = kind_of(layout.up_format);
  const ActivationKind down_kind = kind_of(layout.down_format);
  set.resolver->post(set.layer, active);

  const int gate_n = layout.up_offset < 0 ? int(align_up(size_t(layout.inner), 16)) * 2 : layout.inner;
  auto begin_of = [&](int i) { return route.begin(first_active + i); };
  auto count_of = [&](int i) { return route.end(first_active + i) - begin_of(i); };
  auto gated_weights = [&](int i) {
    const uint64_t extent = answers_[i].address;
    GatedWeights w;
    w.gate = matrix_at(extent, layout.gate_offset, layout.gate_format, gate_n, layout.hidden);
    if (layout.up_offset >= 0) w.up = matrix_at(extent, layout.up_offset, layout.up_format, layout.inner, layout.hidden);
    return w;
  };
  auto down_weight = [&](int i) {
    return matrix_at(answers_[i].address, layout.down_offset, layout.down_format, layout.hidden, layout.inner);
  };
  const int pieces = std::max(1, std::min(layout.inner / 64, ceil_div(2 * threads, std::max(experts, 1)) * 2));
  const int piece = int(align_up(size_t(ceil_div(layout.inner, pieces)), 32));
  const int tiles = tile_count(layout.hidden);
  // Column ranges of down: one per worker while their outputs fit the scratch, more otherwise.
  const int most_tiles = std::max<int>(1, int(kDownScratchFloats / (int64_t(entries) * kTileRows)));
  const int ranges = partial ? threads : std::max(threads, ceil_div(tiles, most_tiles));
  const Tensor kept = kept_results_;  // of parts: [entries, hidden]

  std::atomic<int> next_expert{0}, next_unit{0}, next_range{0};
  std::atomic<bool> failed{false};
  pool_.run([&](int thread) {
    for (int r = rows * thread / threads; r < rows * (thread + 1) / threads; r++) {
      matmul_kernels_.encode_row(gate_kind, row_of(x, r), x.cols, input_[0].row(r));
      if (up_kind != gate_kind) matmul_kernels_.encode_row(up_kind, row_of(x, r), x.cols, input_[1].row(r));
    }
    for (int i; (i = next_expert.fetch_add(1)) < experts;) {
      answers_[i] = set.resolver->wait(set.layer, active[i]);
      if (answers_[i].kind != ExpertAnswer::Kind::kAddress) failed = true;
    }
    pool_.barrier();
    if (failed) return;

    ThreadScratch& scratch = scratch_[thread];
    const int units = experts * pieces;
    for (int u = next_unit.fetch_add(1), v; u < units; u = v) {
      v = next_unit.fetch_add(1);
      const int i = u / pieces, begin = u % pieces * piece, end = std::min(begin + piece, layout.inner);
      const int first = begin_of(i), count = count_of(i);
      GatedWeights w = gated_weights(i);
      const uint8_t** in = scratch.in.data();
      for (int e = 0; e < count; e++) in[e] = input_[0].row(route.row_of(first + e));
      if (layout.up_offset >= 0) {
        const Activations& up_input = up_kind == gate_kind ? input_[0] : input_[1];
        for (int e = 0; e < count; e++) in[count + e] = up_input.row(route.row_of(first + e));
        w.up_activations = in + count;
      }
      const uint8_t* next = v < units ? reinterpret_cast<const uint8_t*>(answers_[v / pieces].address + layout.gate_offset) +
                                            size_t(v % pieces * piece / 16) * tile_bytes(layout.gate_format, layout.hidden)
                                      : experts ? reinterpret_cast<const uint8_t*>(down_weight(0).address) : nullptr;
      for (int b = begin; b < end; b += kGatedBlock)
        gated_block(w, b, std::min(b + kGatedBlock, end), count, gate_kind, in, down_kind, first,
                    b + kGatedBlock < end ? nullptr : next, thread);
    }
    pool_.barrier();

    float* results = scratch.memory.as<float>();
    for (int range; (range = next_range.fetch_add(1)) < ranges;) {
      const int t0 = tiles * range / ranges, t1 = tiles * (range + 1) / ranges, columns = (t1 - t0) * kTileRows;
      if (t0 == t1) continue;
      for (int i = 0; i < experts; i++) {
        const int first = begin_of(i), count = count_of(i);
        for (int e = 0; e < count; e++)
          scratch.out[e] = partial ? row_of(kept, first + e)
                                   : results + size_t(first + e) * columns - int64_t(t0) * kTileRows;
        const uint8_t* next = i + 1 < experts ? reinterpret_cast<const uint8_t*>(down_weight(i + 1).address) +
                                                    size_t(t0) * tile_bytes(layout.down_format, layout.inner)
                                              : nullptr;
        matmul(down_weight(i), t0, t1, count, down_kind, inner_.rows(first), scratch.out.data(), next);
      }
      if (!last_part) continue;
      const int column = t0 * kTileRows, width = std::min(columns, layout.hidden - column);
      for (int r = 0; r < rows; r++) {
        float* to = row_of(out, r) + column;
        std::memset(to, 0, size_t(width) * sizeof(float));
        for (int rank = 0; rank < route.per_token(); rank++) {
          const int entry = route.entry_of(r, rank);
          const float* from = partial ? row_of(kept, entry) + column : results + size_t(entry) * columns;
          rows_.add_scaled(to, from, route.weights(r)[rank], width);
        }
      }
    }
  });
  set.resolver->release(set.layer);
  // Of several that failed the one with the lowest id is told of.
  for (int i = 0; failed && step_error_.ok() && i < experts; i++)
    if (answers_[i].kind != ExpertAnswer::Kind::kAddress)
      step_error_ = answers_[i].kind == ExpertAnswer::Kind::kFailed
                          ? answers_[i].error
                          : Internal("an expert was to be computed elsewhere, but the CPU backend computes all of them");
}

}  // namespace freetoken
