#include "sample/row_scan.h"

#include <algorithm>
#include <limits>

#include "sample/scan_kernels.h"

namespace freetoken {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

}  // namespace

RowScan::RowScan(const std::vector<uint8_t>& usable)
    : vocab_(int(usable.size())), usable_(usable), own_(usable.size()) {
  const size_t blocks = (usable.size() + kScanBlock - 1) / kScanBlock;
  blocks_.assign(blocks, nullptr);
  max_.assign(blocks, kNegativeInfinity);
  sum_.assign(blocks, 0.0f);
  for (int block = 0; block < int(blocks); block++) {
    const uint8_t* begin = usable_.data() + size_t(block) * kScanBlock;
    if (std::find(begin, begin + block_size(block), 0) != begin + block_size(block)) masked_blocks_.push_back(block);
  }
}

int RowScan::block_size(int block) const { return std::min(kScanBlock, vocab_ - block * kScanBlock); }

void RowScan::load(const float* logits) {
  for (int block = 0; block < blocks(); block++) blocks_[size_t(block)] = logits + size_t(block) * kScanBlock;
  for (const int block : masked_blocks_) {
    const float* x = block_data(block);
    const uint8_t* usable = usable_.data() + size_t(block) * kScanBlock;
    float* own = own_block(block);
    for (int i = 0; i < block_size(block); i++) own[i] = usable[i] ? x[i] : kNegativeInfinity;
    blocks_[size_t(block)] = own;
  }
}

void RowScan::copy_block(int block) {
  std::copy_n(block_data(block), block_size(block), own_block(block));
  blocks_[size_t(block)] = own_block(block);
}

void RowScan::scan_max() {
  const ScanKernels& kernels = scan_kernels();
  row_max_ = kNegativeInfinity;
  row_argmax_ = -1;
  int best = -1;
  for (int block = 0; block < blocks(); block++) {
    max_[size_t(block)] = kernels.max(block_data(block), block_size(block));
    if (max_[size_t(block)] > row_max_) row_max_ = max_[size_t(block)], best = block;
  }
  if (best < 0) return;
  const float* x = block_data(best);
  row_argmax_ = best * kScanBlock + int(std::find(x, x + block_size(best), row_max_) - x);
}

void RowScan::scan_sum(float inv_temperature) {
  const ScanKernels& kernels = scan_kernels();
  total_ = 0.0;
  for (int block = 0; block < blocks(); block++) {
    sum_[size_t(block)] = kernels.sum(block_data(block), block_size(block), row_max_, inv_temperature);
    total_ += double(sum_[size_t(block)]);
  }
}

double row_total(const float* logits, int vocab, float max) {
  const ScanKernels& kernels = scan_kernels();
  double total = 0.0;
  for (int begin = 0; begin < vocab; begin += kScanBlock)
    total += double(kernels.sum(logits + begin, std::min(kScanBlock, vocab - begin), max, 1.0f));
  return total;
}

float row_maximum(const float* logits, int vocab) { return scan_kernels().max(logits, vocab); }

}  // namespace freetoken
