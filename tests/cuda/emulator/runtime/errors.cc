#include <cstdarg>
#include <cstdio>
#include <utility>

#include "runtime/api.h"

namespace freetoken::emu {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};
#define FT_EMU_ERROR(name, text) {name, #name, text}
constexpr ErrorText kErrors[] = {
    FT_EMU_ERROR(cudaSuccess, "no error"),
    FT_EMU_ERROR(cudaErrorInvalidValue, "invalid argument"),
    FT_EMU_ERROR(cudaErrorMemoryAllocation, "out of memory"),
    FT_EMU_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    FT_EMU_ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    FT_EMU_ERROR(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    FT_EMU_ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    FT_EMU_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    FT_EMU_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    FT_EMU_ERROR(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"),
    FT_EMU_ERROR(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices"),
    FT_EMU_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    FT_EMU_ERROR(cudaErrorSymbolNotFound, "named symbol not found"),
    FT_EMU_ERROR(cudaErrorNotReady, "device not ready"),
    FT_EMU_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    FT_EMU_ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    FT_EMU_ERROR(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"),
    FT_EMU_ERROR(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
    FT_EMU_ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    FT_EMU_ERROR(cudaErrorNotPermitted, "operation not permitted"),
    FT_EMU_ERROR(cudaErrorNotSupported, "operation not supported"),
    FT_EMU_ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    FT_EMU_ERROR(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    FT_EMU_ERROR(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences"),
    FT_EMU_ERROR(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    FT_EMU_ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    FT_EMU_ERROR(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    FT_EMU_ERROR(cudaErrorStreamCaptureImplicit,
                 "operation would make the legacy stream depend on a capturing blocking stream"),
    FT_EMU_ERROR(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream"),
    FT_EMU_ERROR(cudaErrorStreamCaptureWrongThread,
                 "attempt to terminate a thread-local capture sequence from another thread"),
};

const ErrorText* find(cudaError_t error) {
  for (const ErrorText& e : kErrors)
    if (e.error == error) return &e;
  return nullptr;
}

}  // namespace

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

cudaError_t refuse(cudaError_t error, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::fprintf(stderr, "emulator: %s: ", cudaGetErrorName(error));
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
  return result(error);
}

}  // namespace freetoken::emu

using namespace freetoken::emu;

cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* e = find(error);
  return e ? e->text : "unrecognized error code";
}
const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* e = find(error);
  return e ? e->name : "unrecognized error code";
}
