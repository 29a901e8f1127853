// An ExpertResolver that "reads" experts in random order after random delays, into memory that it scribbles over once
// they are released; and that fails where it is told to. Complains of every call that the contract does not allow.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "cuda/experts/slots_support.h"
#include "ops/experts.h"

namespace freetoken::cuda {

class SlowResolver final : public ExpertResolver {
 public:
  SlowResolver(const ExpertBytes& file, uint32_t seed, int delay_us)
      : file_(file),
        delay_us_(delay_us),
        rng_(seed),
        ram_(size_t(file.experts) * size_t(file.bytes)),
        reader_([this] { read(); }) {}
  ~SlowResolver() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    reader_.join();
    EXPECT_EQ(releases, posts);
  }

  void post(int layer, std::span<const int32_t> experts) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(layer_, -1) << "posted before the last layer was released";
    EXPECT_FALSE(experts.empty());
    const auto unordered = std::adjacent_find(experts.begin(), experts.end(), std::greater_equal<>());
    EXPECT_TRUE(unordered == experts.end()) << "not ascending";
    layer_ = layer;
    posts++;
    queue_.assign(experts.begin(), experts.end());
    std::shuffle(queue_.begin(), queue_.end(), rng_);
    answers_.clear();
    for (const int32_t e : experts) posted_.insert(e);
    changed_.notify_all();
  }
  ExpertAnswer wait(int layer, int expert) override {
    std::unique_lock lock(mutex_);
    EXPECT_EQ(layer, layer_);
    EXPECT_TRUE(posted_.erase(expert)) << "expert " << expert << " was not posted, or is waited for twice";
    waiting = true;
    changed_.wait(lock, [&] { return answers_.contains(expert); });
    return answers_[expert];
  }
  void release(int layer) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(layer, layer_);
    EXPECT_TRUE(posted_.empty()) << "released before all were waited for";
    layer_ = -1;
    releases++;
    std::fill_n(ram_.p, file_.experts * file_.bytes, 0xee);
  }

  std::set<int> failing, computed_here;  // keys
  std::atomic<int> posts{0}, releases{0};
  std::function<void(int key, uint8_t* to)> read_extent = [this](int key, uint8_t* to) {
    std::copy_n(file_.of(key), file_.bytes, to);
  };
  std::atomic<bool> waiting{false}, hold{false};  // hold: reads nothing

 private:
  void read() {
    std::unique_lock lock(mutex_);
    while (true) {
      while (!stop_ && (queue_.empty() || hold)) changed_.wait_for(lock, std::chrono::milliseconds(1));
      if (stop_) return;
      const int32_t e = queue_.back();
      queue_.pop_back();
      const int key = layer_ * file_.experts + e, us = delay_us_ > 0 ? int(rng_() % uint32_t(delay_us_)) : 0;
      lock.unlock();
      if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
      uint8_t* to = ram_.p + e * file_.bytes;
      read_extent(key, to);
      lock.lock();
      ExpertAnswer answer{.kind = ExpertAnswer::Kind::kAddress, .address = reinterpret_cast<uint64_t>(to)};
      if (failing.contains(key))
        answer = {.kind = ExpertAnswer::Kind::kFailed, .error = IoError("cannot read expert " + std::to_string(key))};
      if (computed_here.contains(key)) answer = {.kind = ExpertAnswer::Kind::kComputeHere};
      answers_[e] = answer;
      changed_.notify_all();
    }
  }

  const ExpertBytes& file_;
  const int delay_us_;
  std::mt19937 rng_;
  Pinned<uint8_t> ram_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  int layer_ = -1;
  std::vector<int32_t> queue_;
  std::set<int32_t> posted_;
  std::map<int32_t, ExpertAnswer> answers_;
  std::thread reader_;
};

}  // namespace freetoken::cuda
