#include "core/thread_pool.h"

#include <sched.h>

#include "core/clock.h"
#include "core/fp_env.h"

namespace freetoken {
namespace {

// 50 us of spinning covers the gaps between the phases of a step; a parked worker costs a futex wake-up (about 10 us).
constexpr int64_t kSpinUs = 50;

// Spins until ready() or the time is up; returns whether it became ready.
template <class F>
bool spin(F&& ready) {
  for (int64_t end = 0;;) {
    for (int i = 0; i < 200; i++) {
      if (ready()) return true;
      __builtin_ia32_pause();
    }
    const int64_t now = now_us();
    if (!end) end = now + kSpinUs;
    if (now >= end) return ready();
  }
}

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(threads) {
  try {
    for (int t = 1; t < threads_; t++) workers_.emplace_back([this, t] { work(t); });
  } catch (...) {  // the system has no thread for us: the workers that did start must end before the exception leaves
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_ = true;
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::start(Body body, void* argument) {
  body_ = body;
  argument_ = argument;
  epoch_.fetch_add(1);  // sequentially consistent with parked_: either we see the parked worker or it sees the epoch
  if (parked_.load() > 0) epoch_.notify_all();
}

void ThreadPool::work(int thread) {
  set_denormals_to_zero();
  for (uint32_t seen = 0;;) {
    if (!spin([&] { return epoch_.load(std::memory_order_acquire) != seen; })) {
      parked_.fetch_add(1);
      epoch_.wait(seen);
      parked_.fetch_sub(1);
      if (epoch_.load(std::memory_order_acquire) == seen) continue;
    }
    seen++;
    if (stop_) return;
    body_(argument_, thread);
    barrier();
  }
}

void ThreadPool::barrier() {
  if (threads_ == 1) return;
  const uint32_t generation = generation_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_release);
    return;
  }
  auto passed = [&] { return generation_.load(std::memory_order_acquire) != generation; };
  while (!spin(passed)) sched_yield();  // the missing worker is not running: give it our core
}

}  // namespace freetoken
