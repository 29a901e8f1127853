// Passes over a row of logits in blocks of 256: maxima and sums of exponentials, vectorised, in one fixed order.
#pragma once
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
  bool usable(int id) const { return usable_[id] != 0; }

  // Block maxima over usable ids (-inf for none), and the whole row's with its lowest id (-1: none above -inf).
  void scan_max(const float* logits);
  // Block sums of weights over usable ids, relative to row_max(), each on 16 lanes with a fixed tree; total in block order.
  void scan_sum(float inv_temperature);

  const float* logits() const { return logits_; }
  float row_max() const { return row_max_; }
  int32_t row_argmax() const { return row_argmax_; }
  float block_max(int block) const { return max_[block]; }
  float block_sum(int block) const { return sum_[block]; }
  double total() const { return total_; }

  // The block's logits, unusable ids at -inf (then in `masked`, which has room for kScanBlock).
  const float* block_data(int block, float* masked) const;

 private:
  int vocab_;
  std::vector<uint8_t> usable_;
  std::vector<uint8_t> has_unusable_;  // per block
  std::vector<float> max_, sum_;
  const float* logits_ = nullptr;
  float row_max_ = 0.0f;
  int32_t row_argmax_ = -1;
  double total_ = 0.0;
};

}  // namespace freetoken
