// A directory that stands for "/", with the files of /proc and /sys that a test wants.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace freetoken::test {

class FakeRoot {
 public:
  FakeRoot() {
    std::string pattern = testing::TempDir() + "ft_root_XXXXXX";
    if (mkdtemp(pattern.data())) path_ = pattern;
  }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;
  ~FakeRoot() { std::filesystem::remove_all(path_); }

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path full = path_ + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full, std::ios::binary) << text;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace freetoken::test
