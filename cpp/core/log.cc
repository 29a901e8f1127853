#include "core/log.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace freetoken {
namespace {

LogLevel level_from_environment() {
  const char* value = std::getenv("FREETOKEN_LOG");
  const std::string_view text = value ? value : "";
  if (text == "debug") return LogLevel::kDebug;
  if (text == "info") return LogLevel::kInfo;
  if (text == "error") return LogLevel::kError;
  return LogLevel::kWarning;
}

std::atomic<LogLevel>& threshold() {
  static std::atomic<LogLevel> level{level_from_environment()};
  return level;
}

}  // namespace

void set_log_level(LogLevel level) { threshold() = level; }

void log(LogLevel level, const std::string& message) {
  static constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  if (level < threshold().load(std::memory_order_relaxed)) return;
  std::fprintf(stderr, "freetoken %s: %s\n", kNames[int(level)], message.c_str());
}

}  // namespace freetoken
