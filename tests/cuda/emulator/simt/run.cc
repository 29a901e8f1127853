#include "simt/run.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include "emulator/options.h"
#include "memory/guard.h"
#include "simt/worker.h"

namespace freetoken::emu {

void run_blocks(const Kernel& kernel, uint64_t order) {
  const uint64_t blocks = uint64_t(kernel.grid.x) * kernel.grid.y * kernel.grid.z;
  const uint64_t seed = options().seed ? options().seed * 1000003 + order : 0;
  // A stride without a common factor visits every block once, in an order no kernel should depend on.
  uint64_t stride = seed ? seed % blocks : 1;
  while (std::gcd(stride, blocks) != 1) stride++;
  const uint64_t launch_serial = next_block_serial();
  std::atomic<uint64_t> next{0};
  const auto work = [&] {
    const DeviceMemoryAccess access;
    static thread_local Worker worker;
    worker.prepare(kernel, launch_serial, seed);
    for (uint64_t i; (i = next++) < blocks;) worker.run_block(seed ? (i * stride + seed % blocks) % blocks : i, seed);
  };
#ifdef FT_EMU_RACE
  const uint64_t workers = 1;  // the detector sees all orders in one
#else
  const uint64_t workers = std::min<uint64_t>(uint64_t(options().workers), blocks);
#endif
  if (workers <= 1) {
    work();
    return;
  }
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < workers; i++) threads.emplace_back(work);
  for (std::thread& t : threads) t.join();
}

}  // namespace freetoken::emu
