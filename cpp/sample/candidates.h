// The ids that a draw may still take, and the cuts of top-k, top-p and min-p.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace freetoken {

// Ascending by id. The order of likelihood is by logit, ties to the lowest id.
class Candidates {
 public:
  void clear();
  void add(float logit, int32_t id) {
    logits_.push_back(logit);
    ids_.push_back(id);
  }
  size_t size() const { return ids_.size(); }
  float logit(size_t i) const { return logits_[i]; }
  int32_t id(size_t i) const { return ids_[i]; }

  // Weights by scan_weight; returns their sum, added by id.
  double weigh(float max, float inv_temperature);
  // Keeps the k most likely, without sorting.
  void keep_count(size_t k);
  // Keeps the fewest most likely that weigh at least `needed` together; all when they do not. After weigh().
  void keep_mass(double needed);
  // Keeps those that weigh at least `min`; the most likely ones weigh 1. After weigh().
  void keep_weight(float min);
  // The id at which the weights, added by id, pass u times their sum; u in (0, 1). After weigh(); -1 when all weigh 0.
  int32_t draw(float u) const;
  // Sorts by likelihood. Ends the order by id; for small sets.
  void sort_by_likelihood();

 private:
  struct Cut {  // the last candidate to keep
    uint32_t key;
    int32_t id;
  };
  // The first candidate, from the most likely down, at which the sum of values (weights, or 1 each) reaches `needed`; the
  // last one when none does.
  Cut cut_by_sort(bool by_weight, double needed);
  Cut cut_by_digits(bool by_weight, double needed);
  void keep_prefix(bool by_weight, double needed);

  std::vector<float> logits_, weights_;
  std::vector<int32_t> ids_;
  std::vector<double> bins_;     // scratch
  std::vector<uint32_t> order_;  // scratch
};

}  // namespace freetoken
