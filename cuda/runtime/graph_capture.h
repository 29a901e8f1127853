// From calls to a graph.
#pragma once
#include "cuda/runtime/cuda_status.h"

namespace freetoken::cuda {

// What `body` enqueues on the stream, as a graph. body: returns a Status.
template <class F>
Status capture_graph(cudaStream_t stream, F&& body, cudaGraphExec_t* graph) {
  FT_CUDA_RETURN_IF_ERROR(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  const Status enqueued = body();
  cudaGraph_t captured = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &captured);
  cudaError_t error = ended;
  if (enqueued.ok() && ended == cudaSuccess) error = cudaGraphInstantiate(graph, captured, 0);
  if (captured) cudaGraphDestroy(captured);
  if (!enqueued.ok()) {
    cudaGetLastError();  // of the capture that this broke
    return enqueued;
  }
  return cuda_status(error, ended == cudaSuccess ? "cudaGraphInstantiate" : "cudaStreamEndCapture");
}

}  // namespace freetoken::cuda
