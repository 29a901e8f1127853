// MemoryFiller: all pages come to be there, no byte changes, and it ends early when told to.
#include "cpu/memory_filler.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "core/memory.h"

namespace freetoken {
namespace {

// Whole pages of the system that are there.
size_t resident_pages(std::span<uint8_t> range) {
  std::vector<unsigned char> in_core((range.size() + 4095) / 4096);
  EXPECT_EQ(mincore(range.data(), range.size(), in_core.data()), 0);
  return size_t(std::count_if(in_core.begin(), in_core.end(), [](unsigned char c) { return c & 1; }));
}

std::span<uint8_t> span_of(const Memory& memory) { return {memory.data(), memory.size_bytes()}; }

TEST(MemoryFiller, FillsAllAndKeepsBytes) {
  Result<Memory> large = Memory::allocate((size_t(9) << 20) + 5000), small = Memory::allocate(3 * 4096 + 1);
  ASSERT_TRUE(large.ok() && small.ok());
  (*large).data()[size_t(5) << 20] = 77;
  ASSERT_EQ(resident_pages(span_of(*small)), 0u);
  MemoryFiller filler({span_of(*large), span_of(*small)});
  for (int i = 0; i < 6000 && !filler.done(); i++) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_TRUE(filler.done());
  EXPECT_EQ(resident_pages(span_of(*large)), 9 * 256u + 2);
  EXPECT_EQ(resident_pages(span_of(*small)), 4u);
  for (size_t i = 0; i < (*large).size_bytes(); i++) ASSERT_EQ((*large).data()[i], i == size_t(5) << 20 ? 77 : 0);
}

TEST(MemoryFiller, EndsEarly) {
  Result<Memory> memory = Memory::allocate(size_t(1) << 40);  // more than any machine that runs this has
  ASSERT_TRUE(memory.ok());
  MemoryFiller filler({span_of(*memory)});
  EXPECT_FALSE(filler.done());
}

}  // namespace
}  // namespace freetoken
