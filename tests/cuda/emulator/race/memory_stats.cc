#include "race/memory_stats.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "emulator/launch.h"

namespace freetoken::emu {
namespace {

// The n-th time each lane of a warp passes an instruction is one request of the warp.
struct Request {
  uint32_t lanes = 0;
  uintptr_t address[32];
};
struct Site {
  uint32_t passed[32] = {};
  std::map<uint32_t, Request> open;
  unsigned bytes = 0;
  bool shared = false, write = false;
};
struct Key {
  uint64_t block;
  void* pc;
  uint32_t warp;
  bool operator==(const Key&) const = default;
};
struct Hash {
  size_t operator()(const Key& k) const {
    return (reinterpret_cast<uintptr_t>(k.pc) * 31 + k.warp) * 0x9e3779b97f4a7c15u + k.block;
  }
};

bool counting = false;
std::unordered_map<Key, Site, Hash> sites;
std::map<std::pair<const void*, void*>, AccessStats> totals;  // by kernel and instruction

uint64_t sectors(const Request& r, unsigned bytes) {
  std::set<uintptr_t> touched;
  for (int lane = 0; lane < 32; lane++)
    if (r.lanes >> lane & 1)
      for (uintptr_t s = r.address[lane] / 32; s <= (r.address[lane] + bytes - 1) / 32; s++) touched.insert(s);
  return touched.size();
}
// The fewest sectors that hold what was asked for: lanes that read the same bytes ask once.
uint64_t fewest_sectors(const Request& r, unsigned bytes) {
  std::set<uintptr_t> asked;
  for (int lane = 0; lane < 32; lane++)
    if (r.lanes >> lane & 1) asked.insert(r.address[lane]);
  return (asked.size() * bytes + 31) / 32;
}

// 8-byte accesses are served half a warp at a time, 16-byte ones a quarter; a word is read once for all lanes.
void wavefronts(const Request& r, unsigned bytes, uint64_t* taken, uint64_t* fewest) {
  const int together = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
  for (int first = 0; first < 32; first += together) {
    std::set<uintptr_t> words;
    uint64_t bank[32] = {}, most = 0;
    for (int lane = first; lane < first + together; lane++)
      if (r.lanes >> lane & 1)
        for (uintptr_t w = r.address[lane] / 4; w <= (r.address[lane] + bytes - 1) / 4; w++)
          if (words.insert(w).second) most = std::max(most, ++bank[w % 32]);
    *taken += most;
    *fewest += most > 0;
  }
}

void close(const Kernel& kernel, void* pc, const Site& site, const Request& request) {
  AccessStats& s = totals[{kernel.entry, pc}];
  s.kernel = kernel.name;
  s.pc = pc;
  s.bytes = site.bytes, s.shared = site.shared, s.write = site.write;
  uint64_t taken = 0, fewest = 0;
  if (site.shared)
    wavefronts(request, site.bytes, &taken, &fewest);
  else
    taken = sectors(request, site.bytes), fewest = fewest_sectors(request, site.bytes);
  s.requests++;
  s.transactions += taken;
  s.ideal += fewest;
  if (fewest) s.worst = std::max(s.worst, double(taken) / double(fewest));
}

}  // namespace

void count_access(const void* pointer, size_t bytes, bool write, bool shared, void* pc) {
  if (!counting) return;
  const Block& block = *current_block;
  const Thread& me = *current_thread;
  Site& site = sites[{block.serial, pc, me.warp}];
  site.bytes = unsigned(bytes), site.shared = shared, site.write = write;
  const uint32_t time = site.passed[me.lane]++;
  Request& request = site.open[time];
  request.lanes |= 1u << me.lane;
  request.address[me.lane] = reinterpret_cast<uintptr_t>(pointer);
  if (request.lanes != block.warp[me.warp].valid) return;
  close(*block.kernel, pc, site, request);
  site.open.erase(time);
}

void close_block_stats() {
  if (!counting) return;
  for (const auto& [key, site] : sites)
    for (const auto& [time, request] : site.open) close(*current_block->kernel, key.pc, site, request);
  sites.clear();
}

void begin_memory_stats() {
  totals.clear();
  sites.clear();
  counting = true;
}

std::vector<AccessStats> end_memory_stats() {
  counting = false;
  std::vector<AccessStats> all;
  for (const auto& [key, s] : totals) all.push_back(s);
  return all;
}

double worst_bank_conflict(const std::vector<AccessStats>& stats, const std::string& kernel) {
  double worst = 0.0;
  for (const AccessStats& s : stats)
    if (s.shared && s.kernel.find(kernel) != std::string::npos) worst = std::max(worst, s.worst);
  return worst;
}

double wide_coalesced_share(const std::vector<AccessStats>& stats, const std::string& kernel) {
  double wide = 0.0, all = 0.0;
  for (const AccessStats& s : stats) {
    if (s.shared || s.write || s.kernel.find(kernel) == std::string::npos) continue;
    all += double(s.ideal);
    if (s.bytes == 16 && s.transactions == s.ideal) wide += double(s.ideal);
  }
  return all > 0.0 ? wide / all : 0.0;
}

}  // namespace freetoken::emu
