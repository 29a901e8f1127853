// A small mailbox: a kernel posts a request to pinned memory, a host thread answers, the stream waits for the answer;
// with stream memory operations, in a captured graph, and with a host function where those are missing.
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "cuda/emulator_test/support.h"
#include "cuda/kernels/device.h"

namespace freetoken::cuda {
namespace {

struct Box {
  uint32_t posted, request, answer, answered;
};

__global__ void post(Box* box, const uint32_t* step) {
  box->request = *step * 10;
  store_release_system(&box->posted, *step);
}
__global__ void take(Box* box, uint32_t* out, uint32_t* step) {
  out[*step - 1] = box->answer;
  box->answer = ~0u;
  *step += 1;
}

using WaitValue = int (*)(cudaStream_t, unsigned long long, unsigned, unsigned);
WaitValue wait_value() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  EXPECT_EQ(cudaGetDriverEntryPoint("cuStreamWaitValue32", &function, 0, &found), cudaSuccess);
  return reinterpret_cast<WaitValue>(function);
}

// Answers request r with r + 1, on a thread of its own.
class Host {
 public:
  explicit Host(Box* box, int answers_per_request = 1)
      : thread_([this, box, answers_per_request] {
          for (uint32_t seen = 0; !stop_;) {
            const uint32_t posted = __atomic_load_n(&box->posted, __ATOMIC_ACQUIRE);
            if (posted == seen) {
              std::this_thread::yield();
              continue;
            }
            for (int i = 0; i < answers_per_request; i++) {
              box->answer = box->request + 1;
              __atomic_fetch_add(&box->answered, 1, __ATOMIC_RELEASE);
            }
            seen = posted;
          }
        }) {}
  ~Host() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Four steps: each posts, waits until the host has answered that often, and takes. By a graph where `captured`.
std::vector<uint32_t> four_steps(int answers_per_request, bool captured) {
  Pinned<Box> box(1);
  *box.p = {};
  Device<uint32_t> out(4), step(std::vector<uint32_t>{1});
  Host host(box.p, answers_per_request);
  Streams s;
  const WaitValue wait = wait_value();
  const auto issue = [&](uint32_t answered) {
    FT_LAUNCH((post), dim3(1), dim3(1), 0, s.a, box.p, step.p);
    EXPECT_EQ(wait(s.a, reinterpret_cast<unsigned long long>(&box.p->answered), answered, 1),
              0);  // equal, not at least
    FT_LAUNCH((take), dim3(1), dim3(1), 0, s.a, box.p, out.p, step.p);
  };
  for (uint32_t i = 1; i <= 4; i++) {
    if (!captured) {
      issue(i);
      continue;
    }
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    EXPECT_EQ(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    issue(i);
    EXPECT_EQ(cudaStreamEndCapture(s.a, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(exec, s.a), cudaSuccess);
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  EXPECT_EQ(cudaStreamSynchronize(s.a), cudaSuccess);
  return out.get();
}

const std::vector<uint32_t> kAnswers = {11, 21, 31, 41};

TEST(Mailbox, AnsweredByAThreadWhileTheStreamWaits) { EXPECT_EQ(four_steps(1, false), kAnswers); }
TEST(Mailbox, InACapturedGraph) { EXPECT_EQ(four_steps(1, true), kAnswers); }

TEST(SeededBugs, MailboxAnsweredNever) {
  FT_EXPECT_DEATH(
      {
        emu::options().stuck_ms = 300;
        four_steps(0, false);
      },
      "waits for the value 1 at .* which holds 0");
}
TEST(SeededBugs, MailboxAnsweredTwice) {
  FT_EXPECT_DEATH(
      {
        emu::options().stuck_ms = 300;
        four_steps(2, false);
      },
      "waits for the value [0-9] at");
}

TEST(SeededBugs, HostFunctionWaitsForAnAnswerThatNeverComes) {
  FT_EXPECT_DEATH(
      {
        emu::options().stuck_ms = 300;
        cudaLaunchHostFunc(
            nullptr,
            [](void*) {
              for (;;) std::this_thread::yield();
            },
            nullptr);
        cudaDeviceSynchronize();
      },
      "cudaLaunchHostFunc, which runs");
}

TEST(Mailbox, WithoutMemoryOperationsAHostFunctionWaits) {
  emu::options().stream_memory_operations = false;
  EXPECT_EQ(wait_value(), nullptr);
  emu::options().stream_memory_operations = true;
  Pinned<Box> box(1);
  *box.p = {};
  Device<uint32_t> out(4), step(std::vector<uint32_t>{1});
  Host host(box.p);
  Streams s;
  for (uint32_t i = 1; i <= 4; i++) {
    FT_LAUNCH((post), dim3(1), dim3(1), 0, s.a, box.p, step.p);
    FT_OK(cudaLaunchHostFunc(
        s.a,
        [](void* user) {
          auto* b = static_cast<Box*>(user);
          while (int32_t(__atomic_load_n(&b->answered, __ATOMIC_ACQUIRE) - b->posted) < 0) std::this_thread::yield();
        },
        box.p));
    FT_LAUNCH((take), dim3(1), dim3(1), 0, s.a, box.p, out.p, step.p);
  }
  FT_OK(cudaStreamSynchronize(s.a));
  EXPECT_EQ(out.get(), kAnswers);
}

}  // namespace
}  // namespace freetoken::cuda
