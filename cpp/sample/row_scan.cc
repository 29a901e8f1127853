#include "sample/row_scan.h"

#include <algorithm>
#include <limits>

#include "sample/row_kernels.h"

namespace freetoken {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

}  // namespace

RowScan::RowScan(const std::vector<uint8_t>& usable) : vocab_(int(usable.size())), usable_(usable) {
  const size_t blocks = (usable.size() + kScanBlock - 1) / kScanBlock;
  has_unusable_.assign(blocks, 0);
  max_.assign(blocks, kNegativeInfinity);
  sum_.assign(blocks, 0.0f);
  for (size_t id = 0; id < usable.size(); id++)
    if (!usable[id]) has_unusable_[id / kScanBlock] = 1;
}

int RowScan::block_size(int block) const { return std::min(kScanBlock, vocab_ - block * kScanBlock); }

const float* RowScan::block_data(int block, float* masked) const {
  const float* x = logits_ + size_t(block) * kScanBlock;
  if (!has_unusable_[size_t(block)]) return x;
  const uint8_t* usable = usable_.data() + size_t(block) * kScanBlock;
  for (int i = 0; i < block_size(block); i++) masked[i] = usable[i] ? x[i] : kNegativeInfinity;
  return masked;
}

void RowScan::scan_max(const float* logits) {
  const RowKernels& kernels = row_kernels();
  logits_ = logits;
  row_max_ = kNegativeInfinity;
  row_argmax_ = -1;
  float masked[kScanBlock];
  int best = -1;
  for (int block = 0; block < blocks(); block++) {
    max_[size_t(block)] = kernels.max(block_data(block, masked), block_size(block));
    if (max_[size_t(block)] > row_max_) row_max_ = max_[size_t(block)], best = block;
  }
  if (best < 0) return;
  const float* x = block_data(best, masked);
  row_argmax_ = best * kScanBlock + int(std::find(x, x + block_size(best), row_max_) - x);
}

void RowScan::scan_sum(float inv_temperature) {
  const RowKernels& kernels = row_kernels();
  float masked[kScanBlock];
  total_ = 0.0;
  for (int block = 0; block < blocks(); block++) {
    sum_[size_t(block)] = kernels.sum(block_data(block, masked), block_size(block), row_max_, inv_temperature);
    total_ += double(sum_[size_t(block)]);
  }
}

double row_total(const float* logits, int vocab, float max) {
  const RowKernels& kernels = row_kernels();
  double total = 0.0;
  for (int begin = 0; begin < vocab; begin += kScanBlock)
    total += double(kernels.sum(logits + begin, std::min(kScanBlock, vocab - begin), max, 1.0f));
  return total;
}

float row_maximum(const float* logits, int vocab) { return row_kernels().max(logits, vocab); }

}  // namespace freetoken
