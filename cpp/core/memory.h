// Owned memory from mmap: page-aligned, zeroed on first touch, transparent huge pages asked for when it is large.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/status.h"

namespace freetoken {

constexpr size_t align_up(size_t n, size_t alignment) { return (n + alignment - 1) / alignment * alignment; }
constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

class Memory {
 public:
  Memory() = default;
  // bytes == 0 gives an empty Memory. Alignment is 4096, or 2 MiB from 4 MiB up. Fails with kResourceExhausted.
  static Result<Memory> allocate(size_t bytes);
  Memory(Memory&& other) noexcept { *this = static_cast<Memory&&>(other); }
  Memory& operator=(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  uint8_t* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  template <class T> T* as() const { return reinterpret_cast<T*>(data_); }

 private:
  uint8_t* data_ = nullptr;
  size_t size_bytes_ = 0;
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
};

}  // namespace freetoken
