// MailboxServer: the thread that answers what a device posts to its mailbox, by asking an ExpertResolver.
//
// The stream: admission (posts) -> wait for `answered` -> gather -> release. All calls of one stream share one mailbox,
// since each has read its answers before the next one posts.
#pragma once
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/status.h"
#include "cuda/kernels/expert_admission.h"
#include "ops/experts.h"

namespace freetoken::cuda {

class MailboxServer {
 public:
  // The mailbox is zeroed pinned memory. Both outlive the server.
  MailboxServer(MailboxView* mailbox, ExpertResolver* resolver);
  // Nothing may be posted any more: the stream is synchronized.
  ~MailboxServer();
  MailboxServer(const MailboxServer&) = delete;

  // From now on every post fails at once, so that the stream comes to its end. What the resolver was asked before is
  // waited for.
  void shut_down() { shut_down_ = true; }
  // The first failure in a call of at most this number; it and later ones up to there are forgotten.
  Status take_error(uint64_t through_call);
  ExpertResolver* resolver() const { return resolver_; }

 private:
  void serve();
  void answer(uint32_t call);
  void fail(uint32_t call, Status status);
  void release();

  MailboxView* mailbox_;
  ExpertResolver* resolver_;
  std::atomic<bool> stop_{false}, shut_down_{false};
  std::mutex mutex_;
  std::vector<std::pair<uint32_t, Status>> errors_;
  int held_layer_ = -1;  // posted to the resolver and not yet released
  std::thread thread_;
};

}  // namespace freetoken::cuda
