#include "weights/ftw_reader.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "platform/file.h"
#include "weights/crc32.h"

namespace freetoken {
namespace {

Result<std::string> read_whole(const std::string& path, int64_t most_bytes) {
  FT_ASSIGN_OR_RETURN(const File file, File::open(path));
  if (file.size_bytes() > most_bytes)
    return InvalidArgument(path + ": " + std::to_string(file.size_bytes()) + " bytes, more than the " + std::to_string(most_bytes) +
                           " that are believed");
  std::string bytes(size_t(file.size_bytes()), '\0');
  FT_RETURN_IF_ERROR(file.pread_full(bytes.data(), bytes.size(), 0));
  return bytes;
}

Status check_size(const std::string& directory, const FtwFile& expected) {
  const std::string path = directory + "/" + expected.name;
  FT_ASSIGN_OR_RETURN(const File file, File::open(path));
  if (file.size_bytes() == expected.bytes) return {};
  return InvalidArgument(path + ": " + std::to_string(file.size_bytes()) + " bytes, the manifest says " +
                         std::to_string(expected.bytes) + "; the checkpoint is truncated or mixed with another");
}

}  // namespace

Result<std::string> FtwCheckpoint::read_file(const FtwFile& file, int64_t most_bytes) const {
  const std::string path = directory + "/" + file.name;
  FT_ASSIGN_OR_RETURN(std::string bytes, read_whole(path, most_bytes));
  if (int64_t(bytes.size()) != file.bytes || crc32(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()) != file.crc)
    return InvalidArgument(path + ": its checksum is not the one in the manifest; the file is damaged");
  return bytes;
}

Result<FtwCheckpoint> open_ftw(const std::string& directory) {
  FtwCheckpoint c;
  c.directory = directory;
  const std::string path = directory + "/" + kFtwManifest;
  FT_ASSIGN_OR_RETURN(const std::string json, read_whole(path, kMaxManifestBytes));
  FT_ASSIGN_OR_RETURN(c.manifest, parse_ftw_manifest(json, path));
  for (const FtwFile& shard : c.manifest.shards) FT_RETURN_IF_ERROR(check_size(directory, shard));
  FT_RETURN_IF_ERROR(check_size(directory, c.manifest.vocab));
  for (const FtwFile& file : c.manifest.files) FT_RETURN_IF_ERROR(check_size(directory, file));
  auto spec = parse_model_spec(c.manifest.model_spec_json);
  if (!spec.ok()) return Status(spec.status().code(), path + ": model_spec: " + spec.status().message());
  c.spec = std::move(*spec);
  for (const FtwFile& shard : c.manifest.shards) c.table.files.push_back(directory + "/" + shard.name);
  c.table.tensors = c.manifest.weights;
  if (c.table.files.empty()) return InvalidArgument(path + ": shards: there are none");
  return c;
}

Result<LoadPlan> make_ftw_plan(const FtwCheckpoint& checkpoint) {
  const std::string where = checkpoint.directory + "/" + kFtwManifest;
  FT_ASSIGN_OR_RETURN(LoadPlan plan, make_load_plan(checkpoint.table, checkpoint.spec));
  std::unordered_map<std::string, const FtwItem*> items;
  for (const FtwItem& item : checkpoint.manifest.items)
    if (!items.emplace(item.name, &item).second) return InvalidArgument(where + ": items: " + item.name + " is there twice");
  plan.source_bytes = 0;
  for (LoadItem& item : plan.items) {
    const std::string& name = item.is_extent ? item.extent.name : item.tensors[0].info.name;
    const int64_t bytes = int64_t(item.is_extent ? item.extent.bytes : item.tensors[0].info.bytes());
    const auto it = items.find(name);
    if (it == items.end()) return InvalidArgument(where + ": items: " + name + " is missing");
    if (it->second->bytes != bytes)
      return InvalidArgument(where + ": items: " + name + " has " + std::to_string(it->second->bytes) + " bytes, the model needs " +
                             std::to_string(bytes));
    item.packed_file = it->second->shard;
    item.packed_offset = it->second->offset;
    plan.source_bytes += bytes;
    items.erase(it);
  }
  if (!items.empty())
    return InvalidArgument(where + ": items: the model has no place for " + items.begin()->first);
  std::sort(plan.items.begin(), plan.items.end(), [](const LoadItem& a, const LoadItem& b) {
    return a.packed_file != b.packed_file ? a.packed_file < b.packed_file : a.packed_offset < b.packed_offset;
  });
  return plan;
}

Status verify_ftw(const FtwCheckpoint& checkpoint, const std::function<void(int64_t, int64_t)>& progress) {
  int64_t total = 0, done = 0;
  for (const FtwItem& item : checkpoint.manifest.items) total += item.bytes;
  std::vector<File> shards;
  for (const std::string& path : checkpoint.table.files) {
    FT_ASSIGN_OR_RETURN(File file, File::open(path));
    shards.push_back(std::move(file));
  }
  std::vector<uint8_t> buffer(size_t(8) << 20);
  for (const FtwItem& item : checkpoint.manifest.items) {
    const File& shard = shards[size_t(item.shard)];
    uint32_t crc = 0;
    for (int64_t at = 0; at < item.bytes;) {
      const size_t count = size_t(std::min<int64_t>(int64_t(buffer.size()), item.bytes - at));
      FT_RETURN_IF_ERROR(shard.pread_full(buffer.data(), count, item.offset + at));
      crc = crc32(buffer.data(), count, crc);
      at += int64_t(count);
      done += int64_t(count);
      if (progress) progress(done, total);
    }
    if (crc != item.crc)
      return InvalidArgument(shard.path() + ": '" + item.name + "' at byte " + std::to_string(item.offset) + " (" +
                             std::to_string(item.bytes) + " bytes) does not have the checksum in the manifest; it is damaged");
  }
  FT_ASSIGN_OR_RETURN(const std::string vocab, checkpoint.read_file(checkpoint.manifest.vocab, kMaxVocabBytes));
  FT_ASSIGN_OR_RETURN(const Vocab parsed, parse_ftw_vocab(vocab, checkpoint.directory + "/" + checkpoint.manifest.vocab.name));
  for (const FtwFile& file : checkpoint.manifest.files) {
    FT_ASSIGN_OR_RETURN(const std::string bytes, checkpoint.read_file(file, kMaxSideFileBytes));
  }
  return {};
}

}  // namespace freetoken
