// The largest error seen, over values that may be none.
#pragma once
#include <algorithm>
#include <cmath>

namespace freetoken::testing {

// The larger of `seen` and |got - expected|; infinite from then on where that is no number, which std::max would pass over.
inline double worse(double seen, double got, double expected) {
  const double error = std::fabs(got - expected);
  return std::isnan(error) ? HUGE_VAL : std::max(seen, error);
}

}  // namespace freetoken::testing
