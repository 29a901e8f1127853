// Makes checkpoint files of random bytes with their table, and a sink that checks how it is used.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/memory.h"
#include "ops/weight_sink.h"
#include "weights/weight_table.h"

namespace freetoken::test {

class CheckpointBuilder {
 public:
  explicit CheckpointBuilder(int files = 1, uint32_t seed = 1) : random_(seed), bytes_(size_t(files)) {
    std::string pattern = testing::TempDir() + "ft_weights_XXXXXX";
    if (mkdtemp(pattern.data())) directory_ = pattern;
    for (int f = 0; f < files; f++) table.files.push_back(directory_ + "/part" + std::to_string(f));
  }
  CheckpointBuilder(const CheckpointBuilder&) = delete;
  CheckpointBuilder& operator=(const CheckpointBuilder&) = delete;
  ~CheckpointBuilder() { std::filesystem::remove_all(directory_); }

  // Appends a tensor of random bytes (random bits are valid weights of every format) at an odd offset. k = 0: a vector.
  void add(const std::string& name, WeightFormat format, int n, int k, int rotary_heads = 0) {
    WeightEntry entry;
    entry.name = name, entry.source = "source." + name, entry.format = format, entry.n = n, entry.k = k;
    entry.rotary_heads = rotary_heads;
    entry.file = int(random_() % bytes_.size());
    entry.bytes = int64_t(n) * int64_t(source_row_bytes(format, k ? k : 1));
    std::string& file = bytes_[size_t(entry.file)];
    file.append(random_() % 37, 'x');
    entry.offset = int64_t(file.size());
    const size_t begin = file.size();
    file.resize(begin + size_t(entry.bytes));
    for (size_t i = begin; i < file.size(); i++) file[i] = char(random_());
    if (format == WeightFormat::kF32 || format == WeightFormat::kF16 || format == WeightFormat::kBF16)
      make_finite(file, begin, format);
    table.tensors.push_back(entry);
  }

  void write() const {
    for (size_t f = 0; f < bytes_.size(); f++) std::ofstream(table.files[f], std::ios::binary) << bytes_[f];
  }
  const WeightEntry& entry(const std::string& name) const {
    for (const WeightEntry& entry : table.tensors)
      if (entry.name == name) return entry;
    throw std::runtime_error("no tensor " + name);
  }
  const uint8_t* source(const std::string& name) const {
    const WeightEntry& e = entry(name);
    return reinterpret_cast<const uint8_t*>(bytes_[size_t(e.file)].data()) + e.offset;
  }

  WeightTable table;

 private:
  // NaN payloads need not survive a conversion to f32; weights have none.
  static void make_finite(std::string& file, size_t begin, WeightFormat format) {
    const size_t width = format == WeightFormat::kF32 ? 4 : 2;
    for (size_t i = begin + width - 1; i < file.size(); i += width) file[i] = char(file[i] & 0xBF);
  }

  std::mt19937 random_;
  std::string directory_;
  std::vector<std::string> bytes_;
};

// Spans filled with rubbish, so that what the loader does not write shows.
class CheckingSink : public WeightSink {
 public:
  Result<uint8_t*> open(const PackedTensorInfo& info) override {
    tensors[info.name] = info;
    return make(info.name, info.bytes());
  }
  Status commit(const PackedTensorInfo& info) override { return finish(info.name); }
  Result<uint8_t*> open_extent(const ExtentInfo& info) override {
    extents[info.name] = info;
    return make(info.name, info.bytes);
  }
  Status commit_extent(const ExtentInfo& info) override { return finish(info.name); }

  const uint8_t* data(const std::string& name) const { return spans_.at(name).data(); }
  bool all_committed() const { return committed_.size() == spans_.size(); }

  std::map<std::string, PackedTensorInfo> tensors;
  std::map<std::string, ExtentInfo> extents;
  std::string refuse_open, refuse_commit;

 private:
  Result<uint8_t*> make(const std::string& name, size_t bytes) {
    EXPECT_FALSE(spans_.contains(name)) << name << " opened twice";
    if (name == refuse_open) return ResourceExhausted("no room for " + name);
    FT_ASSIGN_OR_RETURN(Memory memory, Memory::allocate(bytes));
    std::memset(memory.data(), 0xAB, bytes);
    uint8_t* data = memory.data();
    spans_.emplace(name, std::move(memory));
    return data;
  }
  Status finish(const std::string& name) {
    EXPECT_TRUE(spans_.contains(name)) << name << " committed before it was opened";
    EXPECT_TRUE(committed_.insert(name).second) << name << " committed twice";
    if (name == refuse_commit) return IoError("device lost at " + name);
    return {};
  }

  std::map<std::string, Memory> spans_;
  std::set<std::string> committed_;
};

}  // namespace freetoken::test
