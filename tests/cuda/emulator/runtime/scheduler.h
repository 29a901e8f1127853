// Runs what was issued to streams, in an order that only stream order, events, wait values and the null stream limit.
//
// Each device has a thread of its own, because the host need not call the runtime for the device to go on: it may poll
// a flag in pinned memory, or answer from another thread while a stream waits for a value. That thread is lazy: it
// starts when a host thread waits (then it runs anything that may run, not only what is waited for), takes one step per
// query, and goes on by itself once the host has issued nothing for a moment. So work is late by default, and what
// reuses a buffer or skips an event too early is seen; given one host thread that waits, the order follows from the
// seed alone.
#pragma once
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "memory/memory.h"
#include "runtime/objects.h"

namespace freetoken::emu {

class Scheduler {
 public:
  static Scheduler& get();

  // Held around every look at streams, events and captures.
  std::mutex& mutex() { return mutex_; }

  // With the mutex held.
  void add(const std::shared_ptr<Stream>& stream);
  const std::shared_ptr<Stream>& null_stream(int device);
  const std::vector<std::shared_ptr<Stream>>& streams() const { return streams_; }
  // Into the stream's queue, or the graph that it is captured into.
  cudaError_t issue(const std::shared_ptr<Stream>& stream, Operation operation);
  void poke();  // a query: lets the device take a step
  // Waits with the mutex released; the devices run meanwhile.
  void wait(std::unique_lock<std::mutex>& lock, const char* what, const std::function<bool()>& done);
  bool idle(int device) const;
  void drop_if_done(const std::shared_ptr<Stream>& stream);  // of destroyed streams
  Capture* capture(uint64_t number);
  uint64_t begin_capture(const std::shared_ptr<Stream>& origin, cudaStreamCaptureMode mode);
  void forget_capture(uint64_t number);
  const std::map<uint64_t, Capture>& captures() const { return captures_; }

  void reseed(uint64_t seed);
  void stop();  // at exit: the threads end, with what was not done left undone

 private:
  struct Choice {
    std::shared_ptr<Stream> stream;
    size_t node = kHead;
  };
  static constexpr size_t kHead = ~size_t(0);

  Scheduler();
  void start(int device);
  void serve(int device);
  void serve_host_functions(int device);
  bool may_run(int device);
  bool collect(int device, std::vector<Choice>& choices);  // true: some operation waits for a value
  bool ready(const Stream& stream, const Operation& operation) const;
  bool blocked_by_null_stream(const Stream& stream, const Operation& operation) const;
  void run(std::unique_lock<std::mutex>& lock, const Choice& choice);
  void finish(const Choice& choice);
  void finish_head(Stream& stream);
  void begin_graph(Stream& stream);
  [[noreturn]] void stuck(const char* what) const;

  std::mutex mutex_;
  std::condition_variable host_, device_[kMaxDevices], host_functions_[kMaxDevices];
  std::thread threads_[kMaxDevices], function_threads_[kMaxDevices];
  std::deque<std::pair<Choice, std::function<void()>>> functions_[kMaxDevices];
  std::vector<std::shared_ptr<Stream>> streams_;
  std::shared_ptr<Stream> null_streams_[kMaxDevices];
  std::map<uint64_t, Capture> captures_;
  uint64_t issued_ = 0, progress_ = 0, next_capture_ = 1;
  int next_stream_ = 1, waiting_hosts_ = 0, steps_asked_for_ = 0;
  Clock::time_point last_issue_;
  std::mt19937_64 random_;
  bool stopping_ = false;
};

// Set on the threads that run cudaLaunchHostFunc's functions: they may not call the runtime.
extern constinit thread_local bool in_host_function;

bool value_arrived(const Operation& operation);

}  // namespace freetoken::emu
