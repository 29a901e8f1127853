#include "api/device.h"

#include <dlfcn.h>

#include "cpu/cpu_ops.h"

namespace freetoken {
namespace {

Result<std::unique_ptr<Ops>> open_library(const std::string& path, const DeviceOptions& options) {
  // Never closed: its code must outlive every object it made, and one process opens one device.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return Unsupported("the device library cannot be opened: " + std::string(dlerror()));
  const auto open = reinterpret_cast<OpenDevice>(dlsym(library, kDeviceEntry));
  if (!open) return Unsupported(path + " is not a device library: it exports no " + kDeviceEntry);
  std::string error;
  std::unique_ptr<Ops> ops(open(kDeviceAbi, options, &error));
  if (!ops) return Unsupported(path + ": " + error);
  return ops;
}

}  // namespace

Result<std::unique_ptr<Ops>> open_device(const std::string& library, DeviceOptions options) {
  if (!library.empty()) return open_library(library, options);
  FT_ASSIGN_OR_RETURN(const IsaLevel isa, select_isa_level());
  return std::unique_ptr<Ops>(std::make_unique<CpuOps>(CpuOptions{.threads = options.threads,
                                                                  .isa = isa,
                                                                  .float32_activations = options.float32_activations,
                                                                  .usable_tokens = std::move(options.usable_tokens)}));
}

}  // namespace freetoken
