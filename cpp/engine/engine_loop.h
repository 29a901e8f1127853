// EngineLoop: the engine thread. Takes requests from an inbox, runs one step after another, sends events.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/active_request.h"
#include "engine/validate.h"
#include "freetoken/engine.h"
#include "model/model.h"
#include "ops/ops.h"
#include "sched/scheduler.h"

namespace freetoken {

struct EngineParts {
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Model> model;
  Vocab vocab;
  std::vector<int32_t> eos_token_ids;
  SchedulerLimits limits;
  KvCacheOptions kv;
  int max_queued = 1024;
  int max_logit_rows = 64;
  int max_sequence_tokens = 0;
  bool drafts = true;
  std::shared_ptr<EventSink> sink;
};

class EngineLoop final : public Engine {
 public:
  explicit EngineLoop(EngineParts parts);
  ~EngineLoop() override { shutdown(); }

  Status submit(Request request, RequestId* id) override;
  void cancel(RequestId id) override;
  EngineStats stats() const override;
  Status health() const override;
  void shutdown() override;

 private:
  struct Incoming {
    RequestId id;
    Request request;
    int64_t deadline_us;
  };
  // One row of logits to compute and what to do with it.
  struct LogitRow {
    Choice* choice = nullptr;
    int32_t row = 0;        // of the batch
    int32_t position = 0;
    bool draw = false;      // sample the next token; else only report about the prompt's next token
  };

  void run();
  bool take_inbox();           // false: shut down
  void start(Incoming incoming);
  void step();
  void propose_drafts();
  void random_drafts(Choice& choice, int most);
  void prepare();              // page copies and sampler slots of the composed step
  // Runs units [first, last) of the items' rows; after the last unit also logits and samples. Does not advance anything.
  Status run_batch(Lane lane, std::span<const StepItem> items, int first, int last);
  void make_batch(std::span<const StepItem> items, bool ends);
  void evaluate(Lane lane);
  void take_results(std::span<const StepItem> items);
  void take_row(const LogitRow& row, const SampleResult& result, const float* logits);
  void take_token(Choice& choice, const SampleResult& result);
  // known: tokens of the sequence before the step.
  void end_item(const StepItem& item, int accepted, int known);
  void touch(Choice& choice);
  void finish(Choice& choice, FinishReason reason, Status error = {});
  void finish_all(ActiveRequest& active, FinishReason reason, const Status& error = {});
  void expire();
  void flush_events();
  void fail_all(const Status& error);
  void refresh_counters();     // what scheduler and cache count
  void publish_stats();        // counters_ for callers

  EngineParts parts_;
  std::unique_ptr<Queue> queue_;
  Scheduler scheduler_;
  RequestLimits request_limits_;
  int64_t kv_capacity_tokens_ = 0;

  // Shared with callers.
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Incoming> inbox_;
  std::vector<RequestId> cancels_;
  bool stop_ = false;
  Status health_;
  EngineStats stats_;
  std::mutex join_mutex_;      // shutdown() from several threads
  RequestId next_id_ = 1;
  uint64_t next_seed_;

  // Engine thread only.
  std::unordered_map<RequestId, std::unique_ptr<ActiveRequest>> active_;
  std::set<std::pair<int64_t, RequestId>> deadlines_;  // (us, request)
  std::vector<Choice*> touched_;
  std::vector<Choice*> finished_;
  uint64_t next_arrival_ = 1;
  std::mt19937_64 chaos_;
  EngineStats counters_;       // what stats_ is copied from, once or twice a step

  // Of one batch; members so that a steady step allocates nothing.
  std::vector<BatchRow> rows_;
  std::vector<BatchSequence> sequences_;
  std::vector<std::vector<const int32_t*>> page_lists_;
  std::vector<LogitRow> logit_rows_;
  std::vector<int32_t> picked_;
  std::vector<SampleRow> sample_rows_;
  std::vector<SampleResult> results_;
  std::vector<float> logits_;          // [logit_rows_, vocab] when some request asks for them
  bool read_logits_ = false;
  std::thread thread_;
};

}  // namespace freetoken
