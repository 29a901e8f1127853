// What a benchmark figure belongs to: CPU, caches, memory, compiler, load.
#pragma once
#include <string>

namespace freetoken::bench {

// One JSON object on one line.
std::string machine_json();

}  // namespace freetoken::bench
