// The draw from a row of adjusted logits.
#pragma once
#include "cuda/kernels/sample_cut-inl.h"

namespace freetoken::cuda {

// Denormals count as zero, as on the CPU; NaN counts as -inf.
FT_DEV float flush(float x) { return fabsf(x) < 0x1p-126f ? 0.0f : x; }
FT_DEV float clean_logit(float x) { return x == x ? flush(x) : negative_infinity(); }

// Philox4x32-10 with counter (position, sample index, 0, 0) and the seed as key; ((x0 >> 9) + 0.5) 2^-23.
FT_DEV float draw_uniform(uint64_t seed, uint32_t position, uint32_t sample_index) {
  uint32_t c0 = position, c1 = sample_index, c2 = 0, c3 = 0, k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; round++) {
    const uint64_t a = uint64_t(0xD2511F53u) * c0, b = uint64_t(0xCD9E8D57u) * c2;
    c0 = uint32_t(b >> 32) ^ c1 ^ k0;
    c1 = uint32_t(b);
    c2 = uint32_t(a >> 32) ^ c3 ^ k1;
    c3 = uint32_t(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return __fmul_rn(float(c0 >> 9) + 0.5f, 0x1p-23f);
}

// Of the most likely id: key in the upper word, ~id in the lower.
FT_DEV uint64_t likelihood(float logit, int id) { return uint64_t(order_key(logit)) << 32 | ~uint32_t(id); }

// From the whole row, without filters: the block in which the sum passes the target, then the id in it.
template <class Load>
FT_DEV int32_t draw_row(SampleShared& shared, const RowScratch& scratch, int vocab, const Load& load, const Weigher& weight,
                        float u, int32_t argmax) {
  const double target = double(u) * sum_row(shared, scratch, vocab, load, weight);
  const int blocks = (vocab + kScanBlock - 1) / kScanBlock;
  const Found at = find_in_order(shared, blocks, [&](int b) { return scratch.block_sums[b]; }, 0.0, target);
  const int first = min(at.stop, blocks - 1) * kScanBlock;
  const Found found = find_in_order(
      shared, min(kScanBlock, vocab - first), [&](int i) { return weight(load(first + i)); }, at.before, target);
  return found.last >= 0 ? first + found.last : argmax;
}

// -1 where nothing is above -inf.
FT_DEV int32_t draw_token(SampleShared& shared, const RowScratch& scratch, int vocab, const SamplerSlot& slot, int position) {
  const auto load = [&](int i) { return scratch.logits[i]; };
  const uint64_t best = max_key(shared, vocab, [&](int i) { return likelihood(load(i), i); });
  const int32_t argmax = int32_t(~uint32_t(best));
  const float max = load(argmax);
  if (max == negative_infinity()) return -1;
  const bool greedy = slot.temperature < 0x1p-126f || slot.top_p <= 0.0f || slot.top_k == 1;
  if (greedy || max == positive_infinity()) return argmax;
  const float u = draw_uniform(slot.seed, uint32_t(position), uint32_t(slot.sample_index));
  const float inv_temperature = flush(1.0f / slot.temperature);
  const Weigher weight{max, inv_temperature};
  const bool by_count = slot.top_k > 0 && slot.top_k < vocab, by_mass = slot.top_p < 1.0f, by_weight = slot.min_p > 0.0f;
  if (!by_count && !by_mass && !by_weight) return draw_row(shared, scratch, vocab, load, weight, u, argmax);

  const auto listed = [&](int i) { return weight(scratch.list_logits[i]); };
  int n = 0;
  double needed = 0.0;
  if (by_count) {
    const Cut cut = cut_by_count(shared, vocab, slot.top_k, load);
    n = gather_list(shared, scratch, vocab, load, [&](int i) { return cut.keeps(order_key(load(i)), i); });
    if (by_mass) needed = double(slot.top_p) * sum_in_order(shared, n, listed);
  } else {
    if (by_mass) needed = double(slot.top_p) * sum_row(shared, scratch, vocab, load, weight);
    if (by_weight) {
      n = gather_list(shared, scratch, vocab, load, [&](int i) { return weight(load(i)) >= slot.min_p; });
    } else {
      // A falling bound, until the mass is there: a peaked row has few candidates.
      for (int attempt = 0; attempt < 3; attempt++) {
        const float depth = attempt == 0 ? 6.0f : attempt == 1 ? 14.0f : positive_infinity();
        const float bound = max - depth / inv_temperature;
        n = gather_list(shared, scratch, vocab, load,
                        [&](int i) { return load(i) >= bound && load(i) > negative_infinity(); });
        if (sum_in_order(shared, n, listed) >= needed) break;
      }
    }
  }
  const Cut cut = by_mass ? cut_by_mass(shared, scratch, n, weight, needed) : Cut{};
  const auto kept = [&](int i) {
    const float w = listed(i);
    return cut.keeps(order_key(scratch.list_logits[i]), scratch.list_ids[i]) && w >= slot.min_p ? w : 0.0f;
  };
  const double target = double(u) * sum_in_order(shared, n, kept);
  const Found found = find_in_order(shared, n, kept, 0.0, target);
  return found.last >= 0 ? scratch.list_ids[found.last] : -1;
}

}  // namespace freetoken::cuda
