#include "platform/topology.h"

#include <gtest/gtest.h>

#include "platform/fake_root.h"

namespace freetoken {
namespace {

void siblings(const test::FakeRoot& root, int cpu, const std::string& list) {
  root.write("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list", list);
}

TEST(Topology, OneThreadPerCore) {
  test::FakeRoot root;  // four cores of two threads, numbered apart as on most machines
  for (int cpu = 0; cpu < 8; cpu++) siblings(root, cpu, std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4) + "\n");
  const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7};
  const Topology topology = read_topology(root.path(), &all);
  EXPECT_EQ(topology.cpus, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(topology.allowed_cpus, 8);
  EXPECT_EQ(topology.quota_cpus, 0);
  EXPECT_EQ(topology.usable_cores, 4);
}

TEST(Topology, AffinityMayExcludeASibling) {
  test::FakeRoot root;
  for (int cpu = 0; cpu < 4; cpu++) siblings(root, cpu, cpu < 2 ? "0-1" : "2-3");
  const std::vector<int> mask = {1, 2, 3};
  EXPECT_EQ(read_topology(root.path(), &mask).cpus, (std::vector<int>{1, 2}));
}

TEST(Topology, WithoutSysEveryCpuIsACore) {
  test::FakeRoot root;
  const std::vector<int> mask = {3, 9};
  EXPECT_EQ(read_topology(root.path(), &mask).usable_cores, 2);
  siblings(root, 3, "nonsense");
  siblings(root, 9, "-3--1,99999999999999");
  EXPECT_EQ(read_topology(root.path(), &mask).usable_cores, 2);
  const std::vector<int> none;
  EXPECT_EQ(read_topology(root.path(), &none).usable_cores, 1);
}

TEST(Topology, QuotaV2IsRoundedUp) {
  test::FakeRoot root;
  const std::vector<int> mask = {0, 1, 2, 3};
  root.write("/proc/self/cgroup", "0::/a/b\n");
  root.write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(read_topology(root.path(), &mask).quota_cpus, 0);
  root.write("/sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  EXPECT_EQ(read_topology(root.path(), &mask).quota_cpus, 2);
  EXPECT_EQ(read_topology(root.path(), &mask).usable_cores, 2);
  root.write("/sys/fs/cgroup/a/b/cpu.max", "1000 100000\n");
  EXPECT_EQ(read_topology(root.path(), &mask).usable_cores, 1);
  root.write("/sys/fs/cgroup/a/b/cpu.max", "900000 100000\n");
  root.write("/sys/fs/cgroup/a/cpu.max", "0 0\n");
  EXPECT_EQ(read_topology(root.path(), &mask).usable_cores, 4) << "a quota above the cores changes nothing";
}

TEST(Topology, QuotaV1) {
  test::FakeRoot root;
  const std::vector<int> mask = {0, 1, 2, 3};
  root.write("/proc/self/cgroup", "3:cpu,cpuacct:/job\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "200000\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(read_topology(root.path(), &mask).usable_cores, 2);
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(read_topology(root.path(), &mask).usable_cores, 4);
}

TEST(Topology, ThisMachine) {
  const Topology topology = read_topology();
  EXPECT_GE(topology.allowed_cpus, 1);
  EXPECT_GE(topology.usable_cores, 1);
  EXPECT_LE(topology.usable_cores, topology.allowed_cpus);
}

}  // namespace
}  // namespace freetoken
