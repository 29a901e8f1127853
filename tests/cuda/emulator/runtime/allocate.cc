#include <cstring>

#include "emulator/options.h"
#include "memory/guard.h"
#include "runtime/api.h"

using namespace freetoken::emu;

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = nullptr;
  if (options().devices == 0) return result(cudaErrorNoDevice);
  if (const cudaError_t error = check_no_capture("cudaMalloc")) return error;
  if (bytes == 0) return cudaSuccess;
  *pointer = device_memory(current_device).allocate(bytes, options().memory_bytes);
  return result(*pointer ? cudaSuccess : cudaErrorMemoryAllocation);
}

namespace {

cudaError_t release_device(void* pointer, const char* call) {
  const Owner owner = owner_of(pointer);
  if (owner.place != Place::kDevice || !device_memory(owner.device).release(pointer))
    return refuse(cudaErrorInvalidValue, "%s(%p): not allocated, or freed before", call, pointer);
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaFree(void* pointer) {
  if (!pointer) return cudaSuccess;
  if (const cudaError_t error = check_no_capture("cudaFree")) return error;
  if (const cudaError_t error = cudaDeviceSynchronize()) return error;
  return release_device(pointer, "cudaFree");
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  Scheduler& scheduler = Scheduler::get();
  {
    const std::lock_guard lock(scheduler.mutex());
    const auto s = stream_of(stream);
    if (!s) return result(cudaErrorInvalidResourceHandle);
    if (s->capture) return refuse(cudaErrorNotSupported, "cudaMallocAsync in a capture");
    if (s->device != current_device) return refuse(cudaErrorInvalidResourceHandle, "a stream of another device");
  }
  *pointer = device_memory(current_device).allocate(bytes, options().memory_bytes);
  return result(*pointer ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  Scheduler& scheduler = Scheduler::get();
  const std::lock_guard lock(scheduler.mutex());
  const auto s = stream_of(stream);
  if (!s) return result(cudaErrorInvalidResourceHandle);
  if (s->capture) return refuse(cudaErrorNotSupported, "cudaFreeAsync in a capture");
  if (!is_device_range(pointer, 1)) return refuse(cudaErrorInvalidValue, "cudaFreeAsync(%p)", pointer);
  return scheduler.issue(s, operation("cudaFreeAsync", [pointer] { release_device(pointer, "cudaFreeAsync"); }));
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  *pointer = nullptr;
  if (const cudaError_t error = check_no_capture("cudaHostAlloc")) return error;
  if (bytes == 0) return cudaSuccess;
  *pointer = pinned_memory().allocate(bytes, size_t(1) << 36);
  return result(*pointer ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }

cudaError_t cudaFreeHost(void* pointer) {
  if (!pointer) return cudaSuccess;
  if (const cudaError_t error = check_no_capture("cudaFreeHost")) return error;
  if (const cudaError_t error = cudaDeviceSynchronize()) return error;
  if (!pinned_memory().release(pointer))
    return refuse(cudaErrorInvalidValue, "cudaFreeHost(%p): not allocated, or freed before", pointer);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
  if (!pointer || bytes == 0) return result(cudaErrorInvalidValue);
  return result(register_host(pointer, bytes) ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t cudaHostUnregister(void* pointer) {
  if (const cudaError_t error = cudaDeviceSynchronize()) return error;
  return result(unregister_host(pointer) ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* host_pointer, unsigned flags) {
  *device_pointer = nullptr;
  if (!is_pinned(host_pointer, 1))
    return refuse(cudaErrorInvalidValue, "cudaHostGetDevicePointer(%p): not pinned", host_pointer);
  *device_pointer = host_pointer;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  attributes->device = -1;
  const Owner owner = owner_of(pointer);
  auto* p = const_cast<void*>(pointer);
  if (owner.place == Place::kDevice && is_device_range(pointer, 1)) {
    *attributes = {cudaMemoryTypeDevice, owner.device, p, nullptr};
  } else if (is_pinned(pointer, 1)) {
    *attributes = {cudaMemoryTypeHost, current_device, p, p};
  } else {
    attributes->hostPointer = p;
  }
  return cudaSuccess;
}
