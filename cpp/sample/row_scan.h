// Passes over a row of logits in blocks of 256: maxima and sums of exponentials, vectorised, in one fixed order.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace freetoken {

constexpr int kScanBlock = 256;

// Over all ids of a row, usable or not: the maximum (-inf when there is no number), and the sum of weights at temperature 1.
float row_maximum(const float* logits, int vocab);
double row_total(const float* logits, int vocab, float max);

class RowScan {
 public:
  // usable[id] != 0: id takes part in scans.
  explicit RowScan(const std::vector<uint8_t>& usable);

  int vocab() const { return vocab_; }
  int block_size(int block) const;
  int blocks() const { return int(max_.size()); }

  // The row to scan; it is not changed, and must stay while it is scanned.
  void load(const float* logits);
  // Gives an id another logit, in the scans of this row only. Unusable ids stay out. Copies the block, the first time.
  void set(int id, float logit) {
    if (!usable_[size_t(id)]) return;
    const int block = id / kScanBlock;
    float* own = own_block(block);
    if (block_data(block) != own) copy_block(block);
    own[id % kScanBlock] = logit;
  }

  // Block maxima over usable ids (-inf for none), and the whole row's with its lowest id (-1: none above -inf).
  void scan_max();
  // Block sums of weights over usable ids, relative to row_max(), each on 16 lanes with a fixed tree; total in block order.
  void scan_sum(float inv_temperature);

  float row_max() const { return row_max_; }
  int32_t row_argmax() const { return row_argmax_; }
  float block_max(int block) const { return max_[size_t(block)]; }
  float block_sum(int block) const { return sum_[size_t(block)]; }
  double total() const { return total_; }

  // The block's logits as they are scanned: unusable ids at -inf, set() ones as set.
  const float* block_data(int block) const { return blocks_[size_t(block)]; }

 private:
  void copy_block(int block);
  float* own_block(int block) { return own_.data() + size_t(block) * kScanBlock; }

  int vocab_;
  std::vector<uint8_t> usable_;
  std::vector<int> masked_blocks_;     // have unusable ids
  std::vector<const float*> blocks_;   // in the row, or in own_
  std::vector<float> own_;             // room for a copy of every block
  std::vector<float> max_, sum_;
  float row_max_ = 0.0f;
  int32_t row_argmax_ = -1;
  double total_ = 0.0;
};

}  // namespace freetoken
