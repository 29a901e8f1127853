// Which processors this process may use.
#pragma once
#include <string>
#include <vector>

namespace freetoken {

struct Topology {
  std::vector<int> cpus;      // one logical CPU per physical core in the affinity mask, ascending
  int allowed_cpus = 0;       // logical CPUs in the mask
  int quota_cpus = 0;         // the cgroup's CPU quota rounded up; 0 = none
  int usable_cores = 1;       // min(cpus.size(), quota_cpus if set), at least 1: the default number of threads
};

// sched_getaffinity, /sys/devices/system/cpu/cpu*/topology and the cgroup's quota (v2 cpu.max, v1 cpu.cfs_quota_us; each
// ancestor). `root` is put before /proc and /sys and `allowed` replaces the affinity mask, for tests.
Topology read_topology(const std::string& root = "", const std::vector<int>* allowed = nullptr);

}  // namespace freetoken
