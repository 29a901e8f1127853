// Stream memory operations, reached through cudaGetDriverEntryPoint as in a build without the driver's library.
#include <cstring>
#include <string_view>

#include "emulator/options.h"
#include "memory/guard.h"
#include "emulator/block.h"
#include "runtime/api.h"

using namespace freetoken::emu;

namespace {

// CUresult, CUdeviceptr and cuuint32_t are an int, an unsigned long long and an unsigned.
constexpr int kSuccess = 0, kInvalidValue = 1, kUnknown = 999;
constexpr unsigned kCompare = 3, kFlush = 1u << 30;

bool usable(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 4 == 0 && (is_device_range(p, 4) || is_pinned(p, 4));
}

int issue(cudaStream_t handle, Operation op) {
  Scheduler& scheduler = Scheduler::get();
  const std::lock_guard lock(scheduler.mutex());
  const auto stream = stream_of(handle);
  if (check_issue(*stream) || scheduler.issue(stream, std::move(op))) return kUnknown;
  return kSuccess;
}

int wait_value(cudaStream_t stream, unsigned long long address, unsigned value, unsigned flags) {
  const auto* p = reinterpret_cast<const volatile uint32_t*>(address);
  if (!usable(const_cast<const uint32_t*>(p)) || (flags & ~(kCompare | kFlush))) return kInvalidValue;
  Operation op = operation("cuStreamWaitValue32", nullptr);
  op.kind = Operation::Kind::kWaitValue;
  op.address = p;
  op.value = value;
  op.compare = flags & kCompare;
  return issue(stream, std::move(op));
}

int write_value(cudaStream_t stream, unsigned long long address, unsigned value, unsigned flags) {
  auto* p = reinterpret_cast<uint32_t*>(address);
  if (!usable(p) || flags > 1) return kInvalidValue;
  return issue(stream, operation("cuStreamWriteValue32", [p, value] {
                 if (!usable(p)) die("cuStreamWriteValue32: %p was freed before it ran", static_cast<void*>(p));
                 __atomic_store_n(p, value, __ATOMIC_RELEASE);
               }));
}

}  // namespace

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* found) {
  const std::string_view name = symbol;
  *function = nullptr;
  if (options().stream_memory_operations) {
    if (name == "cuStreamWaitValue32") *function = reinterpret_cast<void*>(wait_value);
    if (name == "cuStreamWriteValue32") *function = reinterpret_cast<void*>(write_value);
  }
  if (found) *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return result(*function || found ? cudaSuccess : cudaErrorSymbolNotFound);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* found) {
  return cudaGetDriverEntryPoint(symbol, function, flags, found);
}
