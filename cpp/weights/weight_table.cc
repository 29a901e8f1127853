#include "weights/weight_table.h"

#include "platform/file.h"

namespace freetoken {

Status check_weight_entry(const WeightEntry& entry) {
  const FormatTraits& format = traits(entry.format);
  const std::string where = "tensor '" + entry.source + "' (" + entry.name + "): ";
  if (entry.k == 0 && format.block_k != 1)
    return InvalidArgument(where + "a vector in format " + format.name + "; vectors must be f32, f16 or bf16");
  if (entry.k % format.block_k != 0)
    return InvalidArgument(where + std::to_string(entry.k) + " columns are not a multiple of the " + std::to_string(format.block_k) +
                           " that a block of " + format.name + " holds");
  const int64_t expected = entry.k == 0 ? int64_t(entry.n) * format.block_bytes
                                        : int64_t(entry.n) * int64_t(source_row_bytes(entry.format, entry.k));
  if (entry.bytes != expected) {
    const std::string shape = std::to_string(entry.n) + (entry.k ? " x " + std::to_string(entry.k) : "");
    return InvalidArgument(where + "has " + std::to_string(entry.bytes) + " bytes, but " + shape + " in " + format.name +
                           " takes " + std::to_string(expected));
  }
  if (entry.rotary_heads > 0 && entry.n % (2 * int64_t(entry.rotary_heads)) != 0)
    return InvalidArgument(where + std::to_string(entry.n) + " rows do not divide into rotary pairs of " +
                           std::to_string(entry.rotary_heads) + " heads");
  return {};
}

Status check_weight_files(const WeightTable& table) {
  std::vector<int64_t> sizes;
  for (const auto& path : table.files) {
    FT_ASSIGN_OR_RETURN(File file, File::open(path));
    sizes.push_back(file.size_bytes());
  }
  for (const auto& entry : table.tensors) {
    const int64_t size = sizes[size_t(entry.file)];
    if (entry.offset > size || entry.bytes > size - entry.offset)
      return InvalidArgument(table.files[size_t(entry.file)] + ": tensor '" + entry.source + "' ends at byte " +
                             std::to_string(entry.offset + entry.bytes) + ", but the file has " + std::to_string(size) +
                             " bytes; it is truncated, download it again");
  }
  return {};
}

}  // namespace freetoken
