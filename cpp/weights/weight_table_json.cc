// The JSON form of a weight table, read strictly.
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "weights/weight_table.h"

namespace freetoken {
namespace {

using nlohmann::json;

Status error(const std::string& what) { return InvalidArgument("weight table: " + what); }

// A string from outside in a message: short, and free of control characters.
std::string shown(const std::string& text) {
  std::string out = "'";
  for (const char c : text.substr(0, 96)) out += (uint8_t(c) < 0x20 || c == 0x7f) ? '?' : c;
  return out + (text.size() > 96 ? "...'" : "'");
}

// An integer in [low, high], or a message.
Result<int64_t> integer(const json& value, const std::string& where, int64_t low, int64_t high) {
  const bool fits = value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX));
  if (!fits || value.get<int64_t>() < low || value.get<int64_t>() > high)
    return error(where + " is " + (value.is_number() ? value.dump() : value.type_name()) + "; expected an integer from " +
                 std::to_string(low) + " to " + std::to_string(high));
  return value.get<int64_t>();
}

Result<std::string> text(const json& value, const std::string& where) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty())
    return error(where + ": expected a text that is not empty");
  return value.get<std::string>();
}

// Fields of one object: every required one is there, and nothing unknown.
Status check_fields(const json& object, const std::string& where, const std::vector<std::string>& required,
                    const std::vector<std::string>& optional) {
  if (!object.is_object()) return error(where + ": expected an object, found " + object.type_name());
  for (const auto& name : required)
    if (!object.contains(name)) return error(where + ": field " + name + " is missing");
  for (const auto& [name, value] : object.items()) {
    bool known = false;
    for (const auto* list : {&required, &optional})
      for (const auto& k : *list) known |= k == name;
    if (!known) return error(where + ": unknown field " + shown(name));
  }
  return {};
}

Result<WeightEntry> parse_entry(const json& object, const std::string& place, size_t files) {
  FT_RETURN_IF_ERROR(check_fields(object, place, {"name", "file", "offset", "bytes", "format", "shape", "source"},
                                  {"rotary_heads"}));
  WeightEntry entry;
  FT_ASSIGN_OR_RETURN(entry.name, text(object["name"], place + ".name"));
  const std::string where = "tensor " + shown(entry.name);
  FT_ASSIGN_OR_RETURN(entry.source, text(object["source"], where + ".source"));
  FT_ASSIGN_OR_RETURN(const int64_t file, integer(object["file"], where + ".file", 0, int64_t(files) - 1));
  FT_ASSIGN_OR_RETURN(entry.offset, integer(object["offset"], where + ".offset", 0, INT64_MAX / 2));
  FT_ASSIGN_OR_RETURN(entry.bytes, integer(object["bytes"], where + ".bytes", 1, INT64_MAX / 2));
  entry.file = int(file);

  FT_ASSIGN_OR_RETURN(const std::string format, text(object["format"], where + ".format"));
  bool known = false;
  std::string names;
  for (int f = 0; f < kWeightFormats; f++) {
    names += std::string(f ? ", " : "") + kFormatTraits[f].name;
    if (format == kFormatTraits[f].name) entry.format = WeightFormat(f), known = true;
  }
  if (!known) return error(where + ": format " + shown(format) + " is not one of " + names);

  const json& shape = object["shape"];
  if (!shape.is_array() || shape.size() < 1 || shape.size() > 2)
    return error(where + ".shape: expected a list of 1 or 2 numbers");
  FT_ASSIGN_OR_RETURN(const int64_t n, integer(shape[0], where + ".shape[0]", 1, kMaxDimension));
  entry.n = int(n);
  if (shape.size() == 2) {
    FT_ASSIGN_OR_RETURN(const int64_t k, integer(shape[1], where + ".shape[1]", 1, kMaxDimension));
    entry.k = int(k);
  }
  if (object.contains("rotary_heads")) {
    FT_ASSIGN_OR_RETURN(const int64_t heads, integer(object["rotary_heads"], where + ".rotary_heads", 1, 65536));
    entry.rotary_heads = int(heads);
  }
  FT_RETURN_IF_ERROR(check_weight_entry(entry));
  return entry;
}

}  // namespace

Result<WeightTable> parse_weight_table(const std::string& source) {
  const json root = json::parse(source, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return error("not valid JSON");
  FT_RETURN_IF_ERROR(check_fields(root, "the table", {"files", "tensors"}, {}));
  const json &files = root["files"], &tensors = root["tensors"];
  if (!files.is_array() || files.empty() || files.size() > size_t(kMaxFiles))
    return error("files: expected a list of 1 to " + std::to_string(kMaxFiles) + " paths");
  if (!tensors.is_array() || tensors.empty() || tensors.size() > size_t(kMaxTensors))
    return error("tensors: expected a list of 1 to " + std::to_string(kMaxTensors) + " entries");

  WeightTable table;
  for (size_t i = 0; i < files.size(); i++) {
    FT_ASSIGN_OR_RETURN(std::string path, text(files[i], "files[" + std::to_string(i) + "]"));
    if (path[0] != '/') return error("files[" + std::to_string(i) + "]: " + shown(path) + " is not an absolute path");
    if (path.find('\0') != std::string::npos) return error("files[" + std::to_string(i) + "]: the path has a zero byte");
    table.files.push_back(std::move(path));
  }
  table.tensors.reserve(tensors.size());
  std::unordered_set<std::string> names;
  for (size_t i = 0; i < tensors.size(); i++) {
    FT_ASSIGN_OR_RETURN(WeightEntry entry, parse_entry(tensors[i], "tensors[" + std::to_string(i) + "]", table.files.size()));
    if (!names.insert(entry.name).second) return error("tensor " + shown(entry.name) + " occurs twice");
    table.tensors.push_back(std::move(entry));
  }
  return table;
}

}  // namespace freetoken
