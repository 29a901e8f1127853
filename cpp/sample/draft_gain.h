// Whether drafting pays for one request, and with how many tokens. Pure arithmetic: times come from the caller.
#pragma once
#include <array>
#include <cstdint>
#include <span>

namespace freetoken {

// A step with k drafted tokens gives 1 + sum over i <= k of P(the first i are accepted) tokens; its gain is that over
// its cost, the time of a step with k more rows over that of the step without. P is a product of acceptance rates by
// place in the draft, each an exponential average of what was seen at that place, which starts from the rate of the
// place before.
//
// While the best gain is above 1 that length is drafted. Otherwise nothing is, except for probes: the first draft a
// request has, then one after 8 opportunities, the pause doubling to 512 while probes are rejected.
class DraftGain {
 public:
  static constexpr int kMaxDraft = 16;
  static constexpr double kDecay = 0.9;            // weight of the past at each observation
  static constexpr double kPriorWeight = 2.0;      // observations that the prior counts for
  static constexpr double kPriorAcceptance = 0.5;  // of the first place
  static constexpr int kFirstPause = 8, kLongestPause = 512;

  // How many tokens to draft for the next step, at most `available` (what a proposer offers). To be asked once per step
  // that has an offer. step_cost[k - 1] = cost of k drafted tokens, for as many k as the caller would verify; a cost
  // that is not a number above 0 rules its k out.
  int choose(int available, std::span<const double> step_cost);

  // What came of a step that drafted: `accepted` of `drafted` tokens, those before the first rejected one.
  void record(int drafted, int accepted);

  // The rate at a place in [0, kMaxDraft) of a draft, where all before it was accepted.
  double acceptance(int place) const;
  bool paying() const { return paying_; }  // as of the last choose()

 private:
  struct Average {
    double weight = 0.0, accepted = 0.0;
    double rate(double prior) const { return (kPriorWeight * prior + accepted) / (kPriorWeight + weight); }
  };
  std::array<Average, kMaxDraft> seen_;
  bool paying_ = false, probing_ = false;
  int pause_ = kFirstPause, waiting_ = 0;
};

}  // namespace freetoken
