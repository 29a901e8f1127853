#include "text/stop_matcher.h"

#include <utility>

#include "text/utf8_stream.h"

namespace freetoken {

Status validate_stop_strings(const std::vector<std::string>& stop) {
  if (stop.size() > size_t(kMaxStopStrings))
    return InvalidArgument("stop: " + std::to_string(stop.size()) + " strings; at most " + std::to_string(kMaxStopStrings) +
                           " are allowed");
  size_t bytes = 0;
  for (size_t i = 0; i < stop.size(); i++) {
    if (stop[i].empty()) return InvalidArgument("stop[" + std::to_string(i) + "] is empty; leave it out");
    bytes += stop[i].size();
    if (bytes > size_t(kMaxStopBytes))
      return InvalidArgument("stop: the strings have more than " + std::to_string(kMaxStopBytes) + " bytes in all");
    if (!is_valid_utf8(stop[i])) return InvalidArgument("stop[" + std::to_string(i) + "] is not valid UTF-8");
  }
  return {};
}

StopMatcher::StopMatcher(std::vector<std::string> stop) : stop_(std::move(stop)), nodes_(1) {
  for (size_t i = 0; i < stop_.size(); i++) {
    int32_t node = 0;
    for (const char c : stop_[i]) {
      int32_t next = child(node, uint8_t(c));
      if (next < 0) {
        next = int32_t(nodes_.size());
        Node made;
        made.byte = uint8_t(c);
        made.depth = nodes_[node].depth + 1;
        made.next_sibling = nodes_[node].first_child;
        nodes_.push_back(made);
        nodes_[node].first_child = next;
      }
      node = next;
    }
    if (node > 0 && nodes_[node].match < 0) nodes_[node].match = int32_t(i);
  }
  link();
}

int32_t StopMatcher::child(int32_t node, uint8_t byte) const {
  int32_t next = nodes_[node].first_child;
  while (next >= 0 && nodes_[next].byte != byte) next = nodes_[next].next_sibling;
  return next;
}

// Breadth first, so that a node's fallback is complete before the node is reached.
void StopMatcher::link() {
  std::vector<int32_t> queue = {0};
  for (size_t head = 0; head < queue.size(); head++) {
    const int32_t parent = queue[head];
    for (int32_t node = nodes_[parent].first_child; node >= 0; node = nodes_[node].next_sibling) {
      queue.push_back(node);
      if (parent == 0) continue;
      int32_t from = nodes_[parent].fallback, next = child(from, nodes_[node].byte);
      while (next < 0 && from > 0) {
        from = nodes_[from].fallback;
        next = child(from, nodes_[node].byte);
      }
      nodes_[node].fallback = next < 0 ? 0 : next;
      if (nodes_[node].match < 0) nodes_[node].match = nodes_[nodes_[node].fallback].match;
    }
  }
}

bool StopMatcher::push(std::string_view text, std::string* out) {
  if (stopped()) return true;
  if (stop_.empty()) {
    out->append(text);
    return false;
  }
  for (const char c : text) {
    const uint8_t byte = uint8_t(c);
    int32_t next = child(node_, byte);
    while (next < 0 && node_ > 0) {
      node_ = nodes_[node_].fallback;
      next = child(node_, byte);
    }
    node_ = next < 0 ? 0 : next;
    held_.push_back(c);
    if (nodes_[node_].match >= 0) {
      match_ = nodes_[node_].match;
      out->append(held_, 0, held_.size() - stop_[size_t(match_)].size());
      held_.clear();
      return true;
    }
  }
  const size_t released = held_.size() - size_t(nodes_[node_].depth);
  out->append(held_, 0, released);
  held_.erase(0, released);
  return false;
}

void StopMatcher::finish(std::string* out) {
  if (!stopped()) out->append(held_);
  held_.clear();
  node_ = 0;
}

const std::string& StopMatcher::match() const {
  static const std::string kNone;
  return stopped() ? stop_[size_t(match_)] : kNone;
}

}  // namespace freetoken
