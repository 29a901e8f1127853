// Writes a tiny model as a checkpoint file with its weight table, for Engine::load.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "engine/tiny_engine.h"
#include "freetoken/engine.h"

namespace freetoken::testing {

class CheckpointFiles {
 public:
  CheckpointFiles(const ModelSpec& spec, const TinyWeights& weights) {
    std::string pattern = ::testing::TempDir() + "ft_api_XXXXXX";
    if (mkdtemp(pattern.data())) directory_ = pattern;
    std::ofstream file(path(), std::ios::binary);
    std::string tensors;
    size_t offset = 0;
    for (const auto& [name, w] : weights.all()) {
      std::ostringstream entry;
      entry << (tensors.empty() ? "" : ",\n") << "{\"name\":\"" << name << "\",\"file\":0,\"offset\":" << offset
            << ",\"bytes\":" << w.source.size() << ",\"format\":\"" << traits(w.format).name << "\",\"shape\":[" << w.n;
      if (w.k) entry << "," << w.k;
      entry << "],\"source\":\"checkpoint." << name << "\"}";
      tensors += entry.str();
      file.write(reinterpret_cast<const char*>(w.source.data()), long(w.source.size()));
      offset += w.source.size();
    }
    options.model_spec_json = model_spec_to_json(spec);
    options.weight_table_json = "{\"files\":[\"" + path() + "\"],\"tensors\":[" + tensors + "]}";
    options.vocab = tiny_vocab(spec.vocab);
    options.threads = 2;
    options.max_running_requests = 4;
    options.max_batch_tokens = 64;
    options.max_sequence_tokens = 256;
    options.kv_tokens = 1024;
    options.memory_limit_bytes = int64_t(1) << 30;
  }
  CheckpointFiles(const CheckpointFiles&) = delete;
  CheckpointFiles& operator=(const CheckpointFiles&) = delete;
  ~CheckpointFiles() { std::filesystem::remove_all(directory_); }

  std::string path() const { return directory_ + "/weights.bin"; }
  LoadOptions options;

 private:
  std::string directory_;
};

}  // namespace freetoken::testing
