// EngineLoop: the engine thread. Takes requests from an inbox, runs one step after another, sends events.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
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
  int max_logit_rows = 64;
  int max_sequence_tokens = 0;
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
  struct LogitRow;  // one row of logits to compute and what to do with it

  void run();
  bool take_inbox();           // false: shut down
  void step();
  Status forward(const std::vector<StepItem>& items);
  Status evaluate(std::vector<LogitRow>& rows);
  void take_sample(ActiveRequest& active, const SampleResult& result);
  void take_prompt_row(ActiveRequest& active, const SampleResult& result);
  void touch(ActiveRequest& active);
  void finish(ActiveRequest& active, FinishReason reason, Status error = {});
  void flush_events();
  void fail_all(const Status& error);
  bool ends(const Request& request, int32_t token) const;

  EngineParts parts_;
  std::unique_ptr<Queue> queue_;
  Scheduler scheduler_;
  RequestLimits request_limits_;

  // Shared with callers.
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::pair<RequestId, Request>> inbox_;
  std::vector<RequestId> cancels_;
  bool stop_ = false;
  Status health_;
  EngineStats stats_;
  std::mutex join_mutex_;      // shutdown() from several threads
  RequestId next_id_ = 1;
  uint64_t next_seed_;

  // Engine thread only.
  std::unordered_map<RequestId, std::unique_ptr<ActiveRequest>> active_;
  std::vector<ActiveRequest*> touched_;
  std::vector<RequestId> finished_;
  std::vector<BatchRow> rows_;
  std::vector<BatchSequence> sequences_;
  std::vector<std::vector<const int32_t*>> page_lists_;
  std::thread thread_;
};

}  // namespace freetoken
