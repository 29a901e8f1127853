#include "ref_ops/mailbox.h"

#include <algorithm>
#include <chrono>

namespace freetoken::ref {

Mailbox::Mailbox(uint64_t seed, int max_delay_us)
    : rng_(seed), max_delay_us_(max_delay_us), host_([this] { serve(); }) {}

Mailbox::~Mailbox() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  to_host_.notify_all();
  host_.join();
}

void Mailbox::post(ExpertResolver* resolver, int layer, std::span<const int32_t> experts) {
  {
    const std::lock_guard lock(mutex_);
    letters_.push_back({resolver, layer, {experts.begin(), experts.end()}, false});
  }
  to_host_.notify_one();
}

void Mailbox::release(ExpertResolver* resolver, int layer) {
  {
    const std::lock_guard lock(mutex_);
    letters_.push_back({resolver, layer, {}, true});
  }
  to_host_.notify_one();
}

Mailbox::Answer Mailbox::take() {
  std::unique_lock lock(mutex_);
  to_device_.wait(lock, [&] { return !answers_.empty(); });
  Answer answer = std::move(answers_.front());
  answers_.pop_front();
  return answer;
}

void Mailbox::drain() {
  std::unique_lock lock(mutex_);
  to_device_.wait(lock, [&] { return letters_.empty() && !busy_; });
}

void Mailbox::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    to_host_.wait(lock, [&] { return stop_ || !letters_.empty(); });
    if (letters_.empty()) return;
    Letter letter = std::move(letters_.front());
    letters_.pop_front();
    busy_ = true;
    lock.unlock();
    if (letter.release)
      letter.resolver->release(letter.layer);
    else
      answer(letter);
    lock.lock();
    busy_ = false;
    to_device_.notify_one();
  }
}

void Mailbox::answer(Letter& letter) {
  letter.resolver->post(letter.layer, letter.experts);
  std::shuffle(letter.experts.begin(), letter.experts.end(), rng_);
  for (const int32_t expert : letter.experts) {
    if (max_delay_us_ > 0 && rng_() % 16 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(rng_() % uint64_t(max_delay_us_)));
    ExpertAnswer found = letter.resolver->wait(letter.layer, expert);
    {
      const std::lock_guard lock(mutex_);
      answers_.push_back({expert, std::move(found)});
    }
    to_device_.notify_one();
  }
}

}  // namespace freetoken::ref
