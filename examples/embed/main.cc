// A host without Python: loads an FTW checkpoint and runs three requests at once.
//
//   embed DIR STOP ID...     the ids are the prompt, STOP ends the first request's text (may be "")
//
// Text in, text out needs a tokenizer, which is the host's; `ft serve` or the `tokenizers` library give the ids. The
// core turns ids into text and honours stop strings by itself.
#include <freetoken/checkpoint.h>
#include <freetoken/engine.h>

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace {

// Events come on the engine's thread. It waits for the sink, so the sink only takes notes.
class Answers final : public freetoken::EventSink {
 public:
  struct Answer {
    std::string text;
    int tokens = 0;
    freetoken::FinishReason finish = freetoken::FinishReason::kNone;
    std::string error;
  };

  void on_event(freetoken::Event&& event) override {
    const std::lock_guard lock(mutex_);
    Answer& answer = answers_[event.request];
    answer.text += event.text;
    answer.tokens = event.completion_tokens;
    answer.finish = event.finish;
    answer.error = event.error.message();
    changed_.notify_all();
  }

  // Waits until the request has `tokens` tokens or has ended.
  Answer wait(freetoken::RequestId id, int tokens) {
    std::unique_lock lock(mutex_);
    Answer& answer = answers_[id];
    changed_.wait(lock, [&] { return answer.finish != freetoken::FinishReason::kNone || answer.tokens >= tokens; });
    return answer;
  }
  Answer wait(freetoken::RequestId id) { return wait(id, 1 << 30); }

  // Prints the request's text as it comes, until it has ended. The pieces are whole UTF-8 characters.
  Answer follow(freetoken::RequestId id) {
    std::unique_lock lock(mutex_);
    Answer& answer = answers_[id];
    size_t printed = 0;
    while (answer.finish == freetoken::FinishReason::kNone || printed < answer.text.size()) {
      changed_.wait(lock, [&] {
        return answer.finish != freetoken::FinishReason::kNone || printed < answer.text.size();
      });
      const std::string piece = answer.text.substr(printed);
      printed += piece.size();
      lock.unlock();  // a slow terminal must not hold up the engine
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
      lock.lock();
    }
    return answer;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<freetoken::RequestId, Answer> answers_;
};

const char* name(freetoken::FinishReason reason) {
  switch (reason) {
    case freetoken::FinishReason::kStop: return "stop";
    case freetoken::FinishReason::kLength: return "length";
    case freetoken::FinishReason::kCancelled: return "cancelled";
    case freetoken::FinishReason::kTimeout: return "timeout";
    case freetoken::FinishReason::kError: return "error";
    default: return "none";
  }
}

[[noreturn]] void fail(const freetoken::Status& status) {
  std::fprintf(stderr, "embed: %s\n", status.message().c_str());
  std::exit(1);
}

void print(const char* label, Answers& answers, freetoken::RequestId id) {
  std::printf("%s: ", label);
  const Answers::Answer answer = answers.follow(id);
  std::printf("\n%s [%s, %d tokens]%s%s\n", label, name(answer.finish), answer.tokens, answer.error.empty() ? "" : " ",
              answer.error.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: embed DIR STOP ID...\n");
    return 2;
  }
  freetoken::LoadOptions options;
  if (auto status = freetoken::read_checkpoint(argv[1], &options, nullptr); !status.ok()) fail(status);
  options.max_sequence_tokens = 1024;
  options.kv_tokens = 4096;
  // The plan says what load() would take, before it takes it.
  freetoken::MemoryPlan plan;
  if (auto status = freetoken::plan_memory(options, &plan); !status.ok()) fail(status);
  std::printf("memory: %lld MB\n", static_cast<long long>(plan.total_bytes >> 20));

  auto answers = std::make_shared<Answers>();
  std::unique_ptr<freetoken::Engine> engine;
  if (auto status = freetoken::Engine::load(std::move(options), answers, &engine); !status.ok()) fail(status);

  freetoken::Request request;
  for (int i = 3; i < argc; i++) {
    char* end = nullptr;
    const long token = std::strtol(argv[i], &end, 10);
    if (end == argv[i] || *end || token < 0 || token > INT32_MAX) {
      std::fprintf(stderr, "embed: \"%s\" is not a token id\n", argv[i]);
      return 2;
    }
    request.prompt.push_back(int32_t(token));
  }
  request.max_tokens = 48;
  request.sampling.temperature = 0;

  auto submit = [&](const freetoken::Request& r) {
    freetoken::RequestId id = 0;
    if (auto status = engine->submit(r, &id); !status.ok()) fail(status);
    return id;
  };
  freetoken::Request stopped = request, endless = request;
  if (*argv[2]) stopped.stop = {argv[2]};
  endless.max_tokens = 900;
  endless.ignore_eos = true;
  const freetoken::RequestId first = submit(stopped), second = submit(request), third = submit(endless);

  answers->wait(third, 5);
  engine->cancel(third);
  print("first", *answers, first);
  print("second", *answers, second);
  const Answers::Answer cancelled = answers->wait(third);
  std::printf("third [%s]\n", name(cancelled.finish));

  const freetoken::EngineStats stats = engine->stats();
  const bool idle = stats.running == 0 && stats.waiting == 0 && stats.kv_pages_used == stats.kv_pages_cached;
  engine->shutdown();
  return idle && cancelled.finish == freetoken::FinishReason::kCancelled ? 0 : 1;
}
