#include "cuda/runtime/mailbox_server.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <string>

namespace freetoken::cuda {
namespace {

uint32_t acquire(const uint32_t* flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }

// Between two layers of a step posts come within microseconds; between steps nobody should pay for looking.
void pause(int looks) {
  if (looks < 1000) return std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::microseconds(looks < 2000 ? 20 : 200));
}

}  // namespace

MailboxServer::MailboxServer(MailboxView* mailbox, ExpertResolver* resolver)
    : mailbox_(mailbox), resolver_(resolver), thread_([this] { serve(); }) {}

MailboxServer::~MailboxServer() {
  shut_down_ = true;
  stop_ = true;
  thread_.join();
}

void MailboxServer::serve() {
  uint32_t seen = 0;
  for (int looks = 0;; looks = std::min(looks + 1, 2000)) {
    const bool last = stop_;  // looked at before the post: what was posted by then is answered
    const uint32_t posted = acquire(&mailbox_->posted);
    if (posted != seen) {
      seen = posted;
      looks = 0;
      release();  // a stream posts when it has read what came before
      answer(posted);
    }
    if (held_layer_ >= 0 && acquire(&mailbox_->released) == seen) release();
    if (last) break;
    pause(looks);
  }
  release();
}

void MailboxServer::answer(uint32_t call) {
  const int layer = mailbox_->layer;
  const std::span<const int32_t> experts(mailbox_->expert, size_t(mailbox_->count));
  if (shut_down_) {
    fail(call, Cancelled("the device is shut down"));
    std::fill_n(mailbox_->address, experts.size(), 0);
  } else {
    resolver_->post(layer, experts);
    held_layer_ = layer;
    for (size_t i = 0; i < experts.size(); i++) {
      const ExpertAnswer got = resolver_->wait(layer, experts[i]);
      const bool there = got.kind == ExpertAnswer::Kind::kAddress && got.address != 0;
      mailbox_->address[i] = there ? got.address : 0;
      if (there) continue;
      const std::string which = "expert " + std::to_string(experts[i]) + " of layer " + std::to_string(layer);
      if (got.kind == ExpertAnswer::Kind::kFailed && !got.error.ok())
        fail(call, got.error);
      else if (got.kind == ExpertAnswer::Kind::kComputeHere)
        fail(call, Unsupported(which + " is to be computed by the host, which a GPU cannot ask for"));
      else
        fail(call, Internal(which + " has no address"));
    }
  }
  mailbox_->answer_to = call;
  __atomic_store_n(&mailbox_->answered, 1, __ATOMIC_RELEASE);
}

void MailboxServer::release() {
  if (held_layer_ >= 0) resolver_->release(held_layer_);
  held_layer_ = -1;
}

void MailboxServer::fail(uint32_t call, Status status) {
  const std::lock_guard lock(mutex_);
  errors_.emplace_back(call, std::move(status));
}

Status MailboxServer::take_error(uint64_t through_call) {
  const std::lock_guard lock(mutex_);
  Status first;
  std::erase_if(errors_, [&](const std::pair<uint32_t, Status>& error) {
    if (int32_t(uint32_t(through_call) - error.first) < 0) return false;
    if (first.ok()) first = error.second;
    return true;
  });
  if (const uint32_t fault = acquire(&mailbox_->fault); fault != 0 && int32_t(uint32_t(through_call) - fault) >= 0) {
    __atomic_store_n(&mailbox_->fault, 0, __ATOMIC_RELAXED);
    if (first.ok()) first = Internal("experts were answered for another call than the device's");
  }
  return first;
}

}  // namespace freetoken::cuda
