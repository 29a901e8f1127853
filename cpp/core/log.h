// One line of log to standard error. Nothing on a hot path logs.
#pragma once
#include <string>

namespace freetoken {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

void set_log_level(LogLevel level);  // default kWarning; FREETOKEN_LOG=debug|info|warning|error sets it at start
void log(LogLevel level, const std::string& message);

}  // namespace freetoken
