#include "weights/ftw_manifest.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

namespace freetoken {
namespace {

using nlohmann::json;

// A text of the file in a message: short and in printable ASCII, so that the message is valid UTF-8 wherever it is cut.
std::string shown(const std::string& text) {
  std::string out;
  for (const char c : text.substr(0, 80)) out += c >= 0x20 && c < 0x7f ? c : '?';
  return text.size() > 80 ? out + "..." : out;
}

// The value of a field that should be a number; a list or an object is not written out.
std::string shown_value(const json& value) { return value.is_structured() ? value.type_name() : shown(value.dump()); }

// Invalid JSON gives a discarded value. Deeper nesting than any manifest has, which whatever walks the value would pay for
// with its stack, is dropped while parsing.
json parse_bounded(const std::string& source, bool* too_deep) {
  const auto keep = [&](int depth, json::parse_event_t event, json&) {
    const bool opens = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    *too_deep |= opens && depth >= kMaxManifestDepth;
    return !*too_deep;
  };
  return json::parse(source, keep, /*allow_exceptions=*/false);
}

// Reads one object strictly: every field is taken once, and what is left over is an error.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) status_ = error("expected an object");
  }
  const json* take(const char* name) {
    if (!status_.ok()) return nullptr;
    const auto it = object_.find(name);
    if (it == object_.end()) {
      status_ = error(std::string("field ") + name + " is missing");
      return nullptr;
    }
    taken_.insert(name);
    return &*it;
  }
  int64_t integer(const char* name, int64_t low, int64_t high) {
    const json* value = take(name);
    if (!value) return low;
    const bool fits = value->is_number_integer() && !(value->is_number_unsigned() && value->get<uint64_t>() > uint64_t(INT64_MAX));
    if (fits && value->get<int64_t>() >= low && value->get<int64_t>() <= high) return value->get<int64_t>();
    fail(name, "expected an integer from " + std::to_string(low) + " to " + std::to_string(high));
    return low;
  }
  std::string text(const char* name) {
    const json* value = take(name);
    if (value && value->is_string() && !value->get_ref<const std::string&>().empty()) return value->get<std::string>();
    if (value) fail(name, "expected a text that is not empty");
    return {};
  }
  const json& array(const char* name, size_t most) {
    static const json empty = json::array();
    const json* value = take(name);
    if (!value) return empty;
    if (value->is_array() && value->size() <= most) return *value;
    fail(name, "expected a list of at most " + std::to_string(most) + " entries");
    return empty;
  }
  void fail(const std::string& name, const std::string& reason) {
    if (status_.ok()) status_ = error(name + ": " + reason);
  }
  Status done() {
    for (const auto& [name, value] : object_.items())
      if (status_.ok() && !taken_.count(name)) status_ = error("unknown field '" + shown(name) + "'");
    return status_;
  }
  Status error(const std::string& what) const { return InvalidArgument(where_ + ": " + what); }

 private:
  const json& object_;
  std::string where_;
  std::set<std::string> taken_;
  Status status_;
};

Result<FtwFile> parse_file(const json& object, const std::string& where) {
  Fields f(object, where);
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
  Fields f(object, where);
  WeightEntry w;
  w.name = w.source = f.text("name");
  const std::string format = f.text("format");
  w.n = int(f.integer("n", 1, kMaxDimension));
  w.k = int(f.integer("k", 0, kMaxDimension));
  bool known = false;
  for (int i = 0; i < kWeightFormats; i++)
    if (format == kFormatTraits[i].name) w.format = WeightFormat(i), known = true;
  if (!known) f.fail("format", "'" + shown(format) + "' is not known to this version");
  FT_RETURN_IF_ERROR(f.done());
  w.bytes = w.k == 0 ? int64_t(w.n) * traits(w.format).block_bytes : int64_t(w.n) * int64_t(source_row_bytes(w.format, w.k));
  FT_RETURN_IF_ERROR(check_weight_entry(w));
  return w;
}

Result<FtwItem> parse_item(const json& object, const std::string& where, const std::vector<FtwFile>& shards) {
  Fields f(object, where);
  FtwItem item;
  item.name = f.text("name");
  item.shard = int(f.integer("shard", 0, int64_t(shards.size()) - 1));
  item.offset = f.integer("offset", 0, INT64_MAX / 4);
  item.bytes = f.integer("bytes", 1, INT64_MAX / 4);
  item.crc = uint32_t(f.integer("crc32", 0, UINT32_MAX));
  FT_RETURN_IF_ERROR(f.done());
  if (item.offset % kFtwAlignment) return f.error("offset " + std::to_string(item.offset) + " is not a multiple of 4096");
  const FtwFile& shard = shards[size_t(item.shard)];
  if (item.offset > shard.bytes || item.bytes > shard.bytes - item.offset)
    return f.error("ends behind the " + std::to_string(shard.bytes) + " bytes of " + shard.name);
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
  const json root = parse_bounded(source, &too_deep);
  if (too_deep) return InvalidArgument(where + ": nested deeper than " + std::to_string(kMaxManifestDepth) + " levels");
  if (root.is_discarded()) return InvalidArgument(where + ": not valid JSON; the checkpoint is damaged or not complete");
  Fields f(root, where);
  FtwManifest m;
  if (root.is_object() && root.contains("ftw") && root["ftw"] != kFtwVersion)
    return f.error("version " + shown_value(root["ftw"]) + "; this version of FreeToken reads version " +
                   std::to_string(kFtwVersion));
  if (root.is_object() && root.contains("layout") && root["layout"] != kFtwLayout)
    return f.error("layout " + shown_value(root["layout"]) + " of the packed bytes; this version reads layout " +
                   std::to_string(kFtwLayout) + ": write the checkpoint again");
  f.integer("ftw", kFtwVersion, kFtwVersion);
  f.integer("layout", kFtwLayout, kFtwLayout);
  if (const json* spec = f.take("model_spec")) m.model_spec_json = spec->dump();
  if (const json* vocab = f.take("vocab")) {
    FT_ASSIGN_OR_RETURN(m.vocab, parse_file(*vocab, where + ": vocab"));
  }
  for (const json& id : f.array("eos_token_ids", 1 << 16)) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX)
      return f.error("eos_token_ids holds something that is not a token id");
    m.eos_token_ids.push_back(id.get<int32_t>());
  }
  FT_RETURN_IF_ERROR(parse_list(f.array("shards", size_t(kMaxFiles)), where + ": shards", &m.shards, parse_file));
  FT_RETURN_IF_ERROR(parse_list(f.array("files", 64), where + ": files", &m.files, parse_file));
  FT_RETURN_IF_ERROR(parse_list(f.array("weights", size_t(kMaxTensors)), where + ": weights", &m.weights, parse_weight));
  FT_RETURN_IF_ERROR(parse_list(f.array("items", size_t(kMaxTensors)), where + ": items", &m.items,
                                [&](const json& item, const std::string& at) { return parse_item(item, at, m.shards); }));
  FT_RETURN_IF_ERROR(f.done());
  FT_RETURN_IF_ERROR(check_overlaps(m.items, where));
  return m;
}

std::string ftw_vocab_bytes(const Vocab& vocab) {
  std::string out;
  auto put = [&](uint32_t value) { out.append(reinterpret_cast<const char*>(&value), 4); };
  put(uint32_t(vocab.bytes.size()));
  for (size_t i = 0; i < vocab.bytes.size(); i++) {
    out.push_back(char(vocab.flags[i]));
    put(uint32_t(vocab.bytes[i].size()));
    out += vocab.bytes[i];
  }
  return out;
}

Result<Vocab> parse_ftw_vocab(const std::string& bytes, const std::string& where) {
  const Status damaged = InvalidArgument(where + ": damaged: its length does not fit what it says of itself");
  size_t at = 0;
  auto get = [&](uint32_t* value) {
    if (bytes.size() - at < 4) return false;
    std::memcpy(value, bytes.data() + at, 4);
    at += 4;
    return true;
  };
  uint32_t count = 0;
  if (!get(&count) || count > bytes.size() / 5) return damaged;
  Vocab vocab;
  vocab.bytes.reserve(count);
  vocab.flags.reserve(count);
  for (uint32_t i = 0; i < count; i++) {
    if (at >= bytes.size()) return damaged;
    vocab.flags.push_back(uint8_t(bytes[at++]));
    uint32_t length = 0;
    if (!get(&length) || length > bytes.size() - at) return damaged;
    vocab.bytes.push_back(bytes.substr(at, length));
    at += length;
  }
  if (at != bytes.size()) return damaged;
  return vocab;
}

}  // namespace freetoken
