// Sums and products of byte counts that stop at INT64_MAX instead of wrapping. All values are >= 0.
#pragma once
#include <cstdint>
#include <initializer_list>

namespace freetoken {

constexpr int64_t saturating_product(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  bool overflow = false;
  for (const int64_t factor : factors) {
    if (factor == 0) return 0;
    if (__builtin_mul_overflow(product, factor, &product)) overflow = true, product = INT64_MAX;
  }
  return overflow ? INT64_MAX : product;
}

constexpr int64_t saturating_sum(std::initializer_list<int64_t> terms) {
  int64_t sum = 0;
  for (const int64_t term : terms)
    if (__builtin_add_overflow(sum, term, &sum)) return INT64_MAX;
  return sum;
}

// ceil(a / b) without overflow; b > 0.
constexpr int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

}  // namespace freetoken
