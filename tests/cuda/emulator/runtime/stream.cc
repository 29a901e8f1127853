#include <algorithm>

#include "emulator/options.h"
#include "runtime/api.h"

namespace freetoken::emu {

std::shared_ptr<Stream> stream_of(cudaStream_t handle) {
  return handle ? handle->stream : Scheduler::get().null_stream(current_device);
}

Operation operation(const char* what, std::function<void()> run) {
  Operation op;
  op.what = what;
  op.run = std::move(run);
  return op;
}

cudaError_t check_issue(const Stream& stream) {
  if (in_host_function) return refuse(cudaErrorNotPermitted, "a function of cudaLaunchHostFunc calls the runtime");
  if (stream.device != current_device)
    return refuse(cudaErrorInvalidResourceHandle, "stream %d is of device %d, the current one is %d", stream.number,
                  stream.device, current_device);
  if (!stream.null_stream) return cudaSuccess;
  Scheduler& scheduler = Scheduler::get();
  for (const auto& s : scheduler.streams()) {
    if (!s->capture || !s->blocking || s->device != stream.device) continue;
    scheduler.capture(s->capture)->broken = cudaErrorStreamCaptureImplicit;
    return refuse(cudaErrorStreamCaptureImplicit, "the null stream is used while blocking stream %d is captured",
                  s->number);
  }
  return cudaSuccess;
}

cudaError_t check_no_capture(const char* call) {
  if (in_host_function) return refuse(cudaErrorNotPermitted, "%s in a function of cudaLaunchHostFunc", call);
  Scheduler& scheduler = Scheduler::get();
  const std::lock_guard lock(scheduler.mutex());
  for (const auto& [number, capture] : scheduler.captures()) {
    const bool mine = capture.thread == std::this_thread::get_id();
    if (capture.mode == cudaStreamCaptureModeRelaxed) continue;
    if (capture.mode == cudaStreamCaptureModeThreadLocal && !mine) continue;
    scheduler.capture(number)->broken = cudaErrorStreamCaptureUnsupported;
    return refuse(cudaErrorStreamCaptureUnsupported, "%s while stream %d is captured", call, capture.origin->number);
  }
  return cudaSuccess;
}

namespace {

cudaError_t bad_handle(const char* call) { return refuse(cudaErrorInvalidResourceHandle, "%s", call); }

cudaError_t check_wait(const Stream& stream, const char* call) {
  if (in_host_function) return refuse(cudaErrorNotPermitted, "%s in a function of cudaLaunchHostFunc", call);
  if (!stream.capture) return cudaSuccess;
  Scheduler::get().capture(stream.capture)->broken = cudaErrorStreamCaptureUnsupported;
  return refuse(cudaErrorStreamCaptureUnsupported, "%s of a stream that is captured", call);
}

}  // namespace
}  // namespace freetoken::emu

using namespace freetoken::emu;

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  if (options().devices == 0) return result(cudaErrorNoDevice);
  if (flags & ~unsigned(cudaStreamNonBlocking)) return result(cudaErrorInvalidValue);
  Scheduler& scheduler = Scheduler::get();
  const std::lock_guard lock(scheduler.mutex());
  auto made = std::make_shared<Stream>();
  made->device = current_device;
  made->priority = priority;
  made->blocking = !(flags & cudaStreamNonBlocking);
  scheduler.add(made);
  *stream = new CUstream_st{std::move(made)};
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (!stream) return bad_handle("cudaStreamDestroy of the null stream");
  Scheduler& scheduler = Scheduler::get();
  const std::lock_guard lock(scheduler.mutex());
  if (const cudaError_t error = check_wait(*stream->stream, "cudaStreamDestroy")) return error;
  stream->stream->destroyed = true;
  scheduler.drop_if_done(stream->stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  Scheduler& scheduler = Scheduler::get();
  std::unique_lock lock(scheduler.mutex());
  const auto stream = stream_of(handle);
  if (const cudaError_t error = check_wait(*stream, "cudaStreamSynchronize")) return error;
  const uint64_t until = stream->issued;
  scheduler.wait(lock, "cudaStreamSynchronize", [&] { return stream->completed >= until; });
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  Scheduler& scheduler = Scheduler::get();
  const std::lock_guard lock(scheduler.mutex());
  const auto stream = stream_of(handle);
  if (const cudaError_t error = check_wait(*stream, "cudaStreamQuery")) return error;
  if (stream->queue.empty()) return cudaSuccess;
  scheduler.poke();
  return cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
  if (!event) return bad_handle("cudaStreamWaitEvent without an event");
  Scheduler& scheduler = Scheduler::get();
  const std::lock_guard lock(scheduler.mutex());
  const auto stream = stream_of(handle);
  const auto& e = event->event;
  if (in_host_function) return refuse(cudaErrorNotPermitted, "cudaStreamWaitEvent in a function of cudaLaunchHostFunc");
  Capture* capture = scheduler.capture(e->capture);
  if (capture) {
    if (stream->capture && stream->capture != e->capture)
      return refuse(cudaErrorStreamCaptureMerge, "cudaStreamWaitEvent joins two captures");
    if (!stream->capture && !stream->queue.empty() && stream->null_stream)
      return refuse(cudaErrorStreamCaptureImplicit, "the null stream joins a capture");
    stream->capture = e->capture;
    for (const size_t node : e->captured_after)
      if (std::find(stream->capture_tail.begin(), stream->capture_tail.end(), node) == stream->capture_tail.end())
        stream->capture_tail.push_back(node);
    return cudaSuccess;
  }
  if (stream->capture) {
    if (e->recorded == 0) return cudaSuccess;
    scheduler.capture(stream->capture)->broken = cudaErrorStreamCaptureIsolation;
    return refuse(cudaErrorStreamCaptureIsolation, "captured stream %d waits for an event recorded outside the capture",
                  stream->number);
  }
  if (e->reached >= e->recorded) return cudaSuccess;
  Operation op = operation("cudaStreamWaitEvent", nullptr);
  op.kind = Operation::Kind::kWaitEvent;
  op.event = e;
  op.generation = e->recorded;
  return result(scheduler.issue(stream, std::move(op)));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* user) {
  Scheduler& scheduler = Scheduler::get();
  const std::lock_guard lock(scheduler.mutex());
  const auto stream = stream_of(handle);
  if (const cudaError_t error = check_issue(*stream)) return error;
  Operation op = operation("cudaLaunchHostFunc", [=] { function(user); });
  op.kind = Operation::Kind::kHostFunction;
  return result(scheduler.issue(stream, std::move(op)));
}
