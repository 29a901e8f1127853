#include "platform/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace freetoken {
namespace {

// Linux transfers at most 0x7ffff000 bytes per call.
constexpr size_t kMaxTransferBytes = size_t(1) << 30;

std::string reason(int error) { return std::strerror(error); }

}  // namespace

Result<File> File::open(const std::string& path) {
  File file;
  file.path_ = path;
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) {
    const int error = errno;
    return error == ENOENT ? NotFound(path + ": no such file") : IoError(path + ": cannot open: " + reason(error));
  }
  struct stat info = {};
  if (fstat(file.fd_, &info) != 0) return IoError(path + ": cannot stat: " + reason(errno));
  if (!S_ISREG(info.st_mode)) return InvalidArgument(path + ": not a regular file");
  file.size_bytes_ = int64_t(info.st_size);
  return file;
}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) close(fd_);
}

Status File::pread_full(void* buffer, size_t bytes, int64_t offset) const {
  auto* at = static_cast<uint8_t*>(buffer);
  const int64_t end = offset + int64_t(bytes);
  while (offset < end) {
    const ssize_t got = pread(fd_, at, std::min(size_t(end - offset), kMaxTransferBytes), off_t(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return IoError(path_ + ": read of " + std::to_string(end - offset) + " bytes at " + std::to_string(offset) + ": " +
                     reason(errno));
    if (got == 0)
      return IoError(path_ + ": ends at byte " + std::to_string(offset) + ", needed up to " + std::to_string(end) +
                     "; the file is truncated");
    at += got;
    offset += got;
  }
  return {};
}

void File::will_need(int64_t offset, int64_t bytes) const { posix_fadvise(fd_, offset, bytes, POSIX_FADV_WILLNEED); }
void File::dont_need(int64_t offset, int64_t bytes) const { posix_fadvise(fd_, offset, bytes, POSIX_FADV_DONTNEED); }

std::string read_small_file(const std::string& path, size_t limit_bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return {};
  std::string text(limit_bytes, '\0');
  size_t size = 0;
  while (size < limit_bytes) {
    const ssize_t got = read(fd, text.data() + size, limit_bytes - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += size_t(got);
  }
  close(fd);
  text.resize(size);
  return text;
}

}  // namespace freetoken
