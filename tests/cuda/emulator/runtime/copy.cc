// Copies. Pinned memory is read when the copy runs; other host memory is staged as CUDA does it: what is copied from it
// is taken at the call, and a copy into it ends before the call returns.
#include <cstring>
#include <vector>

#include "memory/guard.h"
#include "emulator/block.h"
#include "runtime/api.h"

using namespace freetoken::emu;

namespace {

enum class Side { kDevice, kPinned, kPageable };

struct Rectangle {
  char* to;
  const char* from;
  size_t to_pitch, from_pitch, width, height;
  size_t to_bytes() const { return to_pitch * (height - 1) + width; }
  size_t from_bytes() const { return from_pitch * (height - 1) + width; }
};

bool side_of(const void* pointer, size_t bytes, Side* side) {
  const Owner owner = owner_of(pointer);
  if (owner.place == Place::kDevice) {
    *side = Side::kDevice;
    return is_device_range(pointer, bytes);
  }
  *side = is_pinned(pointer, bytes) ? Side::kPinned : Side::kPageable;
  return owner.place == Place::kElsewhere || *side == Side::kPinned;
}

bool kind_fits(cudaMemcpyKind kind, Side to, Side from) {
  const bool to_device = to == Side::kDevice, from_device = from == Side::kDevice;
  switch (kind) {
    case cudaMemcpyHostToHost: return !to_device && !from_device;
    case cudaMemcpyHostToDevice: return to_device && !from_device;
    case cudaMemcpyDeviceToHost: return !to_device && from_device;
    case cudaMemcpyDeviceToDevice: return to_device && from_device;
    default: return true;
  }
}

void copy_now(const Rectangle& r, const char* what) {
  Side side;
  if (!side_of(r.to, r.to_bytes(), &side))
    die("%s: its destination %p was freed before it ran", what, static_cast<void*>(r.to));
  if (!side_of(r.from, r.from_bytes(), &side))
    die("%s: its source %p was freed before it ran", what, static_cast<const void*>(r.from));
  const DeviceMemoryAccess access;
  for (size_t y = 0; y < r.height; y++) std::memcpy(r.to + y * r.to_pitch, r.from + y * r.from_pitch, r.width);
}

cudaError_t issue_and(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Stream>& stream, Operation op,
                      bool wait) {
  Scheduler& scheduler = Scheduler::get();
  const char* what = op.what;
  const cudaError_t error = scheduler.issue(stream, std::move(op));
  if (error || !wait) return result(error);
  const uint64_t until = stream->issued;
  scheduler.wait(lock, what, [&] { return stream->completed >= until; });
  return cudaSuccess;
}

cudaError_t copy(const Rectangle& r, cudaMemcpyKind kind, cudaStream_t handle, const char* what, bool blocking) {
  if (r.width == 0 || r.height == 0) return cudaSuccess;
  Side to, from;
  if (!side_of(r.to, r.to_bytes(), &to))
    return refuse(cudaErrorInvalidValue, "%s: the destination %p is no live memory of that size", what,
                  static_cast<void*>(r.to));
  if (!side_of(r.from, r.from_bytes(), &from))
    return refuse(cudaErrorInvalidValue, "%s: the source %p is no live memory of that size", what,
                  static_cast<const void*>(r.from));
  if (!kind_fits(kind, to, from))
    return refuse(cudaErrorInvalidMemcpyDirection, "%s: a pointer is not on the side that its kind says", what);
  if (blocking)
    if (const cudaError_t error = check_no_capture(what)) return error;
  Scheduler& scheduler = Scheduler::get();
  std::unique_lock lock(scheduler.mutex());
  const auto stream = stream_of(handle);
  if (!stream) return result(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = check_issue(*stream)) return error;
  const bool pageable = to == Side::kPageable || from == Side::kPageable;
  if (pageable && stream->capture) {
    scheduler.capture(stream->capture)->broken = cudaErrorStreamCaptureUnsupported;
    return refuse(cudaErrorStreamCaptureUnsupported, "%s: host memory that is not pinned, in a capture", what);
  }
  if (from == Side::kPageable && !blocking) {
    auto staged = std::make_shared<std::vector<char>>(r.width * r.height);
    for (size_t y = 0; y < r.height; y++) std::memcpy(staged->data() + y * r.width, r.from + y * r.from_pitch, r.width);
    Rectangle late = r;
    late.from = staged->data();
    late.from_pitch = r.width;
    return issue_and(lock, stream, operation(what, [late, staged, what] { copy_now(late, what); }),
                     to == Side::kPageable);
  }
  return issue_and(lock, stream, operation(what, [r, what] { copy_now(r, what); }), blocking || to == Side::kPageable);
}

cudaError_t set(void* to, int value, size_t bytes, cudaStream_t handle, const char* what, bool blocking) {
  if (bytes == 0) return cudaSuccess;
  if (!is_device_range(to, bytes) && !is_pinned(to, bytes))
    return refuse(cudaErrorInvalidValue, "%s: %p is no live device memory of that size", what, to);
  if (blocking)
    if (const cudaError_t error = check_no_capture(what)) return error;
  Scheduler& scheduler = Scheduler::get();
  std::unique_lock lock(scheduler.mutex());
  const auto stream = stream_of(handle);
  if (!stream) return result(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = check_issue(*stream)) return error;
  return issue_and(lock, stream,
                   operation(what,
                             [=] {
                               if (!is_device_range(to, bytes) && !is_pinned(to, bytes))
                                 die("%s: its memory %p was freed before it ran", what, to);
                               const DeviceMemoryAccess access;
                               std::memset(to, value, bytes);
                             }),
                   blocking);
}

Rectangle row(void* to, const void* from, size_t bytes) {
  return {static_cast<char*>(to), static_cast<const char*>(from), bytes, bytes, bytes, 1};
}

}  // namespace

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return copy(row(to, from, bytes), kind, nullptr, "cudaMemcpy", true);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return copy(row(to, from, bytes), kind, stream, "cudaMemcpyAsync", false);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch)
    return refuse(cudaErrorInvalidValue, "cudaMemcpy2DAsync: rows wider than a pitch");
  return copy({static_cast<char*>(to), static_cast<const char*>(from), to_pitch, from_pitch, width, height}, kind,
              stream, "cudaMemcpy2DAsync", false);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                cudaStream_t stream) {
  if (bytes && (owner_of(to).device != to_device || owner_of(from).device != from_device))
    return refuse(cudaErrorInvalidValue, "cudaMemcpyPeerAsync: a pointer is not of the device named with it");
  return copy(row(to, from, bytes), cudaMemcpyDeviceToDevice, stream, "cudaMemcpyPeerAsync", false);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) { return set(to, value, bytes, nullptr, "cudaMemset", true); }
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return set(to, value, bytes, stream, "cudaMemsetAsync", false);
}
