// What the tests of kernels over rows share: a batch on the device, and comparisons of bits.
#pragma once
#include <cstring>

#include "cuda/kernels/matmul_support.h"
#include "cuda/kernels/step_view.h"

namespace freetoken::cuda::testing {

// Rows of a batch and one page table per (group, sequence), in device memory.
class DeviceStep {
 public:
  struct Row {
    int32_t sequence = 0, position = 0, token = 0;
  };
  // pages[group][sequence]; every list is padded with -1, which no kernel may follow.
  explicit DeviceStep(const std::vector<Row>& rows, const std::vector<std::vector<std::vector<int32_t>>>& pages = {},
                      const std::vector<int32_t>& sampled = {})
      : tokens_(column(rows, &Row::token)),
        positions_(column(rows, &Row::position)),
        sequences_(column(rows, &Row::sequence)),
        sampled_(sampled),
        table_(table(pages)),
        rows_(int(rows.size())) {
    for (const auto& group : pages)
      for (const auto& list : group) longest_ = std::max(longest_, int64_t(list.size()));
    sequence_count_ = pages.empty() ? 0 : int64_t(pages[0].size());
  }
  int rows() const { return rows_; }
  StepView view() const {
    return {tokens_.data(), positions_.data(), sequences_.data(), sampled_.data(), table_.data(),
            sequence_count_ * (longest_ + 1), longest_ + 1};
  }

 private:
  static std::vector<int32_t> column(const std::vector<Row>& rows, int32_t Row::*field) {
    std::vector<int32_t> values;
    for (const Row& row : rows) values.push_back(row.*field);
    return values;
  }
  static std::vector<int32_t> table(const std::vector<std::vector<std::vector<int32_t>>>& pages) {
    size_t longest = 0;
    for (const auto& group : pages)
      for (const auto& list : group) longest = std::max(longest, list.size());
    std::vector<int32_t> values;
    for (const auto& group : pages)
      for (const auto& list : group) {
        values.insert(values.end(), list.begin(), list.end());
        values.resize(values.size() + longest + 1 - list.size(), -1);
      }
    return values;
  }

  DeviceArray<int32_t> tokens_, positions_, sequences_, sampled_, table_;
  int rows_;
  int64_t longest_ = 0, sequence_count_ = 0;
};

// Rows of `cols` values, `stride` apart; what lies between holds a mark that must stay.
constexpr float kMark = -12345.0f;
struct Rows2d {
  int rows, cols, stride;
  std::vector<float> values;
  Rows2d(int rows, int cols, int extra = 4)
      : rows(rows), cols(cols), stride((cols + 3) / 4 * 4 + extra), values(size_t(rows) * size_t(stride), kMark) {}
  float* row(int r) { return values.data() + size_t(r) * size_t(stride); }
  const float* row(int r) const { return values.data() + size_t(r) * size_t(stride); }
  void fill(std::mt19937& rng, float scale = 1.0f) {
    for (int r = 0; r < rows; r++) {
      const std::vector<float> v = random_values(size_t(cols), rng, scale);
      std::copy(v.begin(), v.end(), row(r));
    }
  }
  bool marks_stay() const {
    for (int r = 0; r < rows; r++)
      for (int c = cols; c < stride; c++)
        if (row(r)[c] != kMark) return false;
    return true;
  }
};

inline bool same_bits(const float* a, const float* b, int n) { return std::memcmp(a, b, size_t(n) * sizeof(float)) == 0; }

}  // namespace freetoken::cuda::testing
