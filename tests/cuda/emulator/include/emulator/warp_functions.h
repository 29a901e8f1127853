// Shuffles, votes and reductions of a warp, with CUDA's names.
#pragma once
#include <type_traits>

#include "emulator/block.h"

namespace freetoken::emu {

template <class T>
struct Shuffle {
  T value, result;
  int from;
};
template <class T>
void shuffle_lanes(uint32_t mask, void** arguments) {
  for (int lane = 0; lane < 32; lane++) {
    if (!(mask >> lane & 1)) continue;
    auto* mine = static_cast<Shuffle<T>*>(arguments[lane]);
    if (!(mask >> mine->from & 1)) die("shuffle: lane %d reads lane %d, which is not in mask %08x", lane, mine->from, mask);
    mine->result = static_cast<Shuffle<T>*>(arguments[mine->from])->value;
  }
}
template <class T>
T shuffle(uint32_t mask, T value, int from, const char* name) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8), "shuffles take 4- and 8-byte numbers");
  Shuffle<T> shuffle{value, value, from};
  collective(mask, shuffle_lanes<T>, &shuffle, name);
  return shuffle.result;
}

struct Vote {
  uint32_t predicate, result;
};
inline void ballot_lanes(uint32_t mask, void** arguments) {
  uint32_t all = 0;
  for (int lane = 0; lane < 32; lane++)
    if ((mask >> lane & 1) && static_cast<Vote*>(arguments[lane])->predicate) all |= 1u << lane;
  for (int lane = 0; lane < 32; lane++)
    if (mask >> lane & 1) static_cast<Vote*>(arguments[lane])->result = all;
}

template <class T>
struct Reduction {
  T value, result;
};
template <class T, class Combine>
void reduce_lanes(uint32_t mask, void** arguments) {
  bool first = true;
  T all{};
  for (int lane = 0; lane < 32; lane++) {
    if (!(mask >> lane & 1)) continue;
    const T value = static_cast<Reduction<T>*>(arguments[lane])->value;
    all = first ? value : Combine{}(all, value);
    first = false;
  }
  for (int lane = 0; lane < 32; lane++)
    if (mask >> lane & 1) static_cast<Reduction<T>*>(arguments[lane])->result = all;
}
template <class T, class Combine>
T reduce(uint32_t mask, T value, const char* name) {
  static_assert(std::is_integral_v<T> && sizeof(T) == 4, "__reduce_*_sync take 32-bit integers");
  Reduction<T> reduction{value, value};
  collective(mask, reduce_lanes<T, Combine>, &reduction, name);
  return reduction.result;
}
struct Add { template <class T> T operator()(T a, T b) const { return T(a + b); } };
struct Min { template <class T> T operator()(T a, T b) const { return a < b ? a : b; } };
struct Max { template <class T> T operator()(T a, T b) const { return a < b ? b : a; } };
struct Or { template <class T> T operator()(T a, T b) const { return a | b; } };
struct And { template <class T> T operator()(T a, T b) const { return a & b; } };

inline int lane_of(int source, int lane, int width) { return (lane & ~(width - 1)) | (source & (width - 1)); }

}  // namespace freetoken::emu

inline void __syncwarp(unsigned mask = ~0u) { ::freetoken::emu::sync_warp(mask); }
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = int(::freetoken::emu::current_thread->lane);
  return ::freetoken::emu::shuffle(mask, value, ::freetoken::emu::lane_of(source, lane, width), "__shfl_sync");
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  const int lane = int(::freetoken::emu::current_thread->lane), from = lane ^ lanes;
  return ::freetoken::emu::shuffle(mask, value, from / width > lane / width ? lane : from, "__shfl_xor_sync");
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = int(::freetoken::emu::current_thread->lane);
  const bool inside = (lane & (width - 1)) + int(delta) < width;
  return ::freetoken::emu::shuffle(mask, value, inside ? lane + int(delta) : lane, "__shfl_down_sync");
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = int(::freetoken::emu::current_thread->lane);
  const bool inside = (lane & (width - 1)) >= int(delta);
  return ::freetoken::emu::shuffle(mask, value, inside ? lane - int(delta) : lane, "__shfl_up_sync");
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  ::freetoken::emu::Vote vote{uint32_t(predicate != 0), 0};
  ::freetoken::emu::collective(mask, ::freetoken::emu::ballot_lanes, &vote, "__ballot_sync");
  return vote.result;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
template <class T> T __reduce_add_sync(unsigned m, T v) { return ::freetoken::emu::reduce<T, ::freetoken::emu::Add>(m, v, "__reduce_add_sync"); }
template <class T> T __reduce_min_sync(unsigned m, T v) { return ::freetoken::emu::reduce<T, ::freetoken::emu::Min>(m, v, "__reduce_min_sync"); }
template <class T> T __reduce_max_sync(unsigned m, T v) { return ::freetoken::emu::reduce<T, ::freetoken::emu::Max>(m, v, "__reduce_max_sync"); }
template <class T> T __reduce_or_sync(unsigned m, T v) { return ::freetoken::emu::reduce<T, ::freetoken::emu::Or>(m, v, "__reduce_or_sync"); }
template <class T> T __reduce_and_sync(unsigned m, T v) { return ::freetoken::emu::reduce<T, ::freetoken::emu::And>(m, v, "__reduce_and_sync"); }
