#include "machine.h"

#include <sys/sysinfo.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "platform/cpu_features.h"

namespace freetoken::bench {
namespace {

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  std::string line, model = "unknown", family, number;
  while (std::getline(in, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || colon + 2 > line.size()) continue;
    const std::string value = line.substr(colon + 2);
    if (line.rfind("model name", 0) == 0) return value + " (family " + family + ", model " + number + ")";
    if (line.rfind("cpu family", 0) == 0) family = value;
    if (line.rfind("model\t", 0) == 0) number = value;
  }
  return model;
}

}  // namespace

std::string machine_json() {
  struct sysinfo info = {};
  sysinfo(&info);
  double load = 0;
  if (getloadavg(&load, 1) != 1) load = -1;
  std::string levels;
  for (IsaLevel level : supported_isa_levels()) levels += std::string(levels.empty() ? "" : " ") + isa_name(level);
  return "{\"machine\": \"" + cpu_model() + "\", \"cores\": " + std::to_string(sysconf(_SC_NPROCESSORS_ONLN)) +
         ", \"l2_bytes\": " + std::to_string(sysconf(_SC_LEVEL2_CACHE_SIZE)) +
         ", \"l3_bytes\": " + std::to_string(sysconf(_SC_LEVEL3_CACHE_SIZE)) +
         ", \"ram_bytes\": " + std::to_string(uint64_t(info.totalram) * info.mem_unit) +
         ", \"isa_levels\": \"" + levels +
         "\", \"compiler\": \"gcc " __VERSION__ "\", \"load\": " + std::to_string(load) + "}";
}

}  // namespace freetoken::bench
