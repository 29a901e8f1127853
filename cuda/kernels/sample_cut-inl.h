// Where the order of likelihood (by logit, ties to the lowest id) is cut: by count, and by mass.
#pragma once
#include "cuda/kernels/sample_block-inl.h"

namespace freetoken::cuda {

// The last candidate to keep.
struct Cut {
  uint32_t key = 0;
  int32_t id = 0x7fffffff;
  FT_DEV bool keeps(uint32_t other_key, int32_t other_id) const {
    return other_key > key || (other_key == key && other_id <= id);
  }
};

struct Digit {
  int shift;
  uint32_t mask;
};
FT_DEV Digit digit_of_pass(int pass) {
  return pass == 0 ? Digit{21, 0x7ffu} : pass == 1 ? Digit{10, 0x7ffu} : Digit{0, 0x3ffu};
}

// The bin, from the highest down, in which the count reaches k, and how many lie above it. counts are there, a barrier behind.
struct Bin {
  int bin, above;
};
FT_DEV Bin bin_of_count(SampleShared& shared, int bins, int k) {
  constexpr int kOwned = kBins / kSampleThreads;
  int own[kOwned], count = 0;
  for (int j = 0; j < kOwned; j++) {
    const int bin = bins - 1 - (int(threadIdx.x) * kOwned + j);
    own[j] = bin >= 0 ? shared.counts[bin] : 0;
    count += own[j];
  }
  int upto = count;
  for (int step = 1; step < 32; step <<= 1) {
    const int below = __shfl_up_sync(0xffffffffu, upto, step);
    if (sample_lane() >= step) upto += below;
  }
  if (sample_lane() == 31) shared.warp_counts[sample_warp()] = upto;
  __syncthreads();
  int above = upto - count;
  for (int w = 0; w < sample_warp(); w++) above += shared.warp_counts[w];
  if (above < k && above + count >= k)
    for (int j = 0; j < kOwned; j++) {
      if (above < k && above + own[j] >= k) {
        shared.found = bins - 1 - (int(threadIdx.x) * kOwned + j);
        shared.stop = above;
      }
      above += own[j];
    }
  __syncthreads();
  const Bin result = {shared.found, shared.stop};
  __syncthreads();
  return result;
}

// The cut that keeps the k >= 1 most likely i < n with load(i) > -inf; all of them where there are not more.
template <class Load>
FT_DEV Cut cut_by_count(SampleShared& shared, int n, int k, const Load& load) {
  uint32_t prefix = 0, prefix_mask = 0;
  for (int pass = 0; pass < 3; pass++) {
    const Digit digit = digit_of_pass(pass);
    for (int b = int(threadIdx.x); b < kBins; b += kSampleThreads) shared.counts[b] = 0;
    __syncthreads();
    for (int i = int(threadIdx.x); i < n; i += kSampleThreads) {
      const float x = load(i);
      const uint32_t key = order_key(x);
      if (x > negative_infinity() && (key & prefix_mask) == prefix) atomicAdd(&shared.counts[key >> digit.shift & digit.mask], 1);
    }
    __syncthreads();
    if (pass == 0) {
      int own = 0;
      for (int b = int(threadIdx.x); b < kBins; b += kSampleThreads) own += shared.counts[b];
      for (int step = 16; step > 0; step >>= 1) own += __shfl_xor_sync(0xffffffffu, own, step);
      if (sample_lane() == 0) shared.warp_counts[sample_warp()] = own;
      __syncthreads();
      int all = 0;
      for (int w = 0; w < kSampleWarps; w++) all += shared.warp_counts[w];
      __syncthreads();
      if (all <= k) return Cut{order_key(negative_infinity()) + 1, 0x7fffffff};
    }
    const Bin bin = bin_of_count(shared, int(digit.mask) + 1, k);
    k -= bin.above;
    prefix |= uint32_t(bin.bin) << digit.shift;
    prefix_mask |= digit.mask << digit.shift;
  }
  return {prefix, nth_kept(shared, n, k, [&](int i) { return order_key(load(i)) == prefix; })};
}

// By a sorted list: weights added from the most likely down.
FT_DEV Cut cut_sorted(SampleShared& shared, const RowScratch& scratch, int n, const Weigher& weight, double needed) {
  const int i = int(threadIdx.x);
  if (i < n) {
    const uint32_t key = order_key(scratch.list_logits[i]);
    int rank = 0;
    for (int j = 0; j < n; j++) {
      const uint32_t other = order_key(scratch.list_logits[j]);
      rank += other > key || (other == key && j < i);
    }
    shared.sorted[rank] = weight(scratch.list_logits[i]);
    shared.sorted_index[rank] = i;
  }
  __syncthreads();
  if (i == 0) {
    double sum = 0.0;
    int last = 0;
    for (int r = 0; r < n && sum < needed; r++) {
      last = shared.sorted_index[r];
      sum += double(shared.sorted[r]);
    }
    shared.found = last;
  }
  __syncthreads();
  const int last = shared.found;
  __syncthreads();
  return {order_key(scratch.list_logits[last]), scratch.list_ids[last]};
}

// By digits of the key: a bin's weights are added by id, bins from the highest down, then ties by id.
FT_DEV Cut cut_by_digits(SampleShared& shared, const RowScratch& scratch, int n, const Weigher& weight, double needed) {
  uint32_t prefix = 0, prefix_mask = 0;
  double sum = 0.0;
  for (int pass = 0; pass < 3; pass++) {
    const Digit digit = digit_of_pass(pass);
    for (int b = int(threadIdx.x); b < kBins; b += kSampleThreads) shared.sums[b] = -1.0;  // empty, unlike one of zero weights
    for (int base = 0; base < n; base += kSampleThreads) {
      const int i = base + int(threadIdx.x);
      int d = -1;
      if (i < n) {
        const uint32_t key = order_key(scratch.list_logits[i]);
        if ((key & prefix_mask) == prefix) d = int(key >> digit.shift & digit.mask);
        shared.staged[threadIdx.x] = weight(scratch.list_logits[i]);
      }
      shared.digits[threadIdx.x] = d;
      __syncthreads();
      for (int j = 0; j < min(kSampleThreads, n - base); j++) {  // a bin belongs to one thread, so its order is that of ids
        const int bin = shared.digits[j];
        if (bin < 0 || bin % kSampleThreads != int(threadIdx.x)) continue;
        shared.sums[bin] = fmax(shared.sums[bin], 0.0) + double(shared.staged[j]);
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      int chosen = 0;
      double above = sum;
      for (int b = int(digit.mask); b >= 0 && sum < needed; b--) {
        if (shared.sums[b] < 0.0) continue;
        chosen = b;
        above = sum;
        sum += shared.sums[b];
      }
      shared.found = chosen;
      shared.sum = above;
    }
    __syncthreads();
    sum = shared.sum;
    prefix |= uint32_t(shared.found) << digit.shift;
    prefix_mask |= digit.mask << digit.shift;
    __syncthreads();
  }
  // Ties, by id: the last one that is needed; the first where none is.
  const auto tie = [&](int i) { return order_key(scratch.list_logits[i]) == prefix; };
  int32_t id = 0;
  for (int base = 0; base < n; base += kSampleThreads) {
    const int i = base + int(threadIdx.x);
    shared.digits[threadIdx.x] = i < n && tie(i) ? scratch.list_ids[i] : -1;
    shared.staged[threadIdx.x] = i < n ? weight(scratch.list_logits[i]) : 0.0f;
    __syncthreads();
    if (threadIdx.x == 0)
      for (int j = 0; j < min(kSampleThreads, n - base) && sum < needed; j++) {
        if (shared.digits[j] < 0) continue;
        id = shared.digits[j];
        sum += double(shared.staged[j]);
      }
    __syncthreads();
  }
  if (threadIdx.x == 0) shared.found = id;
  __syncthreads();
  id = shared.found;
  __syncthreads();
  return {prefix, id};
}

// The cut that keeps the fewest most likely of the list's n that weigh `needed` together; all when they do not.
FT_DEV Cut cut_by_mass(SampleShared& shared, const RowScratch& scratch, int n, const Weigher& weight, double needed) {
  if (n <= 1) return {};
  return n <= kSortedSize ? cut_sorted(shared, scratch, n, weight, needed)
                          : cut_by_digits(shared, scratch, n, weight, needed);
}

}  // namespace freetoken::cuda
