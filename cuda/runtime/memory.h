// Device memory and pinned host memory with owners, and the account of the first.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "core/status.h"

namespace freetoken::cuda {

// What one device may take: a limit that the user set, or all that is there. Outlives the buffers it counts.
class MemoryAccount {
 public:
  explicit MemoryAccount(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  int64_t used_bytes() const { return used_bytes_; }

 private:
  friend class DeviceBuffer;
  int64_t limit_bytes_;  // 0 = none
  int64_t used_bytes_ = 0;
};

// Zeroed by nobody, aligned to 256 bytes. 0 bytes give an empty buffer. Freeing waits for the device.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // Fails with kResourceExhausted, naming what it was for and the numbers.
  static Result<DeviceBuffer> allocate(MemoryAccount& account, const std::string& what, size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer() { free(); }

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <class T> T* as() const { return reinterpret_cast<T*>(data_); }

 private:
  void free();
  MemoryAccount* account_ = nullptr;
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

// Page-locked, readable by the device at the same address. 4096-aligned.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  static Result<PinnedBuffer> allocate(const std::string& what, size_t bytes);
  PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  ~PinnedBuffer() { free(); }

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <class T> T* as() const { return reinterpret_cast<T*>(data_); }

 private:
  void free();
  uint8_t* data_ = nullptr;
  void* allocation_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace freetoken::cuda
