// How much memory this process may still take.
#pragma once
#include <cstdint>
#include <string>

namespace freetoken {

struct AvailableMemory {
  int64_t bytes = 0;    // the smallest of the limits below
  std::string limit;    // which one: "MemAvailable", "cgroup memory.max", ...; empty when none could be read
};

// min(MemAvailable, the cgroup's limit minus what it uses (v1 or v2, each ancestor; reclaimable file cache counts as
// free), RLIMIT_AS minus this process's mappings). `root` is put before /proc and /sys, for tests; RLIMIT_AS is left out
// when it is not empty. Never negative; a file that cannot be read or parsed sets no limit.
AvailableMemory available_memory(const std::string& root = "");

}  // namespace freetoken
