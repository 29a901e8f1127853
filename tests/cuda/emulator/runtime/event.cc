#include "emulator/options.h"
#include "runtime/api.h"

using namespace freetoken::emu;

namespace {

// Whether the host may look at it: not while it stands for a place in a capture.
cudaError_t check_look(const Event& event, const char* call) {
  if (in_host_function) return refuse(cudaErrorNotPermitted, "%s in a function of cudaLaunchHostFunc", call);
  if (Scheduler::get().capture(event.capture)) return refuse(cudaErrorCapturedEvent, "%s", call);
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (options().devices == 0) return result(cudaErrorNoDevice);
  auto made = std::make_shared<Event>();
  made->device = current_device;
  made->timed = !(flags & cudaEventDisableTiming);
  *event = new CUevent_st{std::move(made)};
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (!event) return result(cudaErrorInvalidResourceHandle);
  delete event;  // what waits for it holds its state
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  if (!event) return result(cudaErrorInvalidResourceHandle);
  Scheduler& scheduler = Scheduler::get();
  const std::lock_guard lock(scheduler.mutex());
  const auto stream = stream_of(handle);
  if (const cudaError_t error = check_issue(*stream)) return error;
  Event& e = *event->event;
  if (e.device != stream->device)
    return refuse(cudaErrorInvalidResourceHandle, "an event of device %d is recorded on device %d", e.device,
                  stream->device);
  e.capture = stream->capture;
  if (stream->capture) {
    e.captured_after = stream->capture_tail;
    return cudaSuccess;
  }
  Operation op = operation("cudaEventRecord", nullptr);
  op.kind = Operation::Kind::kRecord;
  op.event = event->event;
  op.generation = ++e.recorded;
  return result(scheduler.issue(stream, std::move(op)));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (!event) return result(cudaErrorInvalidResourceHandle);
  Scheduler& scheduler = Scheduler::get();
  std::unique_lock lock(scheduler.mutex());
  const auto e = event->event;
  if (const cudaError_t error = check_look(*e, "cudaEventSynchronize")) return error;
  const uint64_t until = e->recorded;
  scheduler.wait(lock, "cudaEventSynchronize", [&] { return e->reached >= until; });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!event) return result(cudaErrorInvalidResourceHandle);
  Scheduler& scheduler = Scheduler::get();
  const std::lock_guard lock(scheduler.mutex());
  const Event& e = *event->event;
  if (const cudaError_t error = check_look(e, "cudaEventQuery")) return error;
  if (e.reached >= e.recorded) return cudaSuccess;
  scheduler.poke();
  return cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  if (!start || !end) return result(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock(Scheduler::get().mutex());
  const Event &a = *start->event, &b = *end->event;
  if (!a.timed || !b.timed || a.recorded == 0 || b.recorded == 0)
    return refuse(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime of events without times");
  if (a.reached < a.recorded || b.reached < b.recorded) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(b.time - a.time).count();
  return cudaSuccess;
}
