#include "platform/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <vector>

#include "platform/fake_root.h"

namespace freetoken {
namespace {

TEST(File, ReadsRanges) {
  test::FakeRoot root;
  std::string content;
  for (int i = 0; i < 100000; i++) content.push_back(char(i * 7));
  root.write("/data", content);
  auto file = File::open(root.path() + "/data");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->size_bytes(), 100000);
  std::string part(5000, '\0');
  ASSERT_TRUE(file->pread_full(part.data(), part.size(), 95000).ok());
  EXPECT_EQ(part, content.substr(95000));
  EXPECT_TRUE(file->pread_full(nullptr, 0, 200000).ok());
  File moved = std::move(*file);
  EXPECT_TRUE(moved.pread_full(part.data(), 1, 0).ok());
}

TEST(File, AShortFileIsNamed) {
  test::FakeRoot root;
  root.write("/data", "0123456789");
  auto file = File::open(root.path() + "/data");
  ASSERT_TRUE(file.ok());
  char buffer[8];
  const Status status = file->pread_full(buffer, 8, 5);
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_EQ(status.message(), root.path() + "/data: ends at byte 10, needed up to 13; the file is truncated");
}

TEST(File, WhatIsNotARegularFile) {
  test::FakeRoot root;
  EXPECT_EQ(File::open(root.path() + "/none").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(File::open(root.path()).status().code(), StatusCode::kInvalidArgument);
  const std::string fifo = root.path() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(File::open(fifo).status().code(), StatusCode::kInvalidArgument) << "and does not wait for a writer";
  EXPECT_EQ(File::open("/dev/zero").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(File::open("").status().code(), StatusCode::kNotFound);
}

TEST(File, AReadErrorIsAStatus) {
  auto file = File::open("/proc/self/mem");  // offset 0 is never mapped: EIO
  ASSERT_TRUE(file.ok());
  char buffer[8];
  const Status status = file->pread_full(buffer, 8, 0);
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_NE(status.message().find("/proc/self/mem: read of 8 bytes at 0"), std::string::npos) << status.message();
}

TEST(File, SmallFiles) {
  test::FakeRoot root;
  root.write("/a", std::string(100, 'x'));
  EXPECT_EQ(read_small_file(root.path() + "/a").size(), 100u);
  EXPECT_EQ(read_small_file(root.path() + "/a", 10).size(), 10u);
  EXPECT_EQ(read_small_file(root.path() + "/none"), "");
  EXPECT_EQ(read_small_file(root.path()), "");
}

}  // namespace
}  // namespace freetoken
