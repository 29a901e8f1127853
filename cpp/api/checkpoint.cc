#include "freetoken/checkpoint.h"

#include "api/guard.h"
#include "api/options.h"
#include "model/support.h"
#include "platform/topology.h"
#include "weights/ftw_reader.h"
#include "weights/ftw_writer.h"
#include "weights/loader.h"

namespace freetoken {
namespace {

Status write(const LoadOptions& options, const std::string& directory, int64_t shard_bytes, const HostFiles& files,
             const CheckpointProgress& progress) {
  if (!options.checkpoint_directory.empty()) return InvalidArgument(options.checkpoint_directory + " is a checkpoint already");
  if (shard_bytes < 1) return InvalidArgument("shard_bytes is " + std::to_string(shard_bytes) + ", it must be positive");
  FT_ASSIGN_OR_RETURN(const ModelSpec spec, parse_model_spec(options.model_spec_json));
  FT_RETURN_IF_ERROR(check_model_supported(spec));
  FT_RETURN_IF_ERROR(check_vocab(options, spec));
  FT_ASSIGN_OR_RETURN(const WeightTable table, parse_weight_table(options.weight_table_json));
  FT_RETURN_IF_ERROR(check_weight_files(table));
  FT_ASSIGN_OR_RETURN(const LoadPlan plan, make_load_plan(table, spec));

  FtwWriter writer(directory, shard_bytes);
  FT_RETURN_IF_ERROR(writer.begin(plan));
  FtwManifest manifest{.model_spec_json = model_spec_to_json(spec)};
  for (WeightEntry weight : table.tensors) {
    weight.format = weight.k == 0 ? WeightFormat::kF32 : weight.format;  // vectors are packed as fp32
    manifest.weights.push_back(std::move(weight));
  }
  manifest.eos_token_ids = options.eos_token_ids;
  FT_RETURN_IF_ERROR(writer.add_file(kFtwVocab, ftw_vocab_bytes(options.vocab), &manifest.vocab));
  for (const auto& [name, bytes] : files) {
    if (name.empty() || name[0] == '.' || name.find('/') != std::string::npos || name == kFtwManifest || name == kFtwVocab)
      return InvalidArgument("a file of the host cannot be called '" + name + "'");
    FT_RETURN_IF_ERROR(writer.add_file(name, bytes, &manifest.files.emplace_back()));
  }
  const int threads = options.threads ? options.threads : read_topology().usable_cores;
  FT_RETURN_IF_ERROR(load_weights(table, plan, writer, threads, progress));
  return writer.finish(std::move(manifest));
}

Status read(const std::string& directory, LoadOptions* options, HostFiles* files) {
  FT_ASSIGN_OR_RETURN(const FtwCheckpoint checkpoint, open_ftw(directory));
  const FtwManifest& manifest = checkpoint.manifest;
  FT_ASSIGN_OR_RETURN(const std::string vocab, checkpoint.read_file(manifest.vocab, kMaxVocabBytes));
  FT_ASSIGN_OR_RETURN(options->vocab, parse_ftw_vocab(vocab, directory + "/" + manifest.vocab.name));
  options->checkpoint_directory = directory;
  options->model_spec_json = manifest.model_spec_json;
  options->weight_table_json.clear();
  options->eos_token_ids = manifest.eos_token_ids;
  if (!files) return {};
  for (const FtwFile& file : manifest.files) {
    FT_ASSIGN_OR_RETURN(std::string bytes, checkpoint.read_file(file, kMaxSideFileBytes));
    files->emplace_back(file.name, std::move(bytes));
  }
  return {};
}

}  // namespace

Status write_checkpoint(const LoadOptions& options, const std::string& directory, int64_t shard_bytes, const HostFiles& files,
                        const CheckpointProgress& progress) {
  return guarded("writing the checkpoint", [&] { return write(options, directory, shard_bytes, files, progress); });
}

Status read_checkpoint(const std::string& directory, LoadOptions* options, HostFiles* files) {
  return guarded("reading the checkpoint", [&] { return read(directory, options, files); });
}

Status verify_checkpoint(const std::string& directory, const CheckpointProgress& progress) {
  return guarded("verifying the checkpoint", [&]() -> Status {
    FT_ASSIGN_OR_RETURN(const FtwCheckpoint checkpoint, open_ftw(directory));
    FT_ASSIGN_OR_RETURN(const LoadPlan plan, make_ftw_plan(checkpoint));
    return verify_ftw(checkpoint, progress);
  });
}

}  // namespace freetoken
