// The manifest of an FTW directory (docs/ftw.md): what is where.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "freetoken/vocab.h"
#include "weights/weight_table.h"

namespace freetoken {

constexpr int kFtwVersion = 0;
constexpr int kFtwLayout = 0;         // of the packed bytes: quant/*.h and the extents of weights/load_plan.h
constexpr char kFtwManifest[] = "manifest.json";
constexpr char kFtwVocab[] = "vocab.bin";
constexpr int64_t kFtwAlignment = 4096;
constexpr int64_t kMaxManifestBytes = int64_t(256) << 20;
constexpr int kMaxManifestDepth = 64;  // a ModelSpec has about ten levels
constexpr int64_t kMaxVocabBytes = int64_t(1) << 30;
constexpr int64_t kMaxSideFileBytes = int64_t(256) << 20;

// One span as the device reads it: a tensor, a gate/up pair, or an expert.
struct FtwItem {
  std::string name;
  int shard = 0;
  int64_t offset = 0, bytes = 0;  // offset a multiple of kFtwAlignment
  uint32_t crc = 0;
};

struct FtwFile {
  std::string name;               // no directory
  int64_t bytes = 0;
  uint32_t crc = 0;
};

struct FtwManifest {
  std::string model_spec_json;
  std::vector<WeightEntry> weights;  // canonical name, format, shape; file, offset and source are not used
  std::vector<FtwFile> shards;       // crc unused: the items have their own
  std::vector<FtwItem> items;
  FtwFile vocab;
  std::vector<FtwFile> files;        // of the host: tokenizer, chat template, ...
  std::vector<int32_t> eos_token_ids;
};

std::string ftw_manifest_json(const FtwManifest& manifest);
// Strict, and every number is bounded: unknown or missing fields, overlapping or misaligned items, names with a slash are
// errors that name the field. `where` begins every message.
Result<FtwManifest> parse_ftw_manifest(const std::string& json, const std::string& where);

// Vocabulary: u32 count, then per id u8 flags, u32 length, bytes; little-endian.
std::string ftw_vocab_bytes(const Vocab& vocab);
Result<Vocab> parse_ftw_vocab(const std::string& bytes, const std::string& where);

}  // namespace freetoken
