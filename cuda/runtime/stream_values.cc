#include "cuda/runtime/stream_values.h"

#include <thread>

namespace freetoken::cuda {
namespace {

constexpr unsigned kWaitEqual = 1;  // CU_STREAM_WAIT_VALUE_EQ
constexpr unsigned kSince = 12000;  // of the second form of these functions, which every such driver has

void wait_on_host(void* user) {
  const FlagWait& wait = *static_cast<const FlagWait*>(user);
  while (__atomic_load_n(wait.flag, __ATOMIC_ACQUIRE) != wait.value) std::this_thread::yield();
}

}  // namespace

StreamValues::StreamValues() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &function, kSince, cudaEnableDefault, &found);
  if (error != cudaSuccess) cudaGetLastError();
  if (found == cudaDriverEntryPointSuccess) wait_ = reinterpret_cast<Wait>(function);
}

cudaError_t StreamValues::wait(cudaStream_t stream, const FlagWait& flag) const {
  if (!wait_) return cudaLaunchHostFunc(stream, wait_on_host, const_cast<FlagWait*>(&flag));
  return cudaError_t(wait_(stream, reinterpret_cast<unsigned long long>(flag.flag), flag.value, kWaitEqual));
}

}  // namespace freetoken::cuda
