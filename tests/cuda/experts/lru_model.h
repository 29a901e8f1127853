// The slots of expert_admission.h in plain C++, with no more structure than the words there.
#pragma once
#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

namespace freetoken::cuda {

struct LruModel {
  int layers, experts;
  uint64_t calls = 0, hits = 0, misses = 0;
  std::vector<int32_t> owner, slot_of;
  std::vector<uint64_t> clock;

  LruModel(int slots, int layers_, int experts_)
      : layers(layers_),
        experts(experts_),
        owner(size_t(slots), -1),
        slot_of(size_t(layers_ * experts_), -1),
        clock(size_t(slots), 0) {}

  // The experts that missed, ascending.
  std::vector<int32_t> call(int layer, const std::vector<int32_t>& choice, int begin, int end, bool keep) {
    calls++;
    std::set<int32_t> needed;
    for (const int32_t e : choice)
      if (e >= begin && e < end) needed.insert(e);
    std::set<int32_t> stay;
    std::vector<int32_t> missing;
    for (const int32_t e : needed) {
      const int32_t slot = slot_of[size_t(layer * experts + e)];
      if (slot < 0) {
        missing.push_back(e);
        continue;
      }
      stay.insert(slot);
      if (keep) clock[size_t(slot)] = calls + 1;
    }
    std::vector<int32_t> victims;
    for (int32_t s = 0; s < int(owner.size()); s++)
      if (!stay.contains(s)) victims.push_back(s);
    std::stable_sort(victims.begin(), victims.end(),
                     [&](int32_t a, int32_t b) { return clock[size_t(a)] < clock[size_t(b)]; });
    victims.resize(missing.size());
    std::sort(victims.begin(), victims.end());
    for (size_t i = 0; i < missing.size(); i++) {
      int32_t& key = owner[size_t(victims[i])];
      if (key >= 0) slot_of[size_t(key)] = -1;
      key = layer * experts + missing[i];
      slot_of[size_t(key)] = victims[i];
      clock[size_t(victims[i])] = keep ? calls + 1 : 1;
    }
    hits += needed.size() - missing.size();
    misses += missing.size();
    return missing;
  }

  // The expert's extent could not be had.
  void drop(int layer, int expert) {
    int32_t& slot = slot_of[size_t(layer * experts + expert)];
    owner[size_t(slot)] = -1;
    clock[size_t(slot)] = 0;
    slot = -1;
  }
};

}  // namespace freetoken::cuda
