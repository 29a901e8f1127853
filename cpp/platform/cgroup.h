// Where this process's control groups lie in /sys/fs/cgroup.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace freetoken {

// Directories of a v1 controller ("memory", "cpu") or, with an empty name, of the v2 hierarchy: the process's own group
// first, then its ancestors up to the mount point. Empty when there is none. In a container whose own group is mounted as
// the root, the path in /proc/self/cgroup does not exist there; then the mount point stands for it. `root` as in
// memory_limits.h.
std::vector<std::string> cgroup_directories(const std::string& root, const std::string& controller);

// The first number in a file of one; nothing for "max", for a missing file and for what is no number. Numbers above
// INT64_MAX saturate.
std::optional<int64_t> read_number(const std::string& path);

// The value of `key` in a file of "key value" lines.
std::optional<int64_t> read_keyed_number(const std::string& path, const std::string& key);

}  // namespace freetoken
