// The JSON forms of this folder, read strictly: the weight table and the manifest of an FTW directory. One unit, because the
// library is slow to compile and stays out of headers.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "weights/ftw_manifest.h"
#include "weights/weight_table.h"

namespace freetoken {
namespace {

using nlohmann::json;

// A text of the file in a message: short and in printable ASCII, so that the message is valid UTF-8 wherever it is cut.
std::string shown(const std::string& text) {
  constexpr size_t kMost = 96;
  std::string out = "'";
  for (const char c : text.substr(0, kMost)) out.push_back(c >= 0x20 && c < 0x7f ? c : '?');
  return out + (text.size() > kMost ? "...'" : "'");
}

// Invalid JSON gives a discarded value, and so does nesting deeper than most_depth, which whatever walks the value would pay
// for with its stack; *too_deep tells which.
json parse_json(const std::string& source, int most_depth, bool* too_deep) {
  *too_deep = false;
  const auto keep = [&](int depth, json::parse_event_t event, json&) {
    const bool opens = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    *too_deep |= opens && depth >= most_depth;
    return !*too_deep;
  };
  return json::parse(source, keep, /*allow_exceptions=*/false);
}

// A value that should have been a number; a list or an object is not written out.
std::string shown_value(const json& value) { return value.is_number() ? value.dump() : value.type_name(); }

// One object. `where` begins every message ("file: tensors[3]"); the first error stays, and what is taken after it is empty.
class JsonFields {
 public:
  JsonFields(const json& object, std::string where);

  // The object is called something better once its name is known.
  void rename(std::string where) { where_ = std::move(where); }
  bool has(const char* name) const { return object_.is_object() && object_.contains(name); }

  // The field's value; null after an error or when it is missing, which is one.
  const json* take(const char* name);
  int64_t integer(const char* name, int64_t low, int64_t high);
  std::string text(const char* name);
  // `what` are the entries in a message ("paths").
  const json& list(const char* name, size_t least, size_t most, const char* what);
  // An element of a list, named as in name[i].
  int64_t integer_in(const json& value, const std::string& name, int64_t low, int64_t high);
  std::string text_in(const json& value, const std::string& name);

  // A further complaint about a field.
  void fail(const std::string& name, const std::string& reason);
  Status error(const std::string& what) const { return InvalidArgument(where_ + what); }
  const Status& status() const { return status_; }
  // The first error, or that there are unknown fields.
  Status done();

 private:
  const json& object_;
  std::string where_;
  std::vector<std::string> taken_;
  Status status_;
};

JsonFields::JsonFields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (!object.is_object()) status_ = error(std::string(": expected an object, found ") + object.type_name());
}

const json* JsonFields::take(const char* name) {
  if (!status_.ok()) return nullptr;
  const auto it = object_.find(name);
  if (it == object_.end()) {
    status_ = error(std::string(": field ") + name + " is missing");
    return nullptr;
  }
  taken_.push_back(name);
  return &*it;
}

int64_t JsonFields::integer_in(const json& value, const std::string& name, int64_t low, int64_t high) {
  const bool fits = value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX));
  if (fits && value.get<int64_t>() >= low && value.get<int64_t>() <= high) return value.get<int64_t>();
  if (status_.ok())
    status_ = error("." + name + " is " + shown_value(value) + "; expected an integer from " + std::to_string(low) + " to " +
                    std::to_string(high));
  return low;
}

int64_t JsonFields::integer(const char* name, int64_t low, int64_t high) {
  const json* value = take(name);
  return value ? integer_in(*value, name, low, high) : low;
}

std::string JsonFields::text_in(const json& value, const std::string& name) {
  if (value.is_string() && !value.get_ref<const std::string&>().empty()) return value.get<std::string>();
  fail(name, "expected a text that is not empty");
  return {};
}

std::string JsonFields::text(const char* name) {
  const json* value = take(name);
  return value ? text_in(*value, name) : std::string();
}

const json& JsonFields::list(const char* name, size_t least, size_t most, const char* what) {
  static const json empty = json::array();
  const json* value = take(name);
  if (!value) return empty;
  if (value->is_array() && value->size() >= least && value->size() <= most) return *value;
  const char* to = most == least + 1 ? " or " : " to ";
  fail(name, "expected a list of " + std::to_string(least) + to + std::to_string(most) + " " + what);
  return empty;
}

void JsonFields::fail(const std::string& name, const std::string& reason) {
  if (status_.ok()) status_ = error("." + name + ": " + reason);
}

Status JsonFields::done() {
  for (const auto& [name, value] : object_.items())
    if (status_.ok() && std::find(taken_.begin(), taken_.end(), name) == taken_.end())
      status_ = error(": unknown field " + shown(name));
  return status_;
}

// ---- the weight table

constexpr int kMaxTableDepth = 8;

Status error(const std::string& what) { return InvalidArgument("weight table: " + what); }

Result<WeightEntry> parse_entry(const json& object, const std::string& place, size_t files) {
  JsonFields f(object, "weight table: " + place);
  WeightEntry entry;
  entry.name = f.text("name");
  if (!entry.name.empty()) f.rename("weight table: tensor " + shown(entry.name));
  entry.source = f.text("source");
  entry.file = int(f.integer("file", 0, int64_t(files) - 1));
  entry.offset = f.integer("offset", 0, INT64_MAX / 2);
  entry.bytes = f.integer("bytes", 1, INT64_MAX / 2);
  const std::string format = f.text("format");
  const json& shape = f.list("shape", 1, 2, "numbers");
  if (!shape.empty()) entry.n = int(f.integer_in(shape[0], "shape[0]", 1, kMaxDimension));
  if (shape.size() == 2) entry.k = int(f.integer_in(shape[1], "shape[1]", 1, kMaxDimension));
  if (f.has("rotary_heads")) entry.rotary_heads = int(f.integer("rotary_heads", 1, 65536));
  FT_RETURN_IF_ERROR(f.done());
  const auto known = format_named(format);
  if (!known) return f.error(": format " + shown(format) + " is not one of " + format_names());
  entry.format = *known;
  FT_RETURN_IF_ERROR(check_weight_entry(entry));
  return entry;
}

// ---- the manifest

Result<FtwFile> parse_file(const json& object, const std::string& where) {
  JsonFields f(object, where);
  FtwFile file;
  file.name = f.text("name");
  file.bytes = f.integer("bytes", 0, INT64_MAX / 4);
  file.crc = uint32_t(f.integer("crc32", 0, UINT32_MAX));
  if (file.name.find('/') != std::string::npos || file.name.find('\0') != std::string::npos || file.name[0] == '.')
    f.fail("name", "not the plain name of a file of this directory");
  FT_RETURN_IF_ERROR(f.done());
  return file;
}

Result<WeightEntry> parse_weight(const json& object, const std::string& where) {
  JsonFields f(object, where);
  WeightEntry w;
  w.name = w.source = f.text("name");
  const std::string format = f.text("format");
  w.n = int(f.integer("n", 1, kMaxDimension));
  w.k = int(f.integer("k", 0, kMaxDimension));
  FT_RETURN_IF_ERROR(f.done());
  const auto known = format_named(format);
  if (!known) return f.error(": format " + shown(format) + " is not one of " + format_names());
  w.format = *known;
  w.bytes = w.k == 0 ? int64_t(w.n) * traits(w.format).block_bytes : int64_t(w.n) * int64_t(source_row_bytes(w.format, w.k));
  FT_RETURN_IF_ERROR(check_weight_entry(w));
  return w;
}

Result<FtwItem> parse_item(const json& object, const std::string& where, const std::vector<FtwFile>& shards) {
  JsonFields f(object, where);
  FtwItem item;
  item.name = f.text("name");
  item.shard = int(f.integer("shard", 0, int64_t(shards.size()) - 1));
  item.offset = f.integer("offset", 0, INT64_MAX / 4);
  item.bytes = f.integer("bytes", 1, INT64_MAX / 4);
  item.crc = uint32_t(f.integer("crc32", 0, UINT32_MAX));
  FT_RETURN_IF_ERROR(f.done());
  if (item.offset % kFtwAlignment) return f.error(": offset " + std::to_string(item.offset) + " is not a multiple of 4096");
  const FtwFile& shard = shards[size_t(item.shard)];
  if (item.offset > shard.bytes || item.bytes > shard.bytes - item.offset)
    return f.error(": ends behind the " + std::to_string(shard.bytes) + " bytes of " + shard.name);
  return item;
}

Status check_overlaps(const std::vector<FtwItem>& items, const std::string& where) {
  std::vector<const FtwItem*> order;
  for (const FtwItem& item : items) order.push_back(&item);
  std::sort(order.begin(), order.end(), [](const FtwItem* a, const FtwItem* b) {
    return a->shard != b->shard ? a->shard < b->shard : a->offset < b->offset;
  });
  for (size_t i = 1; i < order.size(); i++)
    if (order[i]->shard == order[i - 1]->shard && order[i]->offset < order[i - 1]->offset + order[i - 1]->bytes)
      return InvalidArgument(where + ": items " + shown(order[i - 1]->name) + " and " + shown(order[i]->name) + " overlap");
  return {};
}

json file_json(const FtwFile& f) { return {{"name", f.name}, {"bytes", f.bytes}, {"crc32", f.crc}}; }

template <class T, class Parse>
Status parse_list(const json& list, const std::string& where, std::vector<T>* out, const Parse& parse) {
  out->reserve(list.size());
  for (size_t i = 0; i < list.size(); i++) {
    FT_ASSIGN_OR_RETURN(T entry, parse(list[i], where + "[" + std::to_string(i) + "]"));
    out->push_back(std::move(entry));
  }
  return {};
}

}  // namespace

Result<WeightTable> parse_weight_table(const std::string& source) {
  bool too_deep = false;
  const json root = parse_json(source, kMaxTableDepth, &too_deep);
  if (too_deep || root.is_discarded()) return error("not valid JSON");
  JsonFields f(root, "weight table: the table");
  const json& files = f.list("files", 1, size_t(kMaxFiles), "paths");
  const json& tensors = f.list("tensors", 1, size_t(kMaxTensors), "entries");
  FT_RETURN_IF_ERROR(f.done());

  WeightTable table;
  for (size_t i = 0; i < files.size(); i++) {
    const std::string name = "files[" + std::to_string(i) + "]";
    std::string path = f.text_in(files[i], name);
    FT_RETURN_IF_ERROR(f.status());
    if (path[0] != '/') return error(name + ": " + shown(path) + " is not an absolute path");
    if (path.find('\0') != std::string::npos) return error(name + ": the path has a zero byte");
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

std::string ftw_manifest_json(const FtwManifest& m) {
  json root = {{"ftw", kFtwVersion}, {"layout", kFtwLayout}, {"model_spec", json::parse(m.model_spec_json)},
               {"vocab", file_json(m.vocab)}, {"eos_token_ids", m.eos_token_ids}};
  for (const char* list : {"shards", "files", "weights", "items"}) root[list] = json::array();
  for (const FtwFile& f : m.shards) root["shards"].push_back(file_json(f));
  for (const FtwFile& f : m.files) root["files"].push_back(file_json(f));
  for (const WeightEntry& w : m.weights)
    root["weights"].push_back({{"name", w.name}, {"format", traits(w.format).name}, {"n", w.n}, {"k", w.k}});
  for (const FtwItem& i : m.items)
    root["items"].push_back({{"name", i.name}, {"shard", i.shard}, {"offset", i.offset}, {"bytes", i.bytes}, {"crc32", i.crc}});
  return root.dump() + "\n";
}

Result<FtwManifest> parse_ftw_manifest(const std::string& source, const std::string& where) {
  bool too_deep = false;
  const json root = parse_json(source, kMaxManifestDepth, &too_deep);
  if (too_deep) return InvalidArgument(where + ": nested deeper than " + std::to_string(kMaxManifestDepth) + " levels");
  if (root.is_discarded()) return InvalidArgument(where + ": not valid JSON; the checkpoint is damaged or not complete");
  JsonFields f(root, where);
  FtwManifest m;
  if (f.has("ftw") && root["ftw"] != kFtwVersion)
    return f.error(": version " + shown_value(root["ftw"]) + "; this version of FreeToken reads version " +
                   std::to_string(kFtwVersion));
  if (f.has("layout") && root["layout"] != kFtwLayout)
    return f.error(": layout " + shown_value(root["layout"]) + " of the packed bytes; this version reads layout " +
                   std::to_string(kFtwLayout) + ": write the checkpoint again");
  f.integer("ftw", kFtwVersion, kFtwVersion);
  f.integer("layout", kFtwLayout, kFtwLayout);
  if (const json* spec = f.take("model_spec")) m.model_spec_json = spec->dump();
  if (const json* vocab = f.take("vocab")) {
    FT_ASSIGN_OR_RETURN(m.vocab, parse_file(*vocab, where + ": vocab"));
  }
  for (const json& id : f.list("eos_token_ids", 0, 1 << 16, "token ids"))
    m.eos_token_ids.push_back(int32_t(f.integer_in(id, "eos_token_ids[" + std::to_string(m.eos_token_ids.size()) + "]", 0, INT32_MAX)));
  FT_RETURN_IF_ERROR(parse_list(f.list("shards", 0, size_t(kMaxFiles), "files"), where + ": shards", &m.shards, parse_file));
  FT_RETURN_IF_ERROR(parse_list(f.list("files", 0, 64, "files"), where + ": files", &m.files, parse_file));
  FT_RETURN_IF_ERROR(parse_list(f.list("weights", 0, size_t(kMaxTensors), "entries"), where + ": weights", &m.weights, parse_weight));
  FT_RETURN_IF_ERROR(parse_list(f.list("items", 0, size_t(kMaxTensors), "entries"), where + ": items", &m.items,
                                [&](const json& item, const std::string& at) { return parse_item(item, at, m.shards); }));
  FT_RETURN_IF_ERROR(f.done());
  FT_RETURN_IF_ERROR(check_overlaps(m.items, where));
  return m;
}

}  // namespace freetoken
