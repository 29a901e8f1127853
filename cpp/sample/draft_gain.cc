#include "sample/draft_gain.h"

#include <algorithm>

namespace freetoken {

int DraftGain::choose(int available, std::span<const double> step_cost) {
  const int most = std::min({available, int(step_cost.size()), kMaxDraft});
  double rate = kPriorAcceptance, all_accepted = 1.0, tokens = 1.0, best_gain = 0.0;
  int best = 0;
  for (int drafted = 1; drafted <= most; drafted++) {
    rate = seen_[size_t(drafted - 1)].rate(rate);
    all_accepted *= rate;
    tokens += all_accepted;
    const double cost = step_cost[size_t(drafted - 1)];
    if (cost > 0.0 && tokens / cost > best_gain) best_gain = tokens / cost, best = drafted;
  }
  probing_ = false;
  paying_ = best_gain > 1.0;
  if (best == 0) return 0;
  if (paying_) {
    pause_ = waiting_ = kFirstPause;
    return best;
  }
  if (waiting_ > 0) {
    waiting_--;
    return 0;
  }
  probing_ = true;
  waiting_ = pause_;
  return best;
}

void DraftGain::record(int drafted, int accepted) {
  drafted = std::clamp(drafted, 0, kMaxDraft);
  accepted = std::clamp(accepted, 0, drafted);
  for (int place = 0; place < std::min(drafted, accepted + 1); place++) {
    Average& average = seen_[size_t(place)];
    average.weight = kDecay * average.weight + 1.0;
    average.accepted = kDecay * average.accepted + (place < accepted ? 1.0 : 0.0);
  }
  if (!probing_ || drafted == 0) return;
  probing_ = false;
  pause_ = accepted > 0 ? kFirstPause : std::min(2 * pause_, kLongestPause);
  waiting_ = pause_;
}

double DraftGain::acceptance(int place) const {
  double rate = kPriorAcceptance;
  for (int i = 0; i <= place; i++) rate = seen_[size_t(i)].rate(rate);
  return rate;
}

}  // namespace freetoken
