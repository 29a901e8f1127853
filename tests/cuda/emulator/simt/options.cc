#include "emulator/options.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "emulator/block.h"

namespace freetoken::emu {
namespace {

std::atomic<uint64_t> switch_count{0};

uint64_t number(const char* name, uint64_t otherwise, uint64_t least, uint64_t most) {
  const char* text = std::getenv(name);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const uint64_t value = std::strtoull(text, &end, 10);
  if (*end || *text < '0' || *text > '9' || value < least || value > most)
    die("%s=%s: a number from %llu to %llu is wanted", name, text, (unsigned long long)least, (unsigned long long)most);
  return value;
}

Options from_environment() {
  Options o;
  o.seed = number("FREETOKEN_EMU_SEED", o.seed, 0, UINT64_MAX);
  o.workers = int(number("FREETOKEN_EMU_WORKERS", uint64_t(o.workers), 1, 64));
  o.devices = int(number("FREETOKEN_EMU_DEVICES", uint64_t(o.devices), 0, 8));
  o.memory_bytes = number("FREETOKEN_EMU_MEMORY_MB", o.memory_bytes >> 20, 1, 65536) << 20;
  o.shared_bytes = number("FREETOKEN_EMU_SHARED_KB", o.shared_bytes >> 10, 48, 227) << 10;
  o.stream_memory_operations = number("FREETOKEN_EMU_MEMORY_OPS", 1, 0, 1) != 0;
  o.stuck_ms = int(number("FREETOKEN_EMU_STUCK_MS", uint64_t(o.stuck_ms), 1, 3600000));
  if (const char* races = std::getenv("FREETOKEN_EMU_RACES"); races && *races) {
    if (std::strcmp(races, "report") != 0) die("FREETOKEN_EMU_RACES=%s: only \"report\" is known", races);
    o.report_races = true;
  }
  return o;
}

}  // namespace

Options& options() {
  static Options* const all = new Options(from_environment());  // outlives the device threads
  return *all;
}

uint64_t switches() { return switch_count; }
void count_switches(uint64_t n) { switch_count += n; }

}  // namespace freetoken::emu
