// Capture and replay. A node holds what was issued, arguments by value: a replay uses the addresses of then.
#include <algorithm>

#include "runtime/api.h"

using namespace freetoken::emu;

namespace {

// Every node that no other follows must be where the captured stream ended.
bool all_joined(const Capture& capture) {
  std::vector<bool> followed(capture.graph.nodes.size());
  for (const auto& node : capture.graph.nodes)
    for (const size_t before : node.after) followed[before] = true;
  const auto& tail = capture.origin->capture_tail;
  for (size_t n = 0; n < followed.size(); n++)
    if (!followed[n] && std::find(tail.begin(), tail.end(), n) == tail.end()) return false;
  return true;
}

}  // namespace

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  if (!handle) return refuse(cudaErrorStreamCaptureUnsupported, "the null stream cannot be captured");
  Scheduler& scheduler = Scheduler::get();
  const std::lock_guard lock(scheduler.mutex());
  const auto& stream = handle->stream;
  if (stream->capture) return refuse(cudaErrorInvalidValue, "stream %d is captured already", stream->number);
  stream->capture = scheduler.begin_capture(stream, mode);
  stream->capture_tail.clear();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  *graph = nullptr;
  if (!handle) return result(cudaErrorInvalidValue);
  Scheduler& scheduler = Scheduler::get();
  const std::lock_guard lock(scheduler.mutex());
  const auto& stream = handle->stream;
  Capture* capture = scheduler.capture(stream->capture);
  if (!capture) return refuse(cudaErrorInvalidValue, "stream %d is not captured", stream->number);
  if (capture->origin != stream)
    return refuse(cudaErrorStreamCaptureUnmatched, "the capture began in stream %d", capture->origin->number);
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
    return refuse(cudaErrorStreamCaptureWrongThread, "stream %d", stream->number);
  cudaError_t error = capture->broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  if (!error && !all_joined(*capture))
    error = refuse(cudaErrorStreamCaptureUnjoined, "stream %d does not wait for all that was forked", stream->number);
  if (!error) *graph = new CUgraph_st{std::make_shared<const Graph>(std::move(capture->graph))};
  scheduler.forget_capture(capture->number);
  return result(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  Scheduler& scheduler = Scheduler::get();
  const std::lock_guard lock(scheduler.mutex());
  const Capture* capture = scheduler.capture(stream_of(handle)->capture);
  *status = !capture          ? cudaStreamCaptureStatusNone
            : capture->broken ? cudaStreamCaptureStatusInvalidated
                              : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return refuse(cudaErrorNotSupported, "cudaThreadExchangeStreamCaptureMode");
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes) return refuse(cudaErrorNotSupported, "cudaGraphGetNodes for more than the number");
  *count = graph->graph->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (!graph) return result(cudaErrorInvalidValue);
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  if (!graph || flags) return result(cudaErrorInvalidValue);
  *exec = new CUgraphExec_st{std::make_shared<GraphExec>()};
  (*exec)->exec->graph = graph->graph;
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t) {
  return result(exec ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  if (!exec) return result(cudaErrorInvalidValue);
  Scheduler& scheduler = Scheduler::get();
  const std::lock_guard lock(scheduler.mutex());
  const auto stream = stream_of(handle);
  if (const cudaError_t error = check_issue(*stream)) return error;
  if (stream->capture) return refuse(cudaErrorNotSupported, "a graph launched into a capture");
  if (exec->exec->graph->device != stream->device)
    return refuse(cudaErrorInvalidValue, "a graph of device %d launched on device %d", exec->exec->graph->device,
                  stream->device);
  Operation op = operation("cudaGraphLaunch", nullptr);
  op.kind = Operation::Kind::kGraph;
  op.graph = exec->exec;
  return result(scheduler.issue(stream, std::move(op)));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  if (!exec) return result(cudaErrorInvalidValue);
  delete exec;  // a launch under way holds what it runs
  return cudaSuccess;
}
