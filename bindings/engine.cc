// Engine as a Python class. The engine thread never takes the GIL: events wait in a queue behind an eventfd.
// Where the engine computes on every core, a step's events are let out before the next step begins: otherwise the thread that
// writes them to the sockets loses its core to that step for a tick of the system's scheduler (4 ms). The work is the same.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "bindings.h"

namespace freetoken::bindings {
namespace {

struct TimedEvent {
  Event event;
  int64_t time_us;  // monotonic clock (Python's time.monotonic), when the engine handed it out
};

class EventQueue final : public EventSink {
 public:
  EventQueue() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~EventQueue() override { close(fd_); }
  void on_event(Event&& event) override {
    const int64_t time_us = now_us();
    const std::lock_guard lock(mutex_);
    events_.push_back({std::move(event), time_us});
  }
  void on_step_end() override {
    const int64_t step_us = now_us() - step_began_us_;
    {
      const std::lock_guard lock(mutex_);
      delivered_ = false;
    }
    const uint64_t one = 1;
    (void)!write(fd_, &one, sizeof one);
    std::unique_lock lock(mutex_);
    if (waits_)
      delivery_.wait_for(lock, std::chrono::microseconds(std::min(step_us / kWaitShare, kMostWaitUs)), [&] { return delivered_; });
    step_began_us_ = now_us();
  }
  // What take() gave is on its way to the clients. The first call switches the waiting on.
  void delivered(bool wait) {
    const std::lock_guard lock(mutex_);
    waits_ = wait;
    delivered_ = true;
    delivery_.notify_one();
  }
  std::vector<TimedEvent> take() {
    uint64_t count;
    (void)!read(fd_, &count, sizeof count);
    std::vector<TimedEvent> events;
    const std::lock_guard lock(mutex_);
    events.swap(events_);
    return events;
  }
  int fd() const { return fd_; }

 private:
  // A reader that is busy with something else costs a step at most this much.
  static constexpr int64_t kWaitShare = 16, kMostWaitUs = 3000;

  static int64_t now_us() {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  int fd_;
  int64_t step_began_us_ = now_us();  // engine thread only
  std::mutex mutex_;
  std::vector<TimedEvent> events_;
  std::condition_variable delivery_;
  bool waits_ = false, delivered_ = false;
};

class PyEngine {
 public:
  static std::unique_ptr<PyEngine> load(const py::dict& fields, py::object progress) {
    LoadOptions options = load_options(fields);
    if (!progress.is_none())
      options.progress = [progress = progress.ptr()](const std::string& phase, int64_t done, int64_t total) {
        const py::gil_scoped_acquire gil;
        try {
          py::reinterpret_borrow<py::object>(progress)(phase, done, total);
        } catch (py::error_already_set& e) {
          e.discard_as_unraisable("freetoken progress callback");
        }
      };
    auto engine = std::make_unique<PyEngine>();
    Status status;
    {
      const py::gil_scoped_release released;
      status = Engine::load(std::move(options), engine->queue_, &engine->engine_);
    }
    raise_if_error(status);
    const EngineStats stats = engine->engine_->stats();
    engine->vocab_ = stats.vocab;
    engine->uses_all_cores_ = stats.device == "cpu" && stats.threads >= int(std::thread::hardware_concurrency());
    return engine;
  }
  ~PyEngine() { shutdown(); }

  RequestId submit(const py::kwargs& fields) {
    RequestId id = 0;
    raise_if_error(engine_->submit(request_from(fields), &id));
    return id;
  }
  void cancel(RequestId id) { engine_->cancel(id); }
  py::list poll() {
    py::list list;
    for (const TimedEvent& timed : queue_->take()) list.append(event_to_python(timed.event, vocab_, timed.time_us));
    return list;
  }
  void delivered() { queue_->delivered(uses_all_cores_); }
  int event_fd() const { return queue_->fd(); }
  py::dict stats() const {
    const EngineStats s = engine_->stats();
    py::dict d;
    d["waiting"] = s.waiting;
    d["running"] = s.running;
    d["kv_pages_total"] = s.kv_pages_total;
    d["kv_pages_used"] = s.kv_pages_used;
    d["page_tokens"] = s.page_tokens;
    d["kv_pages_cached"] = s.kv_pages_cached;
    d["steps"] = s.steps;
    d["prompt_tokens"] = s.prompt_tokens;
    d["completion_tokens"] = s.completion_tokens;
    d["cached_prompt_tokens"] = s.cached_prompt_tokens;
    d["preemptions"] = s.preemptions;
    d["step_us"] = s.step_us;
    d["device_us"] = s.device_us;
    d["draft_tokens"] = s.draft_tokens;
    d["accepted_draft_tokens"] = s.accepted_draft_tokens;
    d["weight_bytes"] = s.weight_bytes;
    d["vocab"] = s.vocab;
    d["threads"] = s.threads;
    d["device"] = s.device;
    d["isa"] = s.isa;
    d["batch_invariant"] = s.batch_invariant;
    return d;
  }
  py::object health() const {
    const Status status = engine_->health();
    return status.ok() ? py::object(py::none()) : py::object(py::str(status.message()));
  }
  void shutdown() {
    const py::gil_scoped_release released;
    if (engine_) engine_->shutdown();
  }

 private:
  std::shared_ptr<EventQueue> queue_ = std::make_shared<EventQueue>();
  std::unique_ptr<Engine> engine_;
  int vocab_ = 1;
  bool uses_all_cores_ = false;
};

py::dict plan(const py::dict& fields) {
  const LoadOptions options = load_options(fields);
  MemoryPlan plan;
  const Status status = plan_memory(options, &plan);
  py::dict d;
  py::list rows;
  for (const PlanRow& row : plan.rows) rows.append(py::make_tuple(row.what, row.bytes, row.detail, row.on_device));
  d["rows"] = rows;
  d["total_bytes"] = plan.total_bytes;
  d["available_bytes"] = plan.available_bytes;
  d["device_total_bytes"] = plan.device_total_bytes;
  d["device_available_bytes"] = plan.device_available_bytes;
  d["kv_tokens"] = plan.kv_tokens;
  d["max_sequence_tokens"] = plan.max_sequence_tokens;
  // A plan that does not fit is still worth printing: the numbers come with the reason.
  d["error"] = py::none();
  if (status.code() == StatusCode::kResourceExhausted)
    d["error"] = status.message();
  else
    raise_if_error(status);
  return d;
}

}  // namespace

void register_engine(py::module_& m) {
  m.def("plan", &plan, py::arg("options"), "Memory plan of a model: rows of (what, bytes, detail, on the device) and totals.");
  m.def(
      "check_spec",
      [](const std::string& json) {
        std::string canonical;
        raise_if_error(check_model_spec(json, &canonical));
        return canonical;
      },
      py::arg("spec_json"), "Parses a ModelSpec strictly and returns its canonical JSON.");
  py::class_<PyEngine>(m, "Engine", "The engine; see freetoken/engine.h.")
      .def_static("load", &PyEngine::load, py::arg("options"), py::arg("progress") = py::none())
      .def("submit", &PyEngine::submit)
      .def("cancel", &PyEngine::cancel, py::arg("request_id"))
      .def("poll", &PyEngine::poll)
      .def("delivered", &PyEngine::delivered)
      .def("event_fd", &PyEngine::event_fd)
      .def("stats", &PyEngine::stats)
      .def("health", &PyEngine::health)
      .def("shutdown", &PyEngine::shutdown);
}

}  // namespace freetoken::bindings
