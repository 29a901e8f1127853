#include "cpu/route_slot.h"

#include <algorithm>

namespace freetoken {

void RouteSlot::reserve(int max_rows, int max_experts_per_token, int max_experts) {
  const size_t entries = size_t(max_rows) * max_experts_per_token;
  ids_.resize(entries);
  weights_.resize(entries);
  row_of_.resize(entries);
  entry_of_.resize(entries);
  active_.reserve(max_experts);
  start_.reserve(max_experts + 1);
  count_.resize(max_experts);
  position_.resize(max_experts);
}

void RouteSlot::start(int rows, int experts, int per_token) {
  rows_ = rows;
  experts_ = experts;
  per_token_ = per_token;
}

void RouteSlot::group() {
  std::fill_n(count_.begin(), experts_, 0);
  for (int i = 0; i < entries(); i++) count_[ids_[i]]++;
  active_.clear();
  start_.assign(1, 0);
  max_entries_of_one_ = 0;
  for (int e = 0; e < experts_; e++) {
    if (!count_[e]) continue;
    active_.push_back(e);
    position_[e] = start_.back();
    start_.push_back(start_.back() + count_[e]);
    max_entries_of_one_ = std::max(max_entries_of_one_, count_[e]);
  }
  for (int i = 0; i < entries(); i++) {
    const int entry = position_[ids_[i]]++;
    entry_of_[i] = entry;
    row_of_[entry] = i / per_token_;
  }
}

void choose_experts(const float* p, int experts, int per_token, bool normalise, float scaling, int32_t* ids, float* weights) {
  // Insertion into a short sorted list: per_token is 1..16 and most experts fail the first comparison.
  int chosen = 0;
  for (int e = 0; e < experts; e++) {
    if (chosen == per_token && !(p[e] > weights[chosen - 1])) continue;
    int place = chosen < per_token ? chosen++ : per_token - 1;
    for (; place > 0 && p[e] > weights[place - 1]; place--) {
      weights[place] = weights[place - 1];
      ids[place] = ids[place - 1];
    }
    weights[place] = p[e];
    ids[place] = e;
  }
  float total = 0.0f;
  for (int r = 0; r < per_token; r++) total += weights[r];
  for (int r = 0; r < per_token; r++) {
    if (normalise) weights[r] = weights[r] / total;
    weights[r] = weights[r] * scaling;
  }
}

}  // namespace freetoken
