// Stop strings over a stream of text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace freetoken {

// Bounds of Request::stop; more is refused with kInvalidArgument.
constexpr int kMaxStopStrings = 64;
constexpr int kMaxStopBytes = 16384;  // of all stop strings together

// Checks count, size, emptiness and UTF-8.
Status validate_stop_strings(const std::vector<std::string>& stop);

// The first stop string to be complete ends the text; of several that end at the same byte the longest one (the one that
// starts first) is the match. So the outcome depends on the text alone, not on how it arrives, and nothing has to be
// generated beyond a complete stop string. Text that may be the beginning of a stop string is held back.
// An automaton (Aho-Corasick) reads each byte once: amortised O(1) per byte, whatever the number of stop strings.
class StopMatcher {
 public:
  // The strings have passed validate_stop_strings; none is allowed.
  explicit StopMatcher(std::vector<std::string> stop);

  // Appends to *out what can no longer be part of a match. Returns true once a stop string is complete; the match and
  // what follows are dropped, and further text is ignored.
  bool push(std::string_view text, std::string* out);
  // The end of the text: what was held back is text after all.
  void finish(std::string* out);

  bool stopped() const { return match_ >= 0; }
  // The stop string found; empty when !stopped().
  const std::string& match() const;

 private:
  struct Node {
    int32_t first_child = -1, next_sibling = -1;
    int32_t fallback = 0;  // the longest proper suffix that is a node
    int32_t match = -1;    // the longest stop string that ends here
    int32_t depth = 0;     // bytes
    uint8_t byte = 0;
  };
  int32_t child(int32_t node, uint8_t byte) const;
  void link();

  std::vector<std::string> stop_;
  std::vector<Node> nodes_;
  int32_t node_ = 0;
  std::string held_;  // between calls: the last nodes_[node_].depth bytes of the text
  int32_t match_ = -1;
};

}  // namespace freetoken
