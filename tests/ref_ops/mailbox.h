// The mailbox between the device and the host's ExpertResolver. The device posts the experts it lacks; a host thread asks the
// resolver and answers in any order and late, as a disk or another queue would.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "ops/experts.h"

namespace freetoken::ref {

class Mailbox {
 public:
  struct Answer {
    int32_t expert = 0;
    ExpertAnswer answer;
  };

  Mailbox(uint64_t seed, int max_delay_us);
  ~Mailbox();

  // Device side. post() returns at once; then as many take() as experts were posted, then release().
  void post(ExpertResolver* resolver, int layer, std::span<const int32_t> experts);
  Answer take();
  void release(ExpertResolver* resolver, int layer);
  // Blocks until the host has done everything it was told.
  void drain();

 private:
  struct Letter {
    ExpertResolver* resolver = nullptr;
    int layer = 0;
    std::vector<int32_t> experts;
    bool release = false;
  };
  void serve();
  void answer(Letter& letter);

  std::mt19937_64 rng_;
  int max_delay_us_;
  std::mutex mutex_;
  std::condition_variable to_host_, to_device_;
  std::deque<Letter> letters_;
  std::deque<Answer> answers_;
  bool busy_ = false, stop_ = false;
  std::thread host_;
};

}  // namespace freetoken::ref
