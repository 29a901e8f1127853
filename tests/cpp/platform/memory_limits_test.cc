#include "platform/memory_limits.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "platform/fake_root.h"

namespace freetoken {
namespace {

constexpr int64_t kMiB = 1 << 20;

void expect(const test::FakeRoot& root, int64_t bytes, const std::string& limit) {
  const AvailableMemory memory = available_memory(root.path());
  EXPECT_EQ(memory.bytes, bytes);
  EXPECT_EQ(memory.limit, limit);
}

TEST(MemoryLimits, MemAvailable) {
  test::FakeRoot root;
  root.write("/proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    800 kB\nSwapFree: 5 kB\n");
  expect(root, 800 * 1024, "MemAvailable");
}

TEST(MemoryLimits, CgroupV2CountsInactiveFilesAsFree) {
  test::FakeRoot root;
  root.write("/proc/meminfo", "MemAvailable: 8000000 kB\n");
  root.write("/proc/self/cgroup", "0::/user/app\n");
  root.write("/sys/fs/cgroup/user/app/memory.max", "104857600\n");
  root.write("/sys/fs/cgroup/user/app/memory.current", "73400320\n");
  root.write("/sys/fs/cgroup/user/app/memory.stat", "anon 5\nfile 41943040\ninactive_file 31457280\nactive_file 10485760\n");
  expect(root, 60 * kMiB, "cgroup memory.max");
}

TEST(MemoryLimits, AnAncestorMayBeTighter) {
  test::FakeRoot root;
  root.write("/proc/meminfo", "MemAvailable: 8000000 kB\n");
  root.write("/proc/self/cgroup", "0::/user/app\n");
  root.write("/sys/fs/cgroup/user/app/memory.max", "max\n");
  root.write("/sys/fs/cgroup/user/memory.max", "52428800\n");
  root.write("/sys/fs/cgroup/user/memory.current", "1048576\n");
  expect(root, 49 * kMiB, "cgroup memory.max");
}

TEST(MemoryLimits, ContainerWhoseGroupIsMountedAsTheRoot) {
  test::FakeRoot root;
  root.write("/proc/self/cgroup", "0::/../../docker/abc\n");
  root.write("/sys/fs/cgroup/memory.max", "10485760\n");
  expect(root, 10 * kMiB, "cgroup memory.max");
}

TEST(MemoryLimits, CgroupV1) {
  test::FakeRoot root;
  root.write("/proc/meminfo", "MemAvailable: 8000000 kB\n");
  root.write("/proc/self/cgroup", "5:cpuset:/x\n4:memory,hugetlb:/job\n0::/\n");
  root.write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "104857600\n");
  root.write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "20971520\n");
  root.write("/sys/fs/cgroup/memory/job/memory.stat", "inactive_file 7\ntotal_inactive_file 10485760\n");
  root.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  expect(root, 90 * kMiB, "cgroup memory.limit_in_bytes");
}

TEST(MemoryLimits, UseAboveTheLimitLeavesNothing) {
  test::FakeRoot root;
  root.write("/proc/self/cgroup", "0::/a\n");
  root.write("/sys/fs/cgroup/a/memory.max", "100\n");
  root.write("/sys/fs/cgroup/a/memory.current", "300\n");
  root.write("/sys/fs/cgroup/a/memory.stat", "inactive_file 999999\n");
  expect(root, 100, "cgroup memory.max");
  root.write("/sys/fs/cgroup/a/memory.stat", "inactive_file 0\n");
  expect(root, 0, "cgroup memory.max");
}

TEST(MemoryLimits, RubbishSetsNoLimit) {
  test::FakeRoot root;
  for (const std::string rubbish : {"", "abc", "-5", "99999999999999999999999", "\n\n", ":::", "max max"}) {
    root.write("/proc/meminfo", "MemAvailable:" + rubbish);
    root.write("/proc/self/cgroup", "0::/a\n" + rubbish);
    root.write("/sys/fs/cgroup/a/memory.max", rubbish);
    root.write("/sys/fs/cgroup/a/memory.current", rubbish);
    root.write("/sys/fs/cgroup/a/memory.stat", rubbish);
    expect(root, INT64_MAX, "");
  }
  expect(test::FakeRoot(), INT64_MAX, "");
}

TEST(MemoryLimits, ThisMachine) {
  const AvailableMemory memory = available_memory();
  EXPECT_GT(memory.bytes, kMiB);
  EXPECT_LT(memory.bytes, int64_t(1) << 50);
  EXPECT_FALSE(memory.limit.empty());
}

}  // namespace
}  // namespace freetoken
