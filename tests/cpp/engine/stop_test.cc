// How requests end: stop strings, stop tokens, EOS, the limit; against the text of a run that does not stop.
#include <gtest/gtest.h>

#include "engine/tiny_engine.h"

namespace freetoken {
namespace {

using namespace freetoken::testing;

class EngineStop : public ::testing::Test {
 protected:
  EngineStop() : spec(llama_spec()), weights(random_weights(spec, 61, mixed_formats)) {
    request = make_request({5, 6, 7, 8}, 40, 1.2f);
    request.sampling.seed = 77;
  }
  Outcome run(const Request& r, std::vector<int32_t> eos = {}) {
    return TinyEngine(spec, weights, {.eos = std::move(eos), .ascii_only = true}).run(r);
  }
  // Text after n tokens: plain concatenation, control tokens left out.
  std::string text_of(const std::vector<int32_t>& tokens, size_t n, bool special = false) {
    const Vocab vocab = tiny_vocab(spec.vocab, true);
    std::string text;
    for (size_t i = 0; i < n; i++)
      if (special || !(vocab.flags[size_t(tokens[i])] & Vocab::kSpecial)) text += vocab.bytes[size_t(tokens[i])];
    return text;
  }

  ModelSpec spec;
  TinyWeights weights;
  Request request;
};

TEST_F(EngineStop, TextIsTheBytesOfTheTokens) {
  const Outcome o = run(request);
  EXPECT_EQ(o.finish, FinishReason::kLength);
  EXPECT_EQ(o.tokens.size(), 40u);
  EXPECT_EQ(o.text, text_of(o.tokens, 40));
  request.emit_special_tokens = true;
  EXPECT_EQ(run(request).text, text_of(o.tokens, 40, true));
}

TEST_F(EngineStop, StopStringsEndTheTextWhereTheyBegin) {
  const Outcome base = run(request);
  for (size_t begin : {1u, 10u, 21u, 40u})
    for (size_t length : {1u, 2u, 3u, 5u, 9u}) {
      Request r = request;
      const std::string stop = base.text.substr(begin, length);
      r.stop = {"never seen", stop};
      const Outcome o = run(r);
      size_t tokens = 1;
      while (text_of(base.tokens, tokens).find(stop) == std::string::npos) tokens++;
      EXPECT_EQ(o.finish, FinishReason::kStop);
      EXPECT_EQ(o.stop_match, stop);
      EXPECT_EQ(o.text, base.text.substr(0, base.text.find(stop)));
      EXPECT_EQ(o.tokens, std::vector<int32_t>(base.tokens.begin(), base.tokens.begin() + long(tokens)))
          << "nothing is generated beyond it";
    }
}

// A stop string that never completes holds back text only for a while.
TEST_F(EngineStop, HeldBackTextIsReleasedAtTheEnd) {
  const Outcome base = run(request);
  Request r = request;
  r.stop = {base.text.substr(base.text.size() - 3) + "#"};
  const Outcome o = run(r);
  EXPECT_EQ(o.finish, FinishReason::kLength);
  EXPECT_EQ(o.text, base.text);
  EXPECT_EQ(o.stop_match, "");
}

TEST_F(EngineStop, EosAndStopTokens) {
  const Outcome base = run(request);
  const int32_t last = base.tokens[12];
  const size_t first = size_t(std::find(base.tokens.begin(), base.tokens.end(), last) - base.tokens.begin());
  const std::vector<int32_t> cut(base.tokens.begin(), base.tokens.begin() + long(first) + 1);
  const Outcome eos = run(request, {99, last});
  EXPECT_EQ(eos.finish, FinishReason::kStop);
  EXPECT_EQ(eos.tokens, cut) << "the EOS token included";
  EXPECT_EQ(eos.text, text_of(cut, first)) << "its text not";
  EXPECT_EQ(eos.stop_match, "");

  Request r = request;
  r.ignore_eos = true;
  EXPECT_EQ(run(r, {99, last}).tokens, base.tokens);
  r.stop_token_ids = {last};
  const Outcome token = run(r, {});
  EXPECT_EQ(token.finish, FinishReason::kStop);
  EXPECT_EQ(token.tokens, cut);
  EXPECT_EQ(run(r, {last}).tokens, cut) << "stop_token_ids hold where EOS is ignored";
}

TEST_F(EngineStop, TheLimitIsExact) {
  const Outcome base = run(request);
  for (int n : {1, 2, 39}) {
    request.max_tokens = n;
    const Outcome o = run(request);
    EXPECT_EQ(o.finish, FinishReason::kLength);
    EXPECT_EQ(o.tokens, std::vector<int32_t>(base.tokens.begin(), base.tokens.begin() + n));
    EXPECT_EQ(o.completion_tokens, n);
    EXPECT_EQ(o.prompt_tokens, 4);
  }
}

TEST_F(EngineStop, ASequenceMayFillItsPagesExactly) {
  for (int prompt : {1, 63, 64, 127})
    for (int total : {128, 129}) {
      std::mt19937 rng(1);
      TinyEngine tiny(spec, weights, {.pages = 3, .max_sequence_tokens = 192});
      const Outcome o = tiny.run(make_request(random_prompt(prompt, rng), total - prompt));
      EXPECT_EQ(o.completion_tokens, total - prompt);
      tiny.expect_idle();
    }
}

TEST_F(EngineStop, ValidationNamesFieldAndBound) {
  TinyEngine tiny(spec, weights, {.pages = 4, .max_sequence_tokens = 300});
  struct Case {
    const char* named;
    std::function<void(Request&)> change;
  };
  const std::vector<Case> cases = {
      {"prompt is empty", [](Request& r) { r.prompt.clear(); }},
      {"131", [](Request& r) { r.prompt = {1, 131}; }},
      {"-1", [](Request& r) { r.prompt = {-1}; }},
      {"max_tokens", [](Request& r) { r.max_tokens = -1; }},
      {"max_tokens is 0", [](Request& r) { r.max_tokens = 0; }},
      {"max_tokens is 0", [](Request& r) { r.max_tokens = 0, r.logits = LogitsMode::kSampled; }},
      {"300 maximum", [](Request& r) { r.max_tokens = 297; }},
      {"300 maximum", [](Request& r) { r.max_tokens = 2147483647; }},
      {"300 maximum", [](Request& r) { r.prompt.assign(301, 1), r.max_tokens = 0, r.prompt_logprobs = true; }},
      {"256 tokens", [](Request& r) { r.max_tokens = 260; }},
      {"temperature", [](Request& r) { r.sampling.temperature = -0.1f; }},
      {"temperature", [](Request& r) { r.sampling.temperature = NAN; }},
      {"temperature", [](Request& r) { r.sampling.temperature = INFINITY; }},
      {"top_p", [](Request& r) { r.sampling.top_p = 1.01f; }},
      {"top_p", [](Request& r) { r.sampling.top_p = NAN; }},
      {"top_k", [](Request& r) { r.sampling.top_k = -1; }},
      {"logprobs", [](Request& r) { r.logprobs = -2; }},
      {"logprobs", [](Request& r) { r.logprobs = 1 << 20; }},
      {"stop[1]", [](Request& r) { r.stop = {"a", ""}; }},
      {"stop[0]", [](Request& r) { r.stop = {"\xff"}; }},
  };
  for (const Case& c : cases) {
    Request r = make_request({1, 2, 3, 4}, 10);
    c.change(r);
    RequestId id = 0;
    const Status status = tiny.engine->submit(std::move(r), &id);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.named;
    EXPECT_NE(status.message().find(c.named), std::string::npos) << status.message();
  }
  // The bounds themselves are fine.
  Request r = make_request({0, 130}, 254);
  r.logprobs = 1024, r.sampling.top_k = 1 << 30, r.sampling.top_p = 0, r.sampling.temperature = 100;
  const Outcome o = tiny.run(r);
  EXPECT_EQ(o.completion_tokens, 254);
  EXPECT_EQ(o.logprobs[0].top.size(), 128u) << "as many as can be sampled";
}

}  // namespace
}  // namespace freetoken
