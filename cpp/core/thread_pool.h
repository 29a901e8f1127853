// A fixed pool for data-parallel phases. The calling thread is worker 0; the others spin for a short time between phases
// and then park. One thread at a time may call run().
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace freetoken {

class ThreadPool {
 public:
  // threads >= 1 counts the caller. Throws std::system_error when the system has no more threads.
  // Workers run with denormals flushed; the caller sets that itself.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls body(thread) on every worker, returns when all are done.
  template <class F>
  void run(F&& body) {
    if (threads_ == 1) return body(0);
    start([](void* f, int thread) { (*static_cast<std::remove_reference_t<F>*>(f))(thread); }, &body);
    body(0);
    barrier();
  }

  // Inside run(): waits until every worker has arrived.
  void barrier();

 private:
  using Body = void (*)(void*, int);
  void start(Body body, void* argument);
  void work(int thread);
  void stop();

  int threads_;
  Body body_ = nullptr;
  void* argument_ = nullptr;
  bool stop_ = false;
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<int> parked_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
  std::vector<std::thread> workers_;
};

}  // namespace freetoken
