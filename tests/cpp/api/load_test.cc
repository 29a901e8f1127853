// Engine::load from files: the same answers as an engine put together by hand, and every mistake a Status.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "api/checkpoint_files.h"
#include "platform/topology.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

class Load : public ::testing::Test {
 protected:
  Load()
      : spec(moe_spec()),
        weights(random_weights(spec, 83, mixed_formats)),
        files(spec, weights),
        options(files.options) {}
  Status load(LoadOptions o) {
    const Status status = Engine::load(std::move(o), std::make_shared<CollectingSink>(), &engine);
    if (!status.ok()) {
      EXPECT_FALSE(status.message().empty());
      EXPECT_EQ(engine, nullptr);
    }
    return status;
  }
  void expect_refused(const LoadOptions& o, StatusCode code, const std::string& named) {
    const Status status = load(o);
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(named), std::string::npos) << status.message() << " does not say " << named;
  }
  static void replace(std::string& text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  }

  ModelSpec spec;
  TinyWeights weights;
  CheckpointFiles files;
  LoadOptions options;
  std::unique_ptr<Engine> engine;
};

TEST_F(Load, AnswersAsAnEngineMadeByHand) {
  std::mt19937 rng(1);
  const Request request = [&] {
    Request r = make_request(random_prompt(90, rng), 20);
    r.logits = LogitsMode::kAll;
    return r;
  }();
  const Outcome expected = TinyEngine(spec, weights, {.threads = 1}).run(request);
  std::vector<std::pair<int64_t, int64_t>> progress;
  options.progress = [&](const std::string&, int64_t done, int64_t total) { progress.push_back({done, total}); };
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(Engine::load(options, sink, &engine).ok());
  RequestId id = 0;
  ASSERT_TRUE(engine->submit(request, &id).ok());
  const Outcome o = sink->wait(id);
  EXPECT_EQ(o.tokens, expected.tokens);
  EXPECT_EQ(o.logits, expected.logits);
  EXPECT_EQ(o.text, expected.text);
  ASSERT_FALSE(progress.empty());
  EXPECT_EQ(progress.back().first, progress.back().second);
  EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
  EXPECT_EQ(engine->stats().kv_pages_total, 32) << "16 in each of two groups: everything, and a window";
  EXPECT_EQ(engine->stats().threads, 2);
}

TEST_F(Load, BadSpecs) {
  for (const char* json : {"", "{", "[]", "null", "\"x\"", "{}", "{\"hidden\":64}"}) {
    LoadOptions o = options;
    o.model_spec_json = json;
    EXPECT_EQ(load(o).code(), StatusCode::kInvalidArgument) << json;
    std::string canonical;
    EXPECT_EQ(check_model_spec(json, &canonical).code(), StatusCode::kInvalidArgument) << json;
  }
  LoadOptions o = options;
  replace(o.model_spec_json, "\"hidden\":64", "\"hidden\":64,\"hiden\":64");
  expect_refused(o, StatusCode::kInvalidArgument, "hiden");
  o = options;
  replace(o.model_spec_json, "\"hidden\":64", "\"hidden\":-64");
  expect_refused(o, StatusCode::kInvalidArgument, "hidden");
  o = options;
  replace(o.model_spec_json, "\"hidden\":64", "\"hidden\":96");
  expect_refused(o, StatusCode::kInvalidArgument, "[131, 96]");
  o = options;
  ModelSpec softcapped = spec;
  softcapped.layers[0].sublayers[0].attention.softcap = 30;
  o.model_spec_json = model_spec_to_json(softcapped);
  expect_refused(o, StatusCode::kUnsupported, "attention.softcap");
}

TEST_F(Load, BadTables) {
  for (const char* json : {"", "{", "{}", "[]", "{\"files\":[],\"tensors\":[]}"}) {
    LoadOptions o = options;
    o.weight_table_json = json;
    EXPECT_EQ(load(o).code(), StatusCode::kInvalidArgument) << json;
  }
  LoadOptions o = options;
  replace(o.weight_table_json, "\"name\":\"embed\"", "\"name\":\"embedding\"");
  expect_refused(o, StatusCode::kInvalidArgument, "embed");
  o = options;
  replace(o.weight_table_json, "weights.bin", "missing.bin");
  EXPECT_FALSE(load(o).ok());
  EXPECT_NE(load(o).message().find("missing.bin"), std::string::npos);
  std::filesystem::resize_file(files.path(), std::filesystem::file_size(files.path()) - 1);
  EXPECT_FALSE(load(options).ok());
  EXPECT_NE(load(options).message().find("weights.bin"), std::string::npos);
}

TEST_F(Load, BadOptions) {
  struct Case {
    const char* named;
    std::function<void(LoadOptions&)> change;
  };
  const std::vector<Case> cases = {
      {"threads", [](LoadOptions& o) { o.threads = -1; }},
      {"threads", [](LoadOptions& o) { o.threads = 1 << 20; }},
      {"threads is", [](LoadOptions& o) { o.threads = 4 * std::max(read_topology().usable_cores, 2) + 1; }},
      {"max_running_requests", [](LoadOptions& o) { o.max_running_requests = 0; }},
      {"max_batch_tokens", [](LoadOptions& o) { o.max_batch_tokens = 0; }},
      {"max_batch_tokens", [](LoadOptions& o) { o.max_batch_tokens = 1 << 30; }},
      {"max_sequence_tokens", [](LoadOptions& o) { o.max_sequence_tokens = 1025; }},
      {"max_sequence_tokens", [](LoadOptions& o) { o.max_sequence_tokens = -5; }},
      {"100 tokens", [](LoadOptions& o) { o.kv_tokens = 100; }},
      {"kv_tokens", [](LoadOptions& o) { o.kv_tokens = -1; }},
      {"memory_limit_bytes", [](LoadOptions& o) { o.memory_limit_bytes = -1; }},
      {"EOS token 131", [](LoadOptions& o) { o.eos_token_ids = {3, 131}; }},
      {"EOS token -1", [](LoadOptions& o) { o.eos_token_ids = {-1}; }},
      {"130 flags", [](LoadOptions& o) { o.vocab.flags.pop_back(); }},
  };
  for (const Case& c : cases) {
    LoadOptions o = options;
    c.change(o);
    expect_refused(o, StatusCode::kInvalidArgument, c.named);
  }
  LoadOptions o = options;
  o.memory_limit_bytes = 1 << 20;
  expect_refused(o, StatusCode::kResourceExhausted, "1.0 MiB");
  o = options;
  o.kv_tokens = int64_t(1) << 36;
  expect_refused(o, StatusCode::kResourceExhausted, "--num-tokens");
}

TEST_F(Load, AThrowingProgressIsAStatus) {
  options.progress = [](const std::string&, int64_t, int64_t) { throw std::runtime_error("progress failed"); };
  const Status status = load(options);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("progress failed"), std::string::npos) << status.message();
}

TEST_F(Load, ThePlanIsWhatIsLoaded) {
  MemoryPlan plan;
  ASSERT_TRUE(plan_memory(options, &plan).ok());
  int64_t sum = 0, weight_rows = 0;
  for (const PlanRow& row : plan.rows) {
    sum += row.bytes;
    if (row.what == "dense weights" || row.what == "experts" || row.what == "embeddings") weight_rows += row.bytes;
  }
  EXPECT_EQ(sum, plan.total_bytes);
  EXPECT_EQ(plan.kv_tokens, 1024);
  EXPECT_EQ(plan.max_sequence_tokens, 256);
  EXPECT_EQ(plan.available_bytes, int64_t(1) << 30);
  ASSERT_TRUE(load(options).ok());
  EXPECT_EQ(engine->stats().weight_bytes, weight_rows);
  options.memory_limit_bytes = 1;
  EXPECT_EQ(plan_memory(options, &plan).code(), StatusCode::kResourceExhausted);
  EXPECT_GT(plan.total_bytes, 1) << "filled all the same";
}

// Odd shapes and a tied embedding, from a file in fp32, with as little as may be asked for.
TEST_F(Load, TheSmallestEngine) {
  const ModelSpec odd = odd_spec();
  const TinyWeights w = random_weights(odd, 5, [](const std::string&) { return WeightFormat::kF32; });
  CheckpointFiles small(odd, w);
  small.options.threads = 1, small.options.max_running_requests = 1, small.options.max_batch_tokens = 1;
  small.options.max_sequence_tokens = 64, small.options.kv_tokens = 64;
  small.options.kv_dtype = KvDType::kF32, small.options.activations = ActivationMode::kFloat32;
  auto sink = std::make_shared<CollectingSink>();
  const Status status = Engine::load(small.options, sink, &engine);
  ASSERT_TRUE(status.ok()) << status.message();
  const Request request = make_request({1, 2, 3, 4, 5}, 59);
  RequestId id = 0;
  ASSERT_TRUE(engine->submit(request, &id).ok());
  const Outcome expected = TinyEngine(odd, w, {.float32 = true, .kv_dtype = DType::kF32}).run(request);
  EXPECT_EQ(sink->wait(id).tokens, expected.tokens);
  EXPECT_EQ(expected.tokens.size(), 59u);
}

// Damaged JSON: an answer, never an exception, a crash or a huge allocation.
TEST_F(Load, RandomDamageIsNeverMoreThanAStatus) {
  std::mt19937 rng(11);
  const std::string values[] = {"-1", "0",    "1e30", "2147483648", "9223372036854775807", "null", "[]",
                                "{}", "\"\"", "true", "1.5"};
  int refused = 0;
  for (int round = 0; round < 600; round++) {
    LoadOptions o = options;
    std::string& text = round % 2 ? o.model_spec_json : o.weight_table_json;
    for (int edits = 1 + int(rng() % 3); edits-- > 0;) {
      const size_t at = rng() % text.size();
      const unsigned kind = unsigned(rng() % 4);
      if (kind == 0) text[at] = char(rng());
      if (kind == 1) text.erase(at, 1 + rng() % 8);
      if (kind == 2) text.insert(at, text.substr(rng() % text.size(), rng() % 20));
      if (kind == 3) {  // another value for a number
        const size_t digit = text.find_first_of("0123456789", at);
        if (digit == std::string::npos) continue;
        const size_t end = text.find_first_not_of("0123456789.e-", digit);
        text.replace(digit, std::min(end, text.size()) - digit, values[rng() % std::size(values)]);
      }
      if (text.empty()) text.assign(1, 'x');
    }
    MemoryPlan plan;
    std::string canonical;
    EXPECT_NO_THROW({
      refused += !plan_memory(o, &plan).ok();
      (void)check_model_spec(o.model_spec_json, &canonical).ok();
    });
  }
  EXPECT_GT(refused, 400);
  std::string canonical;
  EXPECT_FALSE(check_model_spec(std::string(1 << 20, '['), &canonical).ok());
}

}  // namespace
}  // namespace freetoken
