// FtwWriter: a sink that packs straight into the shards of an FTW directory.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "ops/weight_sink.h"
#include "weights/ftw_manifest.h"
#include "weights/load_plan.h"

namespace freetoken {

// Places are fixed beforehand: every item of the plan begins at a multiple of 4096, a shard ends before it would pass
// shard_bytes. The shards are mapped, so packing takes no memory but the page cache. Nothing is a checkpoint before
// finish() has written the manifest; what an unfinished writer made is removed with it.
class FtwWriter final : public WeightSink {
 public:
  FtwWriter(std::string directory, int64_t shard_bytes) : directory_(std::move(directory)), shard_bytes_(shard_bytes) {}
  ~FtwWriter() override;

  // Makes the directory (its parent exists; it may exist if it is empty) and the shards at full size.
  Status begin(const LoadPlan& plan);
  Status add_file(const std::string& name, const std::string& bytes, FtwFile* file);
  // Everything is committed: syncs the shards, fills shards and items of the manifest, writes it.
  Status finish(FtwManifest manifest);

  Result<uint8_t*> open(const PackedTensorInfo& info) override { return place(info.name); }
  Status commit(const PackedTensorInfo& info) override { return done(info.name); }
  Result<uint8_t*> open_extent(const ExtentInfo& info) override { return place(info.name); }
  Status commit_extent(const ExtentInfo& info) override { return done(info.name); }

 private:
  struct Shard {
    FtwFile file;
    int fd = -1;
    uint8_t* data = nullptr;
  };
  Status make_shard(Shard& shard);
  Result<uint8_t*> place(const std::string& name);
  Status done(const std::string& name);
  std::string path(const std::string& name) const { return directory_ + "/" + name; }

  std::string directory_;
  int64_t shard_bytes_;
  std::vector<Shard> shards_;
  std::vector<FtwItem> items_;
  std::map<std::string, size_t> index_;
  std::vector<std::string> made_;  // to remove when unfinished
  bool made_directory_ = false, finished_ = false;
};

}  // namespace freetoken
