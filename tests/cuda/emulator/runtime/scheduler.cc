#include "runtime/scheduler.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "emulator/block.h"
#include "emulator/options.h"
#include "memory/guard.h"

namespace freetoken::emu {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
constexpr auto kQuietHost = milliseconds(1);      // then the device goes on by itself
constexpr auto kValuePolling = microseconds(50);  // of values that the host may write at any time

void describe(const Stream& stream) {
  const Operation& head = stream.queue.front();
  std::fprintf(stderr, "  device %d, stream %d: %zu operations, the first: ", stream.device, stream.number,
               stream.queue.size());
  switch (head.kind) {
    case Operation::Kind::kWaitEvent:
      std::fprintf(stderr, "waits for record %llu of an event, reached is %llu\n", (unsigned long long)head.generation,
                   (unsigned long long)head.event->reached);
      break;
    case Operation::Kind::kWaitValue: {
      const DeviceMemoryAccess access;
      std::fprintf(stderr, "waits for the value %u at %p, which holds %u\n", head.value,
                   const_cast<const uint32_t*>(head.address), *head.address);
      break;
    }
    default: std::fprintf(stderr, "%s%s\n", head.what, stream.busy ? ", which runs" : "");
  }
  if (!stream.graph_run) return;
  const auto& nodes = head.graph->graph->nodes;
  for (size_t n = 0; n < nodes.size(); n++)
    if (!stream.graph_run->started[n] && stream.graph_run->waits_for[n] == 0)
      std::fprintf(stderr, "    node %zu of the graph could be next: %s\n", n, nodes[n].operation.what);
}

}  // namespace

constinit thread_local bool in_host_function = false;

Scheduler& Scheduler::get() {
  static Scheduler* const scheduler = [] {
    auto* made = new Scheduler;  // never deleted: threads may still look at it while the process ends
    std::atexit([] { get().stop(); });
    return made;
  }();
  return *scheduler;
}

Scheduler::Scheduler() : random_(options().seed + 1) {}

void Scheduler::reseed(uint64_t seed) {
  const std::lock_guard lock(mutex_);
  options().seed = seed;
  random_.seed(seed + 1);
}

void reseed(uint64_t seed) { Scheduler::get().reseed(seed); }

const std::shared_ptr<Stream>& Scheduler::null_stream(int device) {
  if (!null_streams_[device]) {
    auto stream = std::make_shared<Stream>();
    stream->device = device;
    stream->null_stream = true;
    null_streams_[device] = stream;
    streams_.push_back(std::move(stream));
  }
  return null_streams_[device];
}

void Scheduler::add(const std::shared_ptr<Stream>& stream) {
  stream->number = next_stream_++;
  streams_.push_back(stream);
}

void Scheduler::start(int device) {
  if (threads_[device].joinable()) return;
  threads_[device] = std::thread([this, device] { serve(device); });
  function_threads_[device] = std::thread([this, device] { serve_host_functions(device); });
}

void Scheduler::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (auto& d : device_) d.notify_all();
    for (auto& f : host_functions_) f.notify_all();
  }
  for (int d = 0; d < kMaxDevices; d++)
    for (std::thread* t : {&threads_[d], &function_threads_[d]})
      if (t->joinable() && t->get_id() != std::this_thread::get_id()) t->join();
}

cudaError_t Scheduler::issue(const std::shared_ptr<Stream>& stream, Operation operation) {
  if (stream->capture) {
    Capture& into = captures_.at(stream->capture);
    if (into.broken) return cudaErrorStreamCaptureInvalidated;
    into.graph.nodes.push_back({std::move(operation), stream->capture_tail});
    stream->capture_tail = {into.graph.nodes.size() - 1};
    return cudaSuccess;
  }
  operation.issued = ++issued_;
  stream->issued++;
  stream->queue.push_back(std::move(operation));
  last_issue_ = Clock::now();
  start(stream->device);
  if (stream->queue.size() == 1) device_[stream->device].notify_all();
  return cudaSuccess;
}

void Scheduler::poke() {
  steps_asked_for_ = 1;
  for (auto& d : device_) d.notify_all();
}

bool Scheduler::idle(int device) const {
  for (const auto& s : streams_)
    if (s->device == device && !s->queue.empty()) return false;
  return true;
}

void Scheduler::wait(std::unique_lock<std::mutex>& lock, const char* what, const std::function<bool()>& done) {
  waiting_hosts_++;
  for (auto& d : device_) d.notify_all();
  uint64_t seen = progress_;
  Clock::time_point since = Clock::now();
  while (!done()) {
    host_.wait_for(lock, milliseconds(100));
    bool works = seen != progress_;
    for (const auto& s : streams_) works |= s->busy && s->queue.front().kind != Operation::Kind::kHostFunction;
    if (works)
      seen = progress_, since = Clock::now();
    else if (Clock::now() - since > milliseconds(options().stuck_ms))
      stuck(what);
  }
  waiting_hosts_--;
}

void Scheduler::stuck(const char* what) const {
  std::fprintf(stderr, "emulator: %s waits, and for %d ms no stream could go on:\n", what, options().stuck_ms);
  for (const auto& s : streams_)
    if (!s->queue.empty()) describe(*s);
  die("the streams are stuck");
}

bool Scheduler::may_run(int device) {
  if (waiting_hosts_ > 0 || Clock::now() - last_issue_ >= kQuietHost) return true;
  return steps_asked_for_ > 0;
}

void Scheduler::serve(int device) {
  const DeviceMemoryAccess access;
  std::unique_lock lock(mutex_);
  std::vector<Choice> choices;
  while (!stopping_) {
    if (idle(device)) {
      device_[device].wait(lock);
      continue;
    }
    if (!may_run(device)) {
      device_[device].wait_until(lock, last_issue_ + kQuietHost);
      continue;
    }
    choices.clear();
    const bool polls = collect(device, choices);
    if (choices.empty()) {
      steps_asked_for_ = 0;
      if (polls)
        device_[device].wait_for(lock, kValuePolling);
      else
        device_[device].wait(lock);
      continue;
    }
    if (steps_asked_for_ > 0) steps_asked_for_--;
    run(lock, choices[random_() % choices.size()]);
  }
}

void Scheduler::serve_host_functions(int device) {
  in_host_function = true;
  std::unique_lock lock(mutex_);
  auto& functions = functions_[device];
  while (!stopping_) {
    if (functions.empty()) {
      host_functions_[device].wait(lock);
      continue;
    }
    auto [choice, function] = std::move(functions.front());
    functions.pop_front();
    lock.unlock();
    function();
    lock.lock();
    finish(choice);
  }
}

bool Scheduler::blocked_by_null_stream(const Stream& stream, const Operation& operation) const {
  if (stream.null_stream) {
    for (const auto& s : streams_)
      if (s->device == stream.device && s->blocking && s.get() != &stream && !s->queue.empty() &&
          s->queue.front().issued < operation.issued)
        return true;
    return false;
  }
  const auto& null = null_streams_[stream.device];
  return stream.blocking && null && !null->queue.empty() && null->queue.front().issued < operation.issued;
}

bool value_arrived(const Operation& operation) {
  const uint32_t now = __atomic_load_n(operation.address, __ATOMIC_ACQUIRE), value = operation.value;
  switch (operation.compare) {
    case 0: return int32_t(now - value) >= 0;
    case 1: return now == value;
    case 2: return (now & value) != 0;
    default: return ~(now | value) != 0;
  }
}

bool Scheduler::ready(const Stream& stream, const Operation& operation) const {
  switch (operation.kind) {
    case Operation::Kind::kWaitEvent: return operation.event->reached >= operation.generation;
    case Operation::Kind::kWaitValue: return value_arrived(operation);
    case Operation::Kind::kGraph: return !operation.graph->running;
    default: return true;
  }
}

bool Scheduler::collect(int device, std::vector<Choice>& choices) {
  bool polls = false;
  for (const auto& s : streams_) {
    if (s->device != device || s->queue.empty()) continue;
    const Operation& head = s->queue.front();
    if (s->graph_run) {
      const auto& nodes = head.graph->graph->nodes;
      for (size_t n = 0; n < nodes.size(); n++) {
        if (s->graph_run->started[n] || s->graph_run->waits_for[n]) continue;
        if (ready(*s, nodes[n].operation))
          choices.push_back({s, n});
        else
          polls = true;
      }
    } else if (!s->busy && !blocked_by_null_stream(*s, head)) {
      if (ready(*s, head))
        choices.push_back({s, kHead});
      else
        polls |= head.kind == Operation::Kind::kWaitValue;
    }
  }
  return polls;
}

void Scheduler::run(std::unique_lock<std::mutex>& lock, const Choice& choice) {
  Stream& stream = *choice.stream;
  const bool is_head = choice.node == kHead;
  const Operation& operation =
      is_head ? stream.queue.front() : stream.queue.front().graph->graph->nodes[choice.node].operation;
  if (operation.kind == Operation::Kind::kGraph) {
    begin_graph(stream);
    return;
  }
  if (is_head)
    stream.busy = true;
  else
    stream.graph_run->started[choice.node] = true;
  if (operation.kind == Operation::Kind::kHostFunction) {
    functions_[stream.device].emplace_back(choice, operation.run);
    host_functions_[stream.device].notify_all();
    return;
  }
  if (operation.run) {
    stream.busy = true;
    lock.unlock();
    operation.run();
    lock.lock();
  }
  if (operation.kind == Operation::Kind::kRecord) {
    operation.event->reached = std::max(operation.event->reached, operation.generation);
    operation.event->time = Clock::now();
  }
  finish(choice);
}

void Scheduler::begin_graph(Stream& stream) {
  GraphExec& exec = *stream.queue.front().graph;
  const auto& nodes = exec.graph->nodes;
  if (nodes.empty()) {
    finish_head(stream);
    return;
  }
  exec.running = true;
  auto run = std::make_unique<GraphRun>();
  run->left = nodes.size();
  run->started.resize(nodes.size());
  for (const Graph::Node& node : nodes) run->waits_for.push_back(node.after.size());
  stream.graph_run = std::move(run);
}

void Scheduler::finish(const Choice& choice) {
  Stream& stream = *choice.stream;
  stream.busy = false;
  progress_++;
  if (choice.node == kHead) {
    finish_head(stream);
  } else {
    const auto& nodes = stream.queue.front().graph->graph->nodes;
    for (size_t n = 0; n < nodes.size(); n++)
      for (const size_t before : nodes[n].after) stream.graph_run->waits_for[n] -= before == choice.node;
    if (--stream.graph_run->left == 0) {
      stream.queue.front().graph->running = false;
      stream.graph_run.reset();
      finish_head(stream);
    }
  }
  drop_if_done(choice.stream);
  host_.notify_all();
  for (auto& d : device_) d.notify_all();
}

void Scheduler::finish_head(Stream& stream) {
  stream.queue.pop_front();
  stream.completed++;
  progress_++;
  host_.notify_all();
}

void Scheduler::drop_if_done(const std::shared_ptr<Stream>& stream) {
  if (stream->destroyed && stream->queue.empty()) std::erase(streams_, stream);
}

Capture* Scheduler::capture(uint64_t number) {
  const auto at = captures_.find(number);
  return at == captures_.end() ? nullptr : &at->second;
}

uint64_t Scheduler::begin_capture(const std::shared_ptr<Stream>& origin, cudaStreamCaptureMode mode) {
  const uint64_t number = next_capture_++;
  Capture& c = captures_[number];
  c.number = number;
  c.origin = origin;
  c.mode = mode;
  c.thread = std::this_thread::get_id();
  c.graph.device = origin->device;
  return number;
}

void Scheduler::forget_capture(uint64_t number) {
  for (const auto& s : streams_)
    if (s->capture == number) s->capture = 0, s->capture_tail.clear();
  captures_.erase(number);
}

}  // namespace freetoken::emu
