// What a block does to a list of values: maxima, ordered gathering, and sums in one order, ascending by index.
//
// Sums of weights are added one by one in double, as the CPU adds them: one thread adds what the others have staged. That
// costs a few nanoseconds a value, and equality with the CPU needs no argument.
#pragma once
#include "cuda/kernels/rows_math-inl.h"
#include "cuda/kernels/sample.h"

namespace freetoken::cuda {

constexpr int kSampleThreads = 512, kSampleWarps = kSampleThreads / 32;
constexpr int kBins = 2048;
constexpr int kSortedSize = 256;  // up to here sums by likelihood run over a sorted list, as on the CPU
constexpr int kScanBlock = 256;   // values of a block sum

struct SampleShared {
  union {
    double sums[kBins];
    int counts[kBins];
  };
  float staged[kSampleThreads];
  int digits[kSampleThreads];
  float sorted[kSortedSize];
  int sorted_index[kSortedSize];
  uint64_t warp_keys[kSampleWarps];
  int warp_counts[kSampleWarps];
  double sum, before;
  int stop, last, found;
};

// Per-row scratch in device memory.
struct RowScratch {
  float* logits;       // [vocab], as they are drawn from
  float* list_logits;  // [vocab], candidates, ascending by id
  int32_t* list_ids;
  float* block_sums;   // [vocab / 256, rounded up]
};

FT_DEV int sample_warp() { return int(threadIdx.x) / 32; }
FT_DEV int sample_lane() { return int(threadIdx.x) % 32; }

// The largest key(i), i < n, in every thread; 0 where n is 0.
template <class Key>
FT_DEV uint64_t max_key(SampleShared& shared, int n, const Key& key) {
  uint64_t best = 0;
  for (int i = int(threadIdx.x); i < n; i += kSampleThreads) {
    const uint64_t k = key(i);
    if (k > best) best = k;
  }
  best = max_warp(best);
  if (sample_lane() == 0) shared.warp_keys[sample_warp()] = best;
  __syncthreads();
  best = shared.warp_keys[0];
  for (int w = 1; w < kSampleWarps; w++) best = shared.warp_keys[w] > best ? shared.warp_keys[w] : best;
  __syncthreads();
  return best;
}

// Sum of value(i) by ascending i, in double, in every thread.
template <class Value>
FT_DEV double sum_in_order(SampleShared& shared, int n, const Value& value) {
  double sum = 0.0;
  for (int base = 0; base < n; base += kSampleThreads) {
    const int i = base + int(threadIdx.x);
    shared.staged[threadIdx.x] = i < n ? value(i) : 0.0f;
    __syncthreads();
    if (threadIdx.x == 0)
      for (int j = 0; j < min(kSampleThreads, n - base); j++) sum += double(shared.staged[j]);
    __syncthreads();
  }
  if (threadIdx.x == 0) shared.sum = sum;
  __syncthreads();
  sum = shared.sum;
  __syncthreads();
  return sum;
}

struct Found {
  int stop;       // the first index at which the sum, started from `sum`, passes the target; n when none does
  int last;       // the last index up to there whose value is above 0; -1 when there is none
  double before;  // the sum before `stop`, or before the last value
};
template <class Value>
FT_DEV Found find_in_order(SampleShared& shared, int n, const Value& value, double sum, double target) {
  double before = sum;
  int last = -1, stop = n;
  for (int base = 0; base < n; base += kSampleThreads) {
    const int i = base + int(threadIdx.x);
    shared.staged[threadIdx.x] = i < n ? value(i) : 0.0f;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int j = 0; j < min(kSampleThreads, n - base) && stop == n; j++) {
        const float v = shared.staged[j];
        if (v > 0.0f) last = base + j;
        before = sum;
        sum += double(v);
        if (sum > target) stop = base + j;
      }
      shared.stop = stop;
      shared.last = last;
      shared.before = before;
    }
    __syncthreads();
    if (shared.stop < n) break;
  }
  const Found found = n > 0 ? Found{shared.stop, shared.last, shared.before} : Found{0, -1, sum};
  __syncthreads();
  return found;
}

// Each warp takes a run of [0, n). Counts which i `keep`, and returns how many there are in the runs before.
struct Run {
  int begin, end, before, total;
};
template <class Keep>
FT_DEV Run count_kept(SampleShared& shared, int n, const Keep& keep) {
  const int length = ((n + kSampleWarps - 1) / kSampleWarps + 31) / 32 * 32;
  Run run = {min(n, sample_warp() * length), min(n, sample_warp() * length + length), 0, 0};
  int count = 0;
  for (int base = run.begin; base < run.end; base += 32) {
    const int i = base + sample_lane();
    count += __popc(__ballot_sync(0xffffffffu, i < run.end && keep(i)));
  }
  if (sample_lane() == 0) shared.warp_counts[sample_warp()] = count;
  __syncthreads();
  for (int w = 0; w < kSampleWarps; w++) {
    if (w < sample_warp()) run.before += shared.warp_counts[w];
    run.total += shared.warp_counts[w];
  }
  __syncthreads();
  return run;
}

// Candidates: the i < n that `keep`, in order. Returns their number. Ends with a barrier.
template <class Load, class Keep>
FT_DEV int gather_list(SampleShared& shared, const RowScratch& scratch, int n, const Load& load, const Keep& keep) {
  const Run run = count_kept(shared, n, keep);
  int to = run.before;
  for (int base = run.begin; base < run.end; base += 32) {
    const int i = base + sample_lane();
    const bool kept = i < run.end && keep(i);
    const uint32_t mask = __ballot_sync(0xffffffffu, kept);
    if (kept) {
      const int place = to + __popc(mask & ((1u << sample_lane()) - 1u));
      scratch.list_logits[place] = load(i);
      scratch.list_ids[place] = i;
    }
    to += __popc(mask);
  }
  __syncthreads();
  return run.total;
}

// The index of the k-th (from 1) i < n that `keep`; there are as many.
template <class Keep>
FT_DEV int nth_kept(SampleShared& shared, int n, int k, const Keep& keep) {
  const Run run = count_kept(shared, n, keep);
  int before = run.before;
  for (int base = run.begin; base < run.end; base += 32) {
    const int i = base + sample_lane();
    const bool kept = i < run.end && keep(i);
    const uint32_t mask = __ballot_sync(0xffffffffu, kept);
    if (kept && before + __popc(mask & ((2u << sample_lane()) - 1u)) == k) shared.found = i;
    before += __popc(mask);
  }
  __syncthreads();
  const int found = shared.found;
  __syncthreads();
  return found;
}

// e^((logit - max) / temperature) as scan_weight(): -inf and what underflows weigh 0.
struct Weigher {
  float max, inv_temperature;
  FT_DEV float operator()(float logit) const {
    const float d = __fmul_rn(logit - max, inv_temperature);
    return d >= ExpConstants::kLowest ? exp_exact(d) : 0.0f;
  }
};

// Block sums of weights of load(i), each on 16 lanes and a tree, added in order of blocks. A half warp takes a block.
template <class Load>
FT_DEV double sum_row(SampleShared& shared, const RowScratch& scratch, int n, const Load& load, const Weigher& weight) {
  const int blocks = (n + kScanBlock - 1) / kScanBlock, lane = sample_lane() % 16;
  for (int pair = sample_warp(); 2 * pair < blocks; pair += kSampleWarps) {
    const int block = 2 * pair + sample_lane() / 16, end = min(n, (block + 1) * kScanBlock);
    float sum = 0.0f;
    for (int i = block * kScanBlock + lane; i < end; i += 16) sum += weight(load(i));
    for (int step = 8; step > 0; step >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, step, 16);
    if (lane == 0 && block < blocks) scratch.block_sums[block] = sum;
  }
  __syncthreads();
  return sum_in_order(shared, blocks, [&](int b) { return scratch.block_sums[b]; });
}

}  // namespace freetoken::cuda
