#include "platform/cgroup.h"

#include <sys/stat.h>

#include <charconv>
#include <sstream>

#include "platform/file.h"

namespace freetoken {
namespace {

bool is_directory(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

std::optional<int64_t> parse_number(const std::string& text) {
  const size_t start = text.find_first_not_of(" \t");
  if (start == std::string::npos) return {};
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + start, text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) return text[start] == '-' ? INT64_MIN : INT64_MAX;
  if (error != std::errc()) return {};
  return value;
}

bool lists(const std::string& controllers, const std::string& name) {
  std::istringstream stream(controllers);
  for (std::string item; std::getline(stream, item, ',');)
    if (item == name) return true;
  return false;
}

// The process's path in the hierarchy: a line "id:controllers:path" of /proc/self/cgroup, without controllers for v2.
std::optional<std::string> group_path(const std::string& root, const std::string& controller) {
  std::istringstream lines(read_small_file(root + "/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? controllers.empty() : lists(controllers, controller)) return line.substr(second + 1);
  }
  return {};
}

}  // namespace

std::vector<std::string> cgroup_directories(const std::string& root, const std::string& controller) {
  const std::optional<std::string> group = group_path(root, controller);
  if (!group) return {};
  const std::string sys = root + "/sys/fs/cgroup";
  std::vector<std::string> mounts = {controller.empty() ? sys : sys + "/" + controller};
  // v1 cpu is usually mounted together with cpuacct, v2 beside v1 in "unified".
  if (controller == "cpu") mounts.push_back(sys + "/cpu,cpuacct");
  if (controller.empty()) mounts.push_back(sys + "/unified");
  for (const std::string& mount : mounts) {
    if (!is_directory(mount)) continue;
    std::string path = *group;
    while (!path.empty() && path.back() == '/') path.pop_back();
    std::vector<std::string> directories;
    while (!path.empty()) {
      if (is_directory(mount + path)) directories.push_back(mount + path);
      path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
    }
    directories.push_back(mount);
    return directories;
  }
  return {};
}

std::optional<int64_t> read_number(const std::string& path) { return parse_number(read_small_file(path)); }

std::optional<int64_t> read_keyed_number(const std::string& path, const std::string& key) {
  std::istringstream lines(read_small_file(path));
  for (std::string line; std::getline(lines, line);)
    if (line.size() > key.size() && line.compare(0, key.size(), key) == 0 &&
        (line[key.size()] == ' ' || line[key.size()] == '\t'))
      return parse_number(line.substr(key.size()));
  return {};
}

}  // namespace freetoken
