#include "platform/topology.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <set>

#include "platform/cgroup.h"
#include "platform/file.h"

namespace freetoken {
namespace {

constexpr int kMaxCpus = 8192;

std::vector<int> affinity() {
  std::vector<int> cpus;
  cpu_set_t* set = CPU_ALLOC(kMaxCpus);
  if (!set) return cpus;
  const size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
  CPU_ZERO_S(bytes, set);
  if (sched_getaffinity(0, bytes, set) == 0)
    for (int cpu = 0; cpu < kMaxCpus; cpu++)
      if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
  CPU_FREE(set);
  return cpus;
}

// "0,4-6": CPUs of a kernel list; what does not parse ends it.
std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  const char *at = text.data(), *end = at + text.size();
  while (at < end) {
    int first = 0, last = 0;
    auto [next, error] = std::from_chars(at, end, first);
    if (error != std::errc()) break;
    last = first;
    if (next < end && *next == '-') {
      auto [after, range_error] = std::from_chars(next + 1, end, last);
      if (range_error != std::errc()) break;
      next = after;
    }
    for (int cpu = std::max(first, 0); cpu <= std::min(last, kMaxCpus - 1); cpu++) cpus.push_back(cpu);
    if (next >= end || *next != ',') break;
    at = next + 1;
  }
  return cpus;
}

void consider_quota(std::optional<int64_t> quota_us, std::optional<int64_t> period_us, int* cpus) {
  if (!quota_us || !period_us || *quota_us <= 0 || *period_us <= 0) return;
  const int64_t limit = std::min<int64_t>(kMaxCpus, *quota_us / *period_us + (*quota_us % *period_us != 0));
  if (*cpus == 0 || limit < *cpus) *cpus = int(limit);
}

int quota_cpus(const std::string& root) {
  int cpus = 0;
  for (const std::string& directory : cgroup_directories(root, "")) {
    const std::string text = read_small_file(directory + "/cpu.max");  // "quota period" or "max period"
    const size_t space = text.find(' ');
    int64_t quota = 0, period = 0;
    if (space == std::string::npos) continue;
    if (std::from_chars(text.data(), text.data() + space, quota).ec != std::errc()) continue;
    if (std::from_chars(text.data() + space + 1, text.data() + text.size(), period).ec != std::errc()) continue;
    consider_quota(quota, period, &cpus);
  }
  for (const std::string& directory : cgroup_directories(root, "cpu"))
    consider_quota(read_number(directory + "/cpu.cfs_quota_us"), read_number(directory + "/cpu.cfs_period_us"), &cpus);
  return cpus;
}

}  // namespace

Topology read_topology(const std::string& root, const std::vector<int>* allowed) {
  Topology topology;
  const std::vector<int> mask = allowed ? *allowed : affinity();
  topology.allowed_cpus = int(mask.size());
  std::set<int> seen;
  for (const int cpu : mask) {
    if (seen.contains(cpu)) continue;
    topology.cpus.push_back(cpu);
    const std::string directory = root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    std::string siblings = read_small_file(directory + "thread_siblings_list");
    if (siblings.empty()) siblings = read_small_file(directory + "core_cpus_list");
    for (const int sibling : parse_cpu_list(siblings)) seen.insert(sibling);
  }
  topology.quota_cpus = quota_cpus(root);
  const int cores = std::max(1, int(topology.cpus.size()));
  topology.usable_cores = topology.quota_cpus > 0 ? std::min(cores, topology.quota_cpus) : cores;
  return topology;
}

}  // namespace freetoken
