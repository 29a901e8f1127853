// What was done to the device that its contract forbids. The first one fails every wait() from then on.
#pragma once
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

#include "core/status.h"

namespace freetoken::ref {

class Violations {
 public:
  void add(std::string what) {
    const std::lock_guard lock(mutex_);
    if (all_.size() >= kMost) return;
    std::fprintf(stderr, "RefOps: %s\n", what.c_str());
    all_.push_back(std::move(what));
  }
  Status status() const {
    const std::lock_guard lock(mutex_);
    return all_.empty() ? Status() : Internal("RefOps: " + all_.front());
  }
  // All so far; the device is as if they had not been.
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(all_, {});
  }

 private:
  static constexpr size_t kMost = 100;
  mutable std::mutex mutex_;
  std::vector<std::string> all_;
};

}  // namespace freetoken::ref
