// Host code that reads or writes device memory faults, as it does on a machine with a GPU. It takes memory protection
// keys, a right of each thread, so that the device's threads go on meanwhile; on a CPU without them nothing is checked, and
// the test of this check is not collected (tests/support/isa.py).
#pragma once
#include <cstddef>

namespace freetoken::emu {

// While one lives, this thread may touch device memory.
class DeviceMemoryAccess {
 public:
  DeviceMemoryAccess();
  DeviceMemoryAccess(const DeviceMemoryAccess&) = delete;
  DeviceMemoryAccess& operator=(const DeviceMemoryAccess&) = delete;
  ~DeviceMemoryAccess();

 private:
  unsigned before_ = 0;
};

bool host_access_is_checked();
// Makes pages of a reservation usable: by the device only.
void open_device_pages(void* begin, size_t bytes);

}  // namespace freetoken::emu
