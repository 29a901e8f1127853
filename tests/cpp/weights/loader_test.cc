// Oracle: pack_matrix / unpack_matrix (tested by themselves) on source rows put in order by the plain formulas below.
#include "weights/loader.h"

#include <gtest/gtest.h>

#include <fstream>

#include "quant/t32.h"
#include "weights/checkpoint_builder.h"

namespace freetoken {
namespace {

using test::CheckingSink;
using test::CheckpointBuilder;

// Rows from [heads][dim / 2][2] to [heads][2][dim / 2].
std::vector<uint8_t> to_halves(const uint8_t* source, int rows, int heads, size_t row_bytes) {
  std::vector<uint8_t> out(size_t(rows) * row_bytes);
  const int dim = rows / heads;
  for (int h = 0; h < heads; h++)
    for (int pair = 0; pair < dim / 2; pair++)
      for (int member = 0; member < 2; member++)
        std::memcpy(out.data() + size_t(h * dim + member * (dim / 2) + pair) * row_bytes,
                    source + size_t(h * dim + pair * 2 + member) * row_bytes, row_bytes);
  return out;
}

void expect_matrix(const CheckpointBuilder& checkpoint, const std::string& name, const PackedTensorInfo& info, const uint8_t* packed) {
  const WeightEntry& entry = checkpoint.entry(name);
  ASSERT_EQ(info.format, entry.format);
  ASSERT_EQ(info.n, entry.n);
  ASSERT_EQ(info.k, entry.k);
  const size_t row_bytes = source_row_bytes(entry.format, entry.k);
  std::vector<uint8_t> rows(checkpoint.source(name), checkpoint.source(name) + entry.bytes);
  if (entry.rotary_heads) rows = to_halves(rows.data(), entry.n, entry.rotary_heads, row_bytes);
  std::vector<uint8_t> expected(packed_bytes(entry.format, entry.n, entry.k));
  pack_matrix(entry.format, entry.n, entry.k, rows.data(), expected.data());
  EXPECT_EQ(std::memcmp(packed, expected.data(), expected.size()), 0) << name;
}

// prefix + "gate_up": tile t = gate rows [16 t, 16 t + 16), then the same up rows; rows past the inner size decode to zero.
void expect_gate_up(const CheckpointBuilder& checkpoint, const std::string& prefix, const PackedTensorInfo& info,
                    const uint8_t* packed) {
  const WeightEntry& gate = checkpoint.entry(prefix + "gate");
  const int padded = (gate.n + 15) / 16 * 16;
  ASSERT_EQ(info.n, 2 * padded);
  ASSERT_EQ(info.k, gate.k);
  const size_t row_bytes = source_row_bytes(gate.format, gate.k);
  std::vector<uint8_t> rows(size_t(info.n) * row_bytes);
  unpack_matrix(info.format, info.n, info.k, packed, rows.data());
  for (int i = 0; i < info.n; i++) {
    const int row = i / 32 * 16 + i % 16;
    const uint8_t* got = rows.data() + size_t(i) * row_bytes;
    if (row < gate.n) {
      const uint8_t* source = checkpoint.source(prefix + (i % 32 < 16 ? "gate" : "up"));
      ASSERT_EQ(std::memcmp(got, source + size_t(row) * row_bytes, row_bytes), 0) << prefix << " row " << i;
    } else {
      std::vector<float> decoded(size_t(info.k), 1.0f);
      decode_row(info.format, info.k, got, decoded.data());
      ASSERT_EQ(decoded, std::vector<float>(size_t(info.k), 0.0f)) << prefix << " padding row " << i;
    }
  }
}

void expect_vector(const CheckpointBuilder& checkpoint, const std::string& name, const float* values) {
  const WeightEntry& entry = checkpoint.entry(name);
  std::vector<uint8_t> source(checkpoint.source(name), checkpoint.source(name) + entry.bytes);
  if (entry.rotary_heads) source = to_halves(source.data(), entry.n, entry.rotary_heads, size_t(traits(entry.format).block_bytes));
  std::vector<float> expected(size_t(entry.n));
  decode_row(entry.format, entry.n, source.data(), expected.data());
  EXPECT_EQ(std::memcmp(values, expected.data(), expected.size() * 4), 0) << name;
}

struct Shape {
  int hidden, inner, q_heads, kv_heads, head_dim, vocab;
};

// One layer of attention with biases and an MLP, one of attention and experts.
ModelSpec make_spec(const Shape& s) {
  ModelSpec spec;
  spec.hidden = s.hidden, spec.vocab = s.vocab, spec.max_positions = 64;
  spec.final_norm.kind = NormKind::kRms;
  SublayerSpec attention;
  attention.kind = SublayerKind::kAttention;
  attention.pre_norm.kind = NormKind::kRms;
  attention.attention.q_heads = s.q_heads, attention.attention.kv_heads = s.kv_heads;
  attention.attention.qk_dim = attention.attention.v_dim = s.head_dim;
  SublayerSpec mlp;
  mlp.kind = SublayerKind::kMlp;
  mlp.mlp.inner = s.inner;
  SublayerSpec moe;
  moe.kind = SublayerKind::kMoe;
  moe.moe.experts = 3, moe.moe.experts_per_token = 2, moe.moe.inner = s.inner;
  spec.layers = {{{attention, mlp}}, {{attention, moe}}};
  spec.layers[0].sublayers[0].attention.qkv_bias = true;
  return spec;
}

void add_tensors(CheckpointBuilder& c, const Shape& s, WeightFormat format, WeightFormat up_format, bool rotary) {
  const int q = s.q_heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  c.add("lm_head", format, s.vocab, s.hidden);
  c.add("final_norm", WeightFormat::kF32, s.hidden, 0);
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    c.add(layer + "0.v", format, kv, s.hidden);
    c.add(layer + "0.q", format, q, s.hidden, rotary ? s.q_heads : 0);
    c.add(layer + "0.k", format, kv, s.hidden, rotary ? s.kv_heads : 0);
    c.add(layer + "0.o", format, s.hidden, q);
    c.add(layer + "0.pre_norm", WeightFormat::kF16, s.hidden, 0);
  }
  c.add("layers.0.0.q_bias", WeightFormat::kBF16, q, 0, rotary ? s.q_heads : 0);
  c.add("layers.0.0.k_bias", WeightFormat::kF32, kv, 0, rotary ? s.kv_heads : 0);
  c.add("layers.0.0.v_bias", WeightFormat::kF32, kv, 0);
  c.add("layers.1.1.router", WeightFormat::kF32, 3, s.hidden);
  for (const std::string prefix : {"layers.0.1.", "layers.1.1.experts.0.", "layers.1.1.experts.1.", "layers.1.1.experts.2."}) {
    c.add(prefix + "down", format, s.hidden, s.inner);
    c.add(prefix + "up", up_format, s.inner, s.hidden);
    c.add(prefix + "gate", format, s.inner, s.hidden);
  }
  c.add("embed", format, s.vocab, s.hidden);
}

void expect_feed_forward(const CheckpointBuilder& c, const std::string& prefix, bool one_format,
                         const std::map<std::string, std::pair<PackedTensorInfo, const uint8_t*>>& parts) {
  if (one_format) {
    ASSERT_TRUE(parts.contains(prefix + "gate_up"));
    expect_gate_up(c, prefix, parts.at(prefix + "gate_up").first, parts.at(prefix + "gate_up").second);
  } else {
    for (const char* name : {"gate", "up"})
      expect_matrix(c, prefix + name, parts.at(prefix + name).first, parts.at(prefix + name).second);
  }
  expect_matrix(c, prefix + "down", parts.at(prefix + "down").first, parts.at(prefix + "down").second);
}

void expect_loaded(const CheckpointBuilder& c, const CheckingSink& sink, bool one_format) {
  EXPECT_TRUE(sink.all_committed());
  std::map<std::string, std::pair<PackedTensorInfo, const uint8_t*>> parts;
  for (const auto& [name, info] : sink.tensors) parts[name] = {info, sink.data(name)};
  for (const auto& [name, extent] : sink.extents) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(sink.data(name)) % 4096, 0u);
    EXPECT_EQ(extent.bytes % 4096, 0u);
    size_t end = 0;
    const auto expect_zero = [&](size_t to) {
      for (; end < to; end++) ASSERT_EQ(sink.data(name)[end], 0) << name << " byte " << end << " between parts";
    };
    for (const ExtentPart& part : extent.parts) {
      EXPECT_EQ(part.offset % 64, 0u);
      ASSERT_GE(part.offset, end);
      expect_zero(part.offset);
      parts[part.tensor.name] = {part.tensor, sink.data(name) + part.offset};
      end = part.offset + part.tensor.bytes();
    }
    ASSERT_LE(end, extent.bytes);
    EXPECT_LT(extent.bytes - end, 4096u);
    expect_zero(extent.bytes);
  }
  EXPECT_EQ(sink.extents.size(), 3u);
  for (const std::string prefix : {"layers.0.1.", "layers.1.1.experts.0.", "layers.1.1.experts.1.", "layers.1.1.experts.2."})
    expect_feed_forward(c, prefix, one_format, parts);
  for (const WeightEntry& entry : c.table.tensors) {
    const std::string role = entry.name.substr(entry.name.rfind('.') + 1);
    if (role == "gate" || role == "up" || role == "down") continue;
    ASSERT_TRUE(parts.contains(entry.name)) << entry.name;
    const auto& [info, data] = parts[entry.name];
    EXPECT_EQ(info.vector, entry.k == 0);
    if (entry.k == 0) {
      expect_vector(c, entry.name, reinterpret_cast<const float*>(data));
    } else {
      expect_matrix(c, entry.name, info, data);
    }
  }
}

struct Case {
  WeightFormat format, up_format;
  bool rotary;
  int threads, files;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << traits(c.format).name << " up " << traits(c.up_format).name << (c.rotary ? " rotary" : "") << " threads " << c.threads
       << " files " << c.files;
}

class LoaderFormats : public testing::TestWithParam<Case> {};

TEST_P(LoaderFormats, EqualsPacking) {
  const Case& p = GetParam();
  const int block = std::max(traits(p.format).block_k, traits(p.up_format).block_k);
  // Head sizes that put a tile in one half of a head, over two halves and over two heads; inner not a multiple of 16.
  for (const int head_dim : {128, 32, 24}) {
    const Shape shape = {256, block == 1 ? 41 : block == 32 ? 96 : 256, block == 1 ? 3 : 32, 2, head_dim, 70};
    CheckpointBuilder checkpoint(p.files, uint32_t(head_dim));
    add_tensors(checkpoint, shape, p.format, p.up_format, p.rotary);
    checkpoint.write();
    ASSERT_TRUE(check_weight_files(checkpoint.table).ok());
    const ModelSpec spec = make_spec(shape);
    auto plan = make_load_plan(checkpoint.table, spec);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    CheckingSink sink;
    const Status status = load_weights(checkpoint.table, *plan, sink, p.threads, {});
    ASSERT_TRUE(status.ok()) << status.message();
    expect_loaded(checkpoint, sink, p.format == p.up_format);
    int64_t packed = 0, source = 0;
    for (const auto& [name, info] : sink.tensors) packed += int64_t(info.bytes());
    for (const auto& [name, extent] : sink.extents) packed += int64_t(extent.bytes);
    for (const WeightEntry& entry : checkpoint.table.tensors) source += entry.bytes;
    EXPECT_EQ(plan->packed_bytes(), packed);
    EXPECT_EQ(plan->source_bytes, source);
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int f = 0; f < kWeightFormats; f++)
    for (const bool rotary : {false, true}) all.push_back({WeightFormat(f), WeightFormat(f), rotary, f % 3 + 1, f % 2 + 1});
  all.push_back({WeightFormat::kQ4_0, WeightFormat::kQ8_0, true, 2, 1});
  all.push_back({WeightFormat::kBF16, WeightFormat::kF32, false, 2, 3});
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, LoaderFormats, testing::ValuesIn(cases()));

// Tensors larger than a read buffer are packed in pieces, by several threads.
TEST(Loader, TensorsLargerThanTheBuffer) {
  const Shape shape = {512, 48, 40, 2, 128, 5003};
  CheckpointBuilder checkpoint;
  add_tensors(checkpoint, shape, WeightFormat::kF32, WeightFormat::kF32, true);
  checkpoint.write();
  ASSERT_GT(checkpoint.entry("layers.0.0.q").bytes, kLoadBufferBytes);
  ASSERT_GT(checkpoint.entry("embed").bytes, kLoadBufferBytes);
  const ModelSpec spec = make_spec(shape);
  auto plan = make_load_plan(checkpoint.table, spec);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  CheckingSink sink;
  int64_t last = 0, reports = 0;
  const Status status = load_weights(checkpoint.table, *plan, sink, 3, [&](int64_t done, int64_t total) {
    EXPECT_GT(done, last);
    EXPECT_LE(done, total);
    EXPECT_EQ(total, plan->source_bytes);
    last = done;
    reports++;
  });
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(last, plan->source_bytes);
  EXPECT_GE(reports, 1);
  expect_loaded(checkpoint, sink, true);
}

class LoaderErrors : public testing::Test {
 protected:
  void SetUp() override { add_tensors(checkpoint, shape, WeightFormat::kBF16, WeightFormat::kBF16, false); }
  Status load(int threads = 2) {
    auto plan = make_load_plan(checkpoint.table, make_spec(shape));
    return plan.ok() ? load_weights(checkpoint.table, *plan, sink, threads, {}) : plan.status();
  }
  const Shape shape = {64, 32, 2, 2, 32, 70};
  CheckpointBuilder checkpoint;
  CheckingSink sink;
};

TEST_F(LoaderErrors, TruncatedFileNamesFileAndTensor) {
  checkpoint.write();
  const WeightEntry& entry = checkpoint.entry("embed");  // the last one
  std::filesystem::resize_file(checkpoint.table.files[0], uint64_t(entry.offset + 100));
  const Status before = check_weight_files(checkpoint.table);
  EXPECT_EQ(before.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(before.message().find(checkpoint.table.files[0] + ": tensor 'source.embed' ends at byte "), std::string::npos)
      << before.message();
  for (const int threads : {1, 3}) {
    sink = {};
    const Status status = load(threads);
    EXPECT_EQ(status.code(), StatusCode::kIoError);
    EXPECT_NE(status.message().find("tensor 'source.embed' (embed): " + checkpoint.table.files[0] + ": ends at byte"),
              std::string::npos)
        << status.message();
  }
}

TEST_F(LoaderErrors, MissingFile) {
  EXPECT_EQ(check_weight_files(checkpoint.table).code(), StatusCode::kNotFound);
  EXPECT_EQ(load().code(), StatusCode::kNotFound);
}

TEST_F(LoaderErrors, ReadError) {
  checkpoint.table.files[0] = "/proc/self/mem";  // its first pages are never mapped: EIO
  for (WeightEntry& entry : checkpoint.table.tensors) entry.offset = 0;
  const Status status = load();
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_NE(status.message().find("tensor 'source."), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("/proc/self/mem"), std::string::npos) << status.message();
}

TEST_F(LoaderErrors, SinkThatRefuses) {
  checkpoint.write();
  sink.refuse_open = "layers.1.1.experts.1";
  EXPECT_EQ(load().message(), "no room for layers.1.1.experts.1");
  sink = {};
  sink.refuse_commit = "layers.0.1.gate_up";
  EXPECT_EQ(load().message(), "device lost at layers.0.1.gate_up");
}

#ifndef __SANITIZE_THREAD__  // its shadow memory is resident too, several times what it watches
// A second copy of the model would show in the peak: 96 MB of weights in a file, read by two threads.
TEST(Loader, PeakMemoryIsThePackedModel) {
  const auto status_kib = [](const std::string& key) {
    std::ifstream file("/proc/self/status");
    for (std::string line; std::getline(file, line);)
      if (line.rfind(key, 0) == 0) return std::stoll(line.substr(key.size()));
    return -1ll;
  };
  constexpr int kHidden = 2048, kVocab = 24000;
  ModelSpec spec;
  spec.hidden = kHidden, spec.vocab = kVocab, spec.max_positions = 64, spec.tied_embedding = true;
  CheckpointBuilder checkpoint;
  WeightTable table;
  table.files = checkpoint.table.files;
  table.tensors.push_back({"embed", 0, 0, int64_t(kHidden) * kVocab * 2, WeightFormat::kBF16, kVocab, kHidden, "embed", 0});
  {
    std::ofstream file(table.files[0], std::ios::binary);
    const std::string piece(1 << 20, '\x3c');
    for (int64_t written = 0; written < table.tensors[0].bytes; written += int64_t(piece.size())) file << piece;
  }
  auto plan = make_load_plan(table, spec);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts anew from what is resident now
  const int64_t limit_kib = status_kib("VmRSS:") + plan->packed_bytes() / 1024 * 11 / 10 + 2 * kLoadBufferBytes / 1024 + 16384;
  ASSERT_LT(status_kib("VmHWM:"), limit_kib) << "an earlier peak would hide this one";
  CheckingSink sink;
  ASSERT_TRUE(load_weights(table, *plan, sink, 2, {}).ok());
  EXPECT_GT(status_kib("VmHWM:"), plan->packed_bytes() / 1024);
  EXPECT_LT(status_kib("VmHWM:"), limit_kib);
}
#endif

}  // namespace
}  // namespace freetoken
