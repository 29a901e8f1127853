// RouteSlot: the experts that route() chose, and the same choice grouped by expert for moe().
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace freetoken {

class RouteSlot {
 public:
  void reserve(int max_rows, int max_experts_per_token, int max_experts);

  // Starts a choice of `per_token` of `experts` for `rows` rows.
  void start(int rows, int experts, int per_token);
  // Row r's choice in rank order, per_token long.
  const float* weights(int row) const { return weights_.data() + size_t(row) * per_token_; }
  int32_t* ids(int row) { return ids_.data() + size_t(row) * per_token_; }
  float* weights(int row) { return weights_.data() + size_t(row) * per_token_; }
  // Sorts the choices by expert, rows ascending within one.
  void group();

  int rows() const { return rows_; }
  int per_token() const { return per_token_; }
  int entries() const { return rows_ * per_token_; }
  std::span<const int32_t> active() const { return {active_.data(), active_.size()}; }  // distinct experts, ascending
  int begin(int active_index) const { return start_[active_index]; }                    // range of entries of one
  int end(int active_index) const { return start_[active_index + 1]; }
  int row_of(int entry) const { return row_of_[entry]; }
  // Where (row, rank) went.
  int entry_of(int row, int rank) const { return entry_of_[size_t(row) * per_token_ + rank]; }
  int max_entries_of_one() const { return max_entries_of_one_; }

 private:
  int rows_ = 0, experts_ = 0, per_token_ = 0, max_entries_of_one_ = 0;
  std::vector<int32_t> ids_, row_of_, entry_of_, start_, active_, count_, position_;
  std::vector<float> weights_;
};

// Softmax-scored top-k of one row of router logits (probabilities `p` over `experts`): ids in descending probability, ties
// to the lowest id; weights divided by their sum when `normalise`, then multiplied by `scaling`.
void choose_experts(const float* p, int experts, int per_token, bool normalise, float scaling, int32_t* ids, float* weights);

}  // namespace freetoken
