// Streams, events, graphs and the operations in them. All are guarded by the scheduler's mutex.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "emulator/runtime_api.h"

namespace freetoken::emu {

using Clock = std::chrono::steady_clock;

struct Event {
  int device = 0;
  bool timed = true;
  uint64_t recorded = 0, reached = 0;  // generations: by cudaEventRecord, by the device
  Clock::time_point time;              // of `reached`
  uint64_t capture = 0;                // last recorded into this capture, after these nodes
  std::vector<size_t> captured_after;
};

struct GraphRun;
struct GraphExec;

struct Operation {
  enum class Kind : uint8_t { kRun, kHostFunction, kRecord, kWaitEvent, kWaitValue, kGraph };
  Kind kind = Kind::kRun;
  const char* what = "";
  std::function<void()> run;     // kRun, kHostFunction
  std::shared_ptr<Event> event;  // kRecord, kWaitEvent
  uint64_t generation = 0;
  const volatile uint32_t* address = nullptr;  // kWaitValue
  uint32_t value = 0;
  unsigned compare = 0;
  std::shared_ptr<GraphExec> graph;  // kGraph
  uint64_t issued = 0;               // counts over all streams
};

struct Graph {
  struct Node {
    Operation operation;
    std::vector<size_t> after;
  };
  int device = 0;
  std::vector<Node> nodes;
};

struct GraphExec {
  std::shared_ptr<const Graph> graph;
  bool running = false;  // launches of one executable graph do not overlap
};

// A graph at the head of a stream.
struct GraphRun {
  std::vector<size_t> waits_for;  // nodes that must end first, by node
  std::vector<bool> started;
  size_t left = 0;
};

// The scheduler shares streams with the handles of the host: a destroyed one still does what was issued.
struct Stream {
  int device = 0, number = 0, priority = 0;
  bool null_stream = false;
  bool blocking = true;  // ordered with the null stream
  bool destroyed = false;
  std::deque<Operation> queue;
  bool busy = false;  // the head runs
  std::unique_ptr<GraphRun> graph_run;
  uint64_t issued = 0, completed = 0;  // operations of this stream
  uint64_t capture = 0;                // its number while captured into
  std::vector<size_t> capture_tail;
};

struct Capture {
  uint64_t number = 0;
  std::shared_ptr<Stream> origin;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  cudaError_t broken = cudaSuccess;
  Graph graph;
};

}  // namespace freetoken::emu

struct CUstream_st {
  std::shared_ptr<freetoken::emu::Stream> stream;
};
struct CUevent_st {
  std::shared_ptr<freetoken::emu::Event> event;
};
struct CUgraph_st {
  std::shared_ptr<const freetoken::emu::Graph> graph;
};
struct CUgraphExec_st {
  std::shared_ptr<freetoken::emu::GraphExec> exec;
};
