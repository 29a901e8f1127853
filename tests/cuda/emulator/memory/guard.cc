#include "memory/guard.h"

#include <sys/mman.h>

#include "emulator/block.h"

namespace freetoken::emu {
namespace {

int protection_key() {
  static const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
  return key;
}

}  // namespace

bool host_access_is_checked() { return protection_key() >= 0; }

DeviceMemoryAccess::DeviceMemoryAccess() {
  const int key = protection_key();
  if (key < 0) return;
  before_ = unsigned(pkey_get(key));
  pkey_set(key, 0);
}

DeviceMemoryAccess::~DeviceMemoryAccess() {
  if (const int key = protection_key(); key >= 0) pkey_set(key, before_);
}

void open_device_pages(void* begin, size_t bytes) {
  const int key = protection_key();
  const int failed = key < 0 ? mprotect(begin, bytes, PROT_READ | PROT_WRITE)
                             : pkey_mprotect(begin, bytes, PROT_READ | PROT_WRITE, key);
  if (failed) die("the host has no %zu bytes for device memory", bytes);
}

}  // namespace freetoken::emu
