// Shared by the files that implement the runtime API.
#pragma once
#include <mutex>

#include "runtime/scheduler.h"

namespace freetoken::emu {

extern constinit thread_local int current_device;

// Remembers the error for cudaGetLastError, as the runtime does.
cudaError_t result(cudaError_t error);
// The same, and says why on standard error: what the real runtime leaves to be guessed.
[[gnu::format(printf, 2, 3)]] cudaError_t refuse(cudaError_t error, const char* format, ...);

// The stream behind a handle: null is the null stream of the current device. With the mutex held; null: a bad handle.
std::shared_ptr<Stream> stream_of(cudaStream_t handle);
// Why work may not be issued to the stream now: the wrong current device, a capture that it would break, a host
// function.
cudaError_t check_issue(const Stream& stream);
// Calls that would wait for, or change, what a capture in progress must not: they break it.
cudaError_t check_no_capture(const char* call);

Operation operation(const char* what, std::function<void()> run);

}  // namespace freetoken::emu
