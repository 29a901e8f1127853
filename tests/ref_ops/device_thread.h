// The device's own thread: takes work in order, now and then a little late, and completes tickets.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "core/status.h"
#include "ref_ops/executor.h"

namespace freetoken::ref {

using Task = std::function<Status(Executor&)>;

class DeviceThread {
 public:
  DeviceThread(Executor& executor, uint64_t seed, int max_delay_us);
  // Completes what was submitted.
  ~DeviceThread();

  void submit(uint64_t ticket, std::vector<Task> tasks);
  // Until all up to the ticket is done; the first error of those whose error nobody took yet.
  Status wait(uint64_t ticket);
  // Until nothing is left to do.
  void idle();

 private:
  struct Work {
    uint64_t ticket = 0;
    std::vector<Task> tasks;
  };
  void run();

  Executor& executor_;
  std::mt19937_64 rng_;
  int max_delay_us_;
  std::mutex mutex_;
  std::condition_variable to_device_, to_host_;
  std::deque<Work> work_;
  std::map<uint64_t, Status> errors_;  // by ticket
  uint64_t submitted_ = 0, completed_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace freetoken::ref
