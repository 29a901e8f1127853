#include "platform/memory_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "platform/cgroup.h"

namespace freetoken {
namespace {

// v1 shows "no limit" as LONG_MAX rounded down to a page; nothing has an exbibyte.
constexpr int64_t kNoLimitBytes = int64_t(1) << 60;

class Smallest {
 public:
  void consider(std::optional<int64_t> limit_bytes, int64_t used_bytes, const char* name) {
    if (!limit_bytes || *limit_bytes < 0 || *limit_bytes >= kNoLimitBytes) return;
    const int64_t left = std::max<int64_t>(0, *limit_bytes - std::max<int64_t>(0, used_bytes));
    if (left < result_.bytes || result_.limit.empty()) result_ = {left, name};
  }
  const AvailableMemory& result() const { return result_; }

 private:
  AvailableMemory result_{std::numeric_limits<int64_t>::max(), ""};
};

std::optional<int64_t> kib(std::optional<int64_t> value) {
  if (!value || *value < 0) return {};
  return *value > kNoLimitBytes / 1024 ? kNoLimitBytes : *value * 1024;
}

// Clean file pages are given back under pressure before anything fails.
int64_t used_without_cache(const std::string& directory, const char* usage, const char* cache) {
  const int64_t used = read_number(directory + "/" + usage).value_or(0);
  return used - std::clamp<int64_t>(read_keyed_number(directory + "/memory.stat", cache).value_or(0), 0, std::max<int64_t>(0, used));
}

int64_t mapped_bytes() {
  const int64_t pages = read_number("/proc/self/statm").value_or(0);
  return pages * int64_t(sysconf(_SC_PAGESIZE));
}

}  // namespace

AvailableMemory available_memory(const std::string& root) {
  Smallest smallest;
  smallest.consider(kib(read_keyed_number(root + "/proc/meminfo", "MemAvailable:")), 0, "MemAvailable");
  for (const std::string& directory : cgroup_directories(root, ""))
    smallest.consider(read_number(directory + "/memory.max"), used_without_cache(directory, "memory.current", "inactive_file"),
                      "cgroup memory.max");
  for (const std::string& directory : cgroup_directories(root, "memory"))
    smallest.consider(read_number(directory + "/memory.limit_in_bytes"),
                      used_without_cache(directory, "memory.usage_in_bytes", "total_inactive_file"), "cgroup memory.limit_in_bytes");
  rlimit limit = {};
  if (root.empty() && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    smallest.consider(int64_t(std::min<rlim_t>(limit.rlim_cur, rlim_t(kNoLimitBytes))), mapped_bytes(), "RLIMIT_AS");
  return smallest.result();
}

}  // namespace freetoken
