#include "ref_ops/device_thread.h"

#include <chrono>
#include <exception>

#include "core/fp_env.h"

namespace freetoken::ref {

DeviceThread::DeviceThread(Executor& executor, uint64_t seed, int max_delay_us)
    : executor_(executor), rng_(seed ^ 0xd17), max_delay_us_(max_delay_us), thread_([this] { run(); }) {}

DeviceThread::~DeviceThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  to_device_.notify_all();
  thread_.join();
}

void DeviceThread::submit(uint64_t ticket, std::vector<Task> tasks) {
  {
    const std::lock_guard lock(mutex_);
    submitted_ = ticket;
    work_.push_back({ticket, std::move(tasks)});
  }
  to_device_.notify_one();
}

Status DeviceThread::wait(uint64_t ticket) {
  std::unique_lock lock(mutex_);
  to_host_.wait(lock, [&] { return completed_ >= ticket; });
  Status first;
  while (!errors_.empty() && errors_.begin()->first <= ticket) {
    if (first.ok()) first = std::move(errors_.begin()->second);
    errors_.erase(errors_.begin());
  }
  return first;
}

void DeviceThread::idle() {
  std::unique_lock lock(mutex_);
  to_host_.wait(lock, [&] { return completed_ >= submitted_; });
}

void DeviceThread::run() {
  set_denormals_to_zero();
  std::unique_lock lock(mutex_);
  while (true) {
    to_device_.wait(lock, [&] { return stop_ || !work_.empty(); });
    if (work_.empty()) return;
    Work work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    if (max_delay_us_ > 0 && rng_() % 16 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(rng_() % uint64_t(max_delay_us_)));
    Status status;
    for (const Task& task : work.tasks) {
      Status one = task(executor_);
      if (status.ok()) status = std::move(one);
    }
    work.tasks.clear();
    lock.lock();
    if (!status.ok()) errors_[work.ticket] = std::move(status);
    completed_ = work.ticket;
    to_host_.notify_all();
  }
}

}  // namespace freetoken::ref
