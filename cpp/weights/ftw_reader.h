// Reading an FTW directory: its manifest, its side files, and a load plan whose items lie ready in the shards.
#pragma once
#include <functional>
#include <string>

#include "spec/model_spec.h"
#include "weights/ftw_manifest.h"
#include "weights/load_plan.h"

namespace freetoken {

struct FtwCheckpoint {
  std::string directory;
  FtwManifest manifest;
  ModelSpec spec;
  WeightTable table;  // files: the shards; tensors: the manifest's weights

  // A side file, its checksum compared.
  Result<std::string> read_file(const FtwFile& file, int64_t most_bytes) const;
};

// Checks sizes of all files. Reads no weights.
Result<FtwCheckpoint> open_ftw(const std::string& directory);

// The plan of loading it. `checkpoint` outlives the plan.
Result<LoadPlan> make_ftw_plan(const FtwCheckpoint& checkpoint);

// Reads everything and compares all checksums; names shard, tensor and offset of what is wrong.
Status verify_ftw(const FtwCheckpoint& checkpoint, const std::function<void(int64_t done_bytes, int64_t total_bytes)>& progress);

}  // namespace freetoken
