// The CUDA runtime API, as far as the backend uses it. Work is deferred: see runtime/scheduler.h.
#pragma once
#include "emulator/types.h"

#define FT_EMU_API [[gnu::visibility("default")]] cudaError_t

FT_EMU_API cudaGetDeviceCount(int* count);
FT_EMU_API cudaGetDevice(int* device);
FT_EMU_API cudaSetDevice(int device);
FT_EMU_API cudaDeviceSynchronize();
FT_EMU_API cudaDeviceReset();
FT_EMU_API cudaGetDeviceProperties(cudaDeviceProp* prop, int device);
FT_EMU_API cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
FT_EMU_API cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
FT_EMU_API cudaDeviceCanAccessPeer(int* can, int device, int peer);
FT_EMU_API cudaDeviceEnablePeerAccess(int peer, unsigned flags);
FT_EMU_API cudaDriverGetVersion(int* version);
FT_EMU_API cudaRuntimeGetVersion(int* version);
FT_EMU_API cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);

FT_EMU_API cudaGetLastError();
FT_EMU_API cudaPeekAtLastError();
const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);

FT_EMU_API cudaMalloc(void** pointer, size_t bytes);
FT_EMU_API cudaFree(void* pointer);
FT_EMU_API cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream);
FT_EMU_API cudaFreeAsync(void* pointer, cudaStream_t stream);
FT_EMU_API cudaHostAlloc(void** pointer, size_t bytes, unsigned flags);
FT_EMU_API cudaMallocHost(void** pointer, size_t bytes);
FT_EMU_API cudaFreeHost(void* pointer);
FT_EMU_API cudaHostRegister(void* pointer, size_t bytes, unsigned flags);
FT_EMU_API cudaHostUnregister(void* pointer);
FT_EMU_API cudaHostGetDevicePointer(void** device_pointer, void* host_pointer, unsigned flags);
FT_EMU_API cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer);

FT_EMU_API cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
FT_EMU_API cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream = nullptr);
FT_EMU_API cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                             cudaMemcpyKind kind, cudaStream_t stream = nullptr);
FT_EMU_API cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                               cudaStream_t stream = nullptr);
FT_EMU_API cudaMemset(void* to, int value, size_t bytes);
FT_EMU_API cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream = nullptr);

FT_EMU_API cudaStreamCreate(cudaStream_t* stream);
FT_EMU_API cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
FT_EMU_API cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
FT_EMU_API cudaStreamDestroy(cudaStream_t stream);
FT_EMU_API cudaStreamSynchronize(cudaStream_t stream);
FT_EMU_API cudaStreamQuery(cudaStream_t stream);
FT_EMU_API cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
FT_EMU_API cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* user);

FT_EMU_API cudaEventCreate(cudaEvent_t* event);
FT_EMU_API cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
FT_EMU_API cudaEventDestroy(cudaEvent_t event);
FT_EMU_API cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
FT_EMU_API cudaEventSynchronize(cudaEvent_t event);
FT_EMU_API cudaEventQuery(cudaEvent_t event);
FT_EMU_API cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end);

FT_EMU_API cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
FT_EMU_API cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
FT_EMU_API cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
FT_EMU_API cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
FT_EMU_API cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count);
FT_EMU_API cudaGraphDestroy(cudaGraph_t graph);
FT_EMU_API cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags = 0);
FT_EMU_API cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream);
FT_EMU_API cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
FT_EMU_API cudaGraphExecDestroy(cudaGraphExec_t exec);

FT_EMU_API cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);
FT_EMU_API cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                   cudaDriverEntryPointQueryResult* result = nullptr);
FT_EMU_API cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                            unsigned long long flags, cudaDriverEntryPointQueryResult* result = nullptr);
#undef FT_EMU_API

template <class T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}
template <class T>
cudaError_t cudaMallocAsync(T** pointer, size_t bytes, cudaStream_t stream) {
  return cudaMallocAsync(reinterpret_cast<void**>(pointer), bytes, stream);
}
template <class T>
cudaError_t cudaMallocHost(T** pointer, size_t bytes, unsigned flags = 0) {
  return cudaHostAlloc(reinterpret_cast<void**>(pointer), bytes, flags);
}
template <class T>
cudaError_t cudaHostAlloc(T** pointer, size_t bytes, unsigned flags) {
  return cudaHostAlloc(reinterpret_cast<void**>(pointer), bytes, flags);
}
template <class T>
cudaError_t cudaHostGetDevicePointer(T** device_pointer, void* host_pointer, unsigned flags) {
  return cudaHostGetDevicePointer(reinterpret_cast<void**>(device_pointer), host_pointer, flags);
}
template <class T>
cudaError_t cudaFuncSetAttribute(T* kernel, cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
