#include "weights/ftw_writer.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "weights/crc32.h"

namespace freetoken {
namespace {

Status system_error(const std::string& what, const std::string& path, int error) {
  const std::string text = path + ": " + what + ": " + std::strerror(error);
  return error == ENOSPC || error == EDQUOT ? ResourceExhausted(text) : IoError(text);
}

Status write_file(const std::string& path, const std::string& bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return system_error("cannot be made", path, errno);
  Status status;
  for (size_t at = 0; status.ok() && at < bytes.size();) {
    const ssize_t n = ::write(fd, bytes.data() + at, bytes.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) status = system_error("cannot be written", path, errno);
    else at += size_t(n);
  }
  if (status.ok() && ::fsync(fd) != 0) status = system_error("cannot be written", path, errno);
  ::close(fd);
  return status;
}

Status sync_directory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return system_error("cannot be opened", path, errno);
  const int result = ::fsync(fd), error = errno;
  ::close(fd);
  return result == 0 ? Status() : system_error("cannot be synced", path, error);
}

bool is_empty_directory(const std::string& path) {
  DIR* dir = ::opendir(path.c_str());
  if (!dir) return false;
  bool empty = true;
  while (const dirent* entry = ::readdir(dir))
    if (std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0) empty = false;
  ::closedir(dir);
  return empty;
}

}  // namespace

FtwWriter::~FtwWriter() {
  for (Shard& shard : shards_) {
    if (shard.data) ::munmap(shard.data, size_t(shard.file.bytes));
    if (shard.fd >= 0) ::close(shard.fd);
  }
  if (finished_) return;
  for (const std::string& name : made_) ::unlink(path(name).c_str());
  if (made_directory_) ::rmdir(directory_.c_str());
}

Status FtwWriter::begin(const LoadPlan& plan) {
  if (::mkdir(directory_.c_str(), 0755) == 0) {
    made_directory_ = true;
  } else if (errno != EEXIST) {
    return system_error("cannot be made", directory_, errno);
  } else if (!is_empty_directory(directory_)) {
    return InvalidArgument(directory_ + ": exists and is not an empty directory; name another, or remove it");
  }
  for (const LoadItem& item : plan.items) {
    FtwItem place{.name = item.is_extent ? item.extent.name : item.tensors[0].info.name};
    place.bytes = int64_t(item.is_extent ? item.extent.bytes : item.tensors[0].info.bytes());
    const int64_t end = shards_.empty() ? 0 : int64_t(align_up(size_t(shards_.back().file.bytes), kFtwAlignment));
    if (shards_.empty() || (end > 0 && end + place.bytes > shard_bytes_)) shards_.emplace_back();
    else place.offset = end;
    shards_.back().file.bytes = place.offset + place.bytes;
    place.shard = int(shards_.size()) - 1;
    index_[place.name] = items_.size();
    items_.push_back(std::move(place));
  }
  if (shards_.size() > size_t(kMaxFiles))
    return InvalidArgument("the checkpoint would have " + std::to_string(shards_.size()) + " shards, at most " +
                           std::to_string(kMaxFiles) + " are read: make them larger (--shard-gib)");
  for (size_t i = 0; i < shards_.size(); i++) {
    char name[48];
    std::snprintf(name, sizeof name, "shard-%05zu-of-%05zu.ftw", i + 1, shards_.size());
    shards_[i].file.name = name;
    FT_RETURN_IF_ERROR(make_shard(shards_[i]));
  }
  return {};
}

Status FtwWriter::make_shard(Shard& shard) {
  const std::string file = path(shard.file.name);
  shard.fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (shard.fd < 0) return system_error("cannot be made", file, errno);
  made_.push_back(shard.file.name);
  // Writing through the mapping cannot fail for want of space once the blocks are there.
  if (const int error = ::posix_fallocate(shard.fd, 0, shard.file.bytes))
    return system_error("no room for " + std::to_string(shard.file.bytes) + " bytes", file, error);
  void* data = ::mmap(nullptr, size_t(shard.file.bytes), PROT_READ | PROT_WRITE, MAP_SHARED, shard.fd, 0);
  if (data == MAP_FAILED) return system_error("cannot be mapped", file, errno);
  shard.data = static_cast<uint8_t*>(data);
  return {};
}

Result<uint8_t*> FtwWriter::place(const std::string& name) {
  const auto it = index_.find(name);
  if (it == index_.end()) return Internal("the plan of the checkpoint has no " + name);
  const FtwItem& item = items_[it->second];
  return shards_[size_t(item.shard)].data + item.offset;
}

Status FtwWriter::done(const std::string& name) {
  FtwItem& item = items_[index_.at(name)];
  item.crc = crc32(shards_[size_t(item.shard)].data + item.offset, size_t(item.bytes));
  return {};
}

Status FtwWriter::add_file(const std::string& name, const std::string& bytes, FtwFile* file) {
  made_.push_back(name);
  *file = {name, int64_t(bytes.size()), crc32(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size())};
  return write_file(path(name), bytes);
}

Status FtwWriter::finish(FtwManifest manifest) {
  for (Shard& shard : shards_) {
    if (::msync(shard.data, size_t(shard.file.bytes), MS_SYNC) != 0 || ::fsync(shard.fd) != 0)
      return system_error("cannot be written", path(shard.file.name), errno);
    manifest.shards.push_back(shard.file);
  }
  manifest.items = items_;
  const std::string temporary = std::string(kFtwManifest) + ".tmp";
  made_.push_back(temporary);
  FT_RETURN_IF_ERROR(write_file(path(temporary), ftw_manifest_json(manifest)));
  FT_RETURN_IF_ERROR(sync_directory(directory_));
  if (::rename(path(temporary).c_str(), path(kFtwManifest).c_str()) != 0)
    return system_error("cannot be renamed", path(temporary), errno);
  finished_ = true;
  return sync_directory(directory_);
}

}  // namespace freetoken
