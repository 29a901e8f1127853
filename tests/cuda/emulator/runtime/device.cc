#include <cstdio>

#include "emulator/options.h"
#include "runtime/api.h"
#include "simt/shared_memory.h"

namespace freetoken::emu {

constinit thread_local int current_device = 0;

namespace {

// A device with the tighter limits of sm_86, 89 and 120: what runs here has room on the others.
constexpr int kMajor = 8, kMinor = 6, kMultiprocessors = 16, kVersion = 13000;

bool bad_device(int device) { return device < 0 || device >= options().devices; }

}  // namespace
}  // namespace freetoken::emu

using namespace freetoken::emu;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = options().devices;
  return result(*count ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (bad_device(device)) return result(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t error = check_no_capture("cudaDeviceSynchronize")) return error;
  Scheduler& scheduler = Scheduler::get();
  std::unique_lock lock(scheduler.mutex());
  const int device = current_device;
  scheduler.wait(lock, "cudaDeviceSynchronize", [&] { return scheduler.idle(device); });
  return cudaSuccess;
}

cudaError_t cudaDeviceReset() { return refuse(cudaErrorNotSupported, "cudaDeviceReset"); }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  if (bad_device(device)) return result(cudaErrorInvalidDevice);
  *prop = {};
  std::snprintf(prop->name, sizeof prop->name, "FreeToken CUDA emulator");
  prop->totalGlobalMem = options().memory_bytes;
  prop->sharedMemPerBlock = kDynamicSharedBytes;
  prop->sharedMemPerBlockOptin = options().shared_bytes;
  prop->sharedMemPerMultiprocessor = options().shared_bytes + 1024;
  prop->regsPerBlock = 65536;
  prop->warpSize = 32;
  prop->maxThreadsPerBlock = 1024;
  prop->maxThreadsPerMultiProcessor = 1536;
  prop->multiProcessorCount = kMultiprocessors;
  prop->l2CacheSize = 4 << 20;
  prop->maxGridSize[0] = 0x7fffffff;
  prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
  prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = 1024;
  prop->maxThreadsDim[2] = 64;
  prop->major = kMajor;
  prop->minor = kMinor;
  prop->canMapHostMemory = prop->unifiedAddressing = prop->concurrentKernels = 1;
  prop->asyncEngineCount = 2;
  prop->memoryBusWidth = 256;
  prop->pciBusID = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (bad_device(device)) return result(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = int(kDynamicSharedBytes); break;
    case cudaDevAttrMultiProcessorCount: *value = kMultiprocessors; break;
    case cudaDevAttrComputeCapabilityMajor: *value = kMajor; break;
    case cudaDevAttrComputeCapabilityMinor: *value = kMinor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = int(options().shared_bytes) + 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = int(options().shared_bytes); break;
    case cudaDevAttrReserved94: *value = options().stream_memory_operations; break;
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    default: return refuse(cudaErrorInvalidValue, "the emulator has no device attribute %d", int(attribute));
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (bad_device(device) || bad_device(peer)) return result(cudaErrorInvalidDevice);
  *can = 0;  // as between most consumer devices: a kernel reads its own device's memory
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) { return result(cudaErrorPeerAccessUnsupported); }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = options().devices ? kVersion : 0;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *total_bytes = options().memory_bytes;
  const size_t used = device_memory(current_device).used_bytes();
  *free_bytes = used < *total_bytes ? *total_bytes - used : 0;
  return cudaSuccess;
}
