// FTW checkpoints: a model packed once, loaded by reading. docs/ftw.md describes the files.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "freetoken/engine.h"

namespace freetoken {

// Name and contents. The core keeps these files beside the weights and does not look into them: a host's tokenizer, ...
using HostFiles = std::vector<std::pair<std::string, std::string>>;
using CheckpointProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

// Packs the model of `options` (model_spec_json, weight_table_json, vocab, eos_token_ids, threads) into `directory`, which
// does not exist or is empty. On an error nothing is left there. kInvalidArgument (the model, the directory),
// kResourceExhausted (no room on the disk), kIoError.
FREETOKEN_API Status write_checkpoint(const LoadOptions& options, const std::string& directory, int64_t shard_bytes,
                                      const HostFiles& files, const CheckpointProgress& progress);

// Prepares `options` for Engine::load and plan_memory of the checkpoint in `directory`: sets checkpoint_directory,
// model_spec_json, vocab and eos_token_ids. `files` (may be null) receives the host's files. Reads no weights; their sizes are
// checked, and the checksums of everything that is read.
FREETOKEN_API Status read_checkpoint(const std::string& directory, LoadOptions* options, HostFiles* files);

// Reads all of it and compares every checksum; names file, tensor and offset of what is wrong.
FREETOKEN_API Status verify_checkpoint(const std::string& directory, const CheckpointProgress& progress);

}  // namespace freetoken
