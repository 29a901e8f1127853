#include "core/memory.h"

#include <sys/mman.h>

#include <string>
#include <utility>

namespace freetoken {

Result<Memory> Memory::allocate(size_t bytes) {
  Memory memory;
  if (bytes == 0) return memory;
  constexpr size_t kHuge = size_t(2) << 20;
  const bool large = bytes >= 2 * kHuge;
  const size_t mapping_bytes = large ? align_up(bytes, kHuge) + kHuge : align_up(bytes, 4096);
  void* mapping = mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED)
    return ResourceExhausted("cannot map " + std::to_string(bytes) + " bytes of memory");
  memory.mapping_ = mapping;
  memory.mapping_bytes_ = mapping_bytes;
  memory.data_ = static_cast<uint8_t*>(mapping);
  memory.size_bytes_ = bytes;
  if (large) {
    memory.data_ = reinterpret_cast<uint8_t*>(align_up(reinterpret_cast<uintptr_t>(mapping), kHuge));
    madvise(memory.data_, align_up(bytes, kHuge), MADV_HUGEPAGE);
  }
  return memory;
}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  return *this;
}

Memory::~Memory() {
  if (mapping_) munmap(mapping_, mapping_bytes_);
}

}  // namespace freetoken
