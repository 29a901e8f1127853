// ExpertSlots on the emulator beside the model of them, and experts whose bytes are known.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda/emulator_test/support.h"
#include "cuda/experts/lru_model.h"
#include "cuda/runtime/event.h"
#include "cuda/runtime/expert_slots.h"

namespace freetoken::cuda {

// What a file of experts would hold: [layers, experts, bytes].
struct ExpertBytes {
  int layers, experts;
  int64_t bytes;
  Pinned<uint8_t> pinned;
  ExpertBytes(int layers_, int experts_, int64_t bytes_, uint32_t seed)
      : layers(layers_), experts(experts_), bytes(bytes_), pinned(size_t(layers_ * experts_) * size_t(bytes_)) {
    std::mt19937 rng(seed);
    for (int64_t i = 0; i < layers * experts * bytes; i++) pinned.p[i] = uint8_t(rng());
  }
  const uint8_t* of(int key) const { return pinned.p + key * bytes; }
  std::vector<uint64_t> addresses(int layer) const {
    std::vector<uint64_t> all;
    for (int e = 0; e < experts; e++) all.push_back(reinterpret_cast<uint64_t>(of(layer * experts + e)));
    return all;
  }
};

template <class T>
std::vector<T> from_device(const T* p, size_t count) {
  std::vector<T> v(count);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(v.data(), p, count * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
  return v;
}

struct SlotsUnderTest {
  const ExpertBytes& experts;
  MemoryAccount account{0};
  Stream stream = std::move(*Stream::create());
  Device<int32_t> choice{4096};
  std::vector<std::unique_ptr<Device<uint64_t>>> sources;  // by layer
  ExpertSlots slots{account, stream.get()};  // goes first: what is above is in use until the stream has ended
  LruModel model;

  SlotsUnderTest(const ExpertBytes& experts_, int count, uint64_t first_call = 0)
      : experts(experts_), model(count, experts_.layers, experts_.experts) {
    const Status made = slots.resize(count, experts.bytes, experts.layers, experts.experts);
    EXPECT_TRUE(made.ok()) << made.message();
    EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
    const ExpertCounters counters{.calls = first_call};
    model.calls = first_call;
    EXPECT_EQ(cudaMemcpy(slots.view().counters, &counters, sizeof(counters), cudaMemcpyHostToDevice), cudaSuccess);
    for (int l = 0; l < experts.layers; l++)
      sources.push_back(std::make_unique<Device<uint64_t>>(experts.addresses(l)));
  }

  void choose(const std::vector<int32_t>& list) {
    ASSERT_LE(list.size(), choice.n);
    ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);  // earlier calls have read theirs
    if (list.empty()) return;
    ASSERT_EQ(cudaMemcpy(choice.p, list.data(), list.size() * sizeof(int32_t), cudaMemcpyHostToDevice), cudaSuccess);
  }
  cudaError_t enqueue(int layer, int entries, SlotRound round, bool ask = false) {
    const uint64_t* known = ask ? nullptr : sources[size_t(layer)]->p;
    return slots.enqueue(layer, choice.p, entries, round, known, experts.bytes, stream.get());
  }

  // All tables and all bytes as the model has them, and the extents of the last call.
  void check(int layer, const std::vector<int32_t>& list, SlotRound round) {
    const ExpertSlotsView& view = slots.view();
    const std::vector<int32_t> owner = from_device(view.owner, model.owner.size());
    ASSERT_EQ(owner, model.owner);
    ASSERT_EQ(from_device(view.slot_of, model.slot_of.size()), model.slot_of);
    ASSERT_EQ(from_device(view.clock, model.clock.size()), model.clock);
    const ExpertCounters counters = *slots.counters();
    ASSERT_EQ(counters.calls, model.calls);
    ASSERT_EQ(counters.hits, model.hits);
    ASSERT_EQ(counters.misses, model.misses);
    for (size_t s = 0; s < owner.size(); s++) {
      if (owner[s] < 0) continue;
      const std::vector<uint8_t> bytes = from_device(view.memory + int64_t(s) * view.slot_bytes, size_t(experts.bytes));
      ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), experts.of(owner[s]))) << "slot " << s;
    }
    const std::vector<uint64_t> extents = from_device(slots.extents(), size_t(experts.experts));
    for (int e = 0; e < experts.experts; e++) {
      const bool needed = e >= round.begin && e < round.end && std::find(list.begin(), list.end(), e) != list.end();
      const int32_t slot = needed ? model.slot_of[size_t(layer * experts.experts + e)] : -1;
      const uint64_t expected = slot < 0 ? 0 : reinterpret_cast<uint64_t>(view.memory + slot * view.slot_bytes);
      ASSERT_EQ(extents[size_t(e)], expected) << "expert " << e;
    }
  }
};

// A random call that fits into so many slots.
struct RandomCall {
  int layer;
  SlotRound round;
  std::vector<int32_t> choice;
  RandomCall(std::mt19937& rng, const ExpertBytes& experts, int slots) {
    const auto up_to = [&](int n) { return int(rng() % uint32_t(n)); };  // [0, n)
    layer = up_to(experts.layers);
    round.keep = up_to(3) != 0;
    const bool whole = up_to(2) == 0;
    const int width = whole ? experts.experts : 1 + up_to(std::min(slots, experts.experts));
    round.begin = up_to(experts.experts - width + 1);
    round.end = round.begin + width;
    const int most = std::min(slots, 1 + up_to(12));
    choice.resize(size_t(width <= slots ? up_to(40) : most));
    const int skew = 1 + up_to(experts.experts);  // some experts come more often than others
    for (int32_t& e : choice) e = up_to(2) ? up_to(skew) : up_to(experts.experts);
  }
};

}  // namespace freetoken::cuda
