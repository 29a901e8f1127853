// A launch: its limits are checked when it is issued, its pointers when it runs.
#include "emulator/launch.h"

#include <atomic>
#include <map>

#include "emulator/options.h"
#include "runtime/api.h"
#include "simt/launch_bounds.h"
#include "simt/run.h"
#include "simt/shared_memory.h"

namespace freetoken::emu {
namespace {

std::mutex attributes_mutex;
std::map<const void*, size_t>& dynamic_limits() {
  static auto* const all = new std::map<const void*, size_t>;
  return *all;
}
std::atomic<uint64_t> launches{0};

size_t dynamic_limit(const void* entry) {
  const std::lock_guard lock(attributes_mutex);
  const auto at = dynamic_limits().find(entry);
  return at == dynamic_limits().end() ? kDynamicSharedBytes : at->second;
}

cudaError_t check_limits(const Kernel& k) {
  const dim3 g = k.grid, b = k.block;
  const uint64_t threads = uint64_t(b.x) * b.y * b.z;
  if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535)
    return refuse(cudaErrorInvalidConfiguration, "%s: a grid of %u x %u x %u blocks", k.name, g.x, g.y, g.z);
  if (threads == 0 || threads > 1024 || b.z > 64)
    return refuse(cudaErrorInvalidConfiguration, "%s: blocks of %u x %u x %u threads", k.name, b.x, b.y, b.z);
  if (const unsigned bound = launch_bound(k.entry); bound && threads > bound)
    return refuse(cudaErrorInvalidValue, "%s: blocks of %u threads, its __launch_bounds__ allow %u", k.name,
                  unsigned(threads), bound);
  if (k.dynamic_shared_bytes > dynamic_limit(k.entry))
    return refuse(cudaErrorInvalidValue, "%s: %zu bytes of dynamic shared memory, cudaFuncSetAttribute allows %zu",
                  k.name, k.dynamic_shared_bytes, dynamic_limit(k.entry));
  return cudaSuccess;
}

}  // namespace

void launch(std::shared_ptr<Kernel> kernel, cudaStream_t handle) {
  if (check_limits(*kernel)) return;
  Scheduler& scheduler = Scheduler::get();
  const std::lock_guard lock(scheduler.mutex());
  const auto stream = stream_of(handle);
  if (check_issue(*stream)) return;
  kernel->device = stream->device;
  const char* name = kernel->name;
  result(scheduler.issue(stream, operation(name, [kernel = std::move(kernel)] {
                           check_arguments(*kernel);
                           run_blocks(*kernel, launches++);
                         })));
}

}  // namespace freetoken::emu

using namespace freetoken::emu;

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || size_t(value) > options().shared_bytes)
    return refuse(cudaErrorInvalidValue, "%d bytes of dynamic shared memory, the device has %zu a block", value,
                  options().shared_bytes);
  const std::lock_guard lock(attributes_mutex);
  dynamic_limits()[kernel] = size_t(value);
  return cudaSuccess;
}
