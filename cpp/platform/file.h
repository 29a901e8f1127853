// Files for reading.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/status.h"

namespace freetoken {

class File {
 public:
  File() = default;
  // Regular files only; the message names the path and the reason.
  static Result<File> open(const std::string& path);
  File(File&& other) noexcept { *this = static_cast<File&&>(other); }
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  const std::string& path() const { return path_; }
  int64_t size_bytes() const { return size_bytes_; }  // when it was opened

  // Reads exactly `bytes` at `offset`; thread-safe. A short file or a read error is kIoError with path, offset and reason.
  Status pread_full(void* buffer, size_t bytes, int64_t offset) const;
  // The range will be read soon / will not be read again: hints to the page cache.
  void will_need(int64_t offset, int64_t bytes) const;
  void dont_need(int64_t offset, int64_t bytes) const;

 private:
  int fd_ = -1;
  int64_t size_bytes_ = 0;
  std::string path_;
};

// The whole of a small text file (/proc, /sys), at most limit_bytes of it; empty when it cannot be read.
std::string read_small_file(const std::string& path, size_t limit_bytes = 65536);

}  // namespace freetoken
