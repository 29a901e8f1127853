// Events and streams with owners.
#pragma once
#include <cuda_runtime.h>

#include <utility>

#include "cuda/runtime/cuda_status.h"

namespace freetoken::cuda {

// Marks a place in a stream. Without timing: that makes it cheap.
class Event {
 public:
  static Result<Event> create() {
    Event event;
    FT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&event.event_, cudaEventDisableTiming), "cudaEventCreate");
    return event;
  }
  Event() = default;
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event() {
    if (event_) cudaEventDestroy(event_);
  }
  cudaEvent_t get() const { return event_; }
  Status record(cudaStream_t stream) { return cuda_status(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  // Until what was before it in its stream is done; at once where it was never recorded.
  Status synchronize() const { return cuda_status(cudaEventSynchronize(event_), "waiting for the GPU"); }

 private:
  cudaEvent_t event_ = nullptr;
};

class Stream {
 public:
  static Result<Stream> create() {
    Stream stream;
    FT_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream.stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    return stream;
  }
  Stream() = default;
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Stream() {
    if (!stream_) return;
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  cudaStream_t get() const { return stream_; }
  Status synchronize() const { return cuda_status(cudaStreamSynchronize(stream_), "waiting for the GPU"); }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace freetoken::cuda
