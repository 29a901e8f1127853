#include "weights/loader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "platform/file.h"
#include "weights/pack_rows.h"

namespace freetoken {
namespace {

constexpr int64_t kProgressIntervalUs = 50'000;

// A piece of work: some tiles of one tensor, or a vector; or, of a packed item, one buffer's worth of bytes.
struct Task {
  int item, tensor;
  int begin, end;  // tiles; buffers
  int64_t source_bytes;
};

// An item between its first task and its last.
struct OpenItem {
  std::atomic<uint8_t*> data{nullptr};
  std::atomic<int> tasks_left{0};
};

class Loader {
 public:
  Loader(const WeightTable& table, const LoadPlan& plan, WeightSink& sink, const LoadProgress& progress)
      : table_(table), plan_(plan), sink_(sink), progress_(progress), open_(plan.items.size()) {}

  Status run(int threads) {
    for (const std::string& path : table_.files) {
      FT_ASSIGN_OR_RETURN(File file, File::open(path));
      files_.push_back(std::move(file));
    }
    make_tasks();
    threads = std::clamp(threads, 1, int(std::max<size_t>(1, tasks_.size())));
    std::vector<std::thread> workers;
    for (int t = 1; t < threads; t++) workers.emplace_back([this] { work(); });
    work();
    for (std::thread& worker : workers) worker.join();
    if (status_.ok() && progress_) progress_(plan_.source_bytes, plan_.source_bytes);
    return status_;
  }

 private:
  void make_tasks() {
    for (size_t i = 0; i < plan_.items.size(); i++) {
      const std::vector<LoadTensor>& tensors = plan_.items[i].tensors;
      const size_t before = tasks_.size();
      if (plan_.items[i].packed_file >= 0) {
        const int64_t bytes = plan_.items[i].packed_bytes();
        for (int64_t at = 0, b = 0; at < bytes; at += kLoadBufferBytes, b++)
          tasks_.push_back({int(i), 0, int(b), int(b) + 1, std::min(kLoadBufferBytes, bytes - at)});
        open_[i].tasks_left = int(tasks_.size() - before);
        continue;
      }
      for (size_t t = 0; t < tensors.size(); t++) {
        const LoadTensor& tensor = tensors[t];
        const int tiles = tensor.info.vector ? 1 : tile_count(tensor.info.n);
        const int step = tensor.info.vector ? 1 : tiles_per_read(tensor);
        const int64_t bytes = tensor.first->bytes + (tensor.second ? tensor.second->bytes : 0);
        for (int begin = 0; begin < tiles; begin += std::min(step, tiles - begin)) {
          const int end = begin + std::min(step, tiles - begin);
          // Shares that add up to all bytes; the product stays below 2^63 in 128 bits only.
          const auto share = [&](int tile) { return int64_t(__int128(bytes) * tile / tiles); };
          tasks_.push_back({int(i), int(t), begin, end, share(end) - share(begin)});
        }
      }
      open_[i].tasks_left = int(tasks_.size() - before);
    }
  }

  void work() {
    try {
      std::vector<uint8_t> buffer;
      while (!failed_) {
        const size_t next = next_.fetch_add(1);
        if (next >= tasks_.size()) return;
        if (const Status status = run_task(tasks_[next], &buffer); !status.ok()) return fail(status);
        report(tasks_[next].source_bytes);
      }
    } catch (const std::exception& e) {
      fail(ResourceExhausted(std::string("loading weights: ") + e.what()));
    }
  }

  Status run_task(const Task& task, std::vector<uint8_t>* buffer) {
    const LoadItem& item = plan_.items[size_t(task.item)];
    const LoadTensor& tensor = item.tensors[size_t(task.tensor)];
    OpenItem& open = open_[size_t(task.item)];
    FT_ASSIGN_OR_RETURN(uint8_t* data, open_item(item, open));
    if (item.packed_file >= 0) {
      const int64_t at = task.begin * kLoadBufferBytes;
      const File& file = files_[size_t(item.packed_file)];
      FT_RETURN_IF_ERROR(file.pread_full(data + at, size_t(task.source_bytes), item.packed_offset + at));
      return close_task(item, open);
    }
    if (item.is_extent) data += item.extent.parts[size_t(task.tensor)].offset;
    if (tensor.info.vector) {
      FT_RETURN_IF_ERROR(pack_vector(tensor, files_, reinterpret_cast<float*>(data), buffer));
    } else {
      FT_RETURN_IF_ERROR(pack_tiles(tensor, files_, task.begin, task.end, data, buffer));
    }
    return close_task(item, open);
  }

  Status close_task(const LoadItem& item, OpenItem& open) {
    if (open.tasks_left.fetch_sub(1) > 1) return {};
    const std::lock_guard lock(sink_mutex_);
    return item.is_extent ? sink_.commit_extent(item.extent) : sink_.commit(item.tensors[0].info);
  }

  Result<uint8_t*> open_item(const LoadItem& item, OpenItem& open) {
    if (uint8_t* data = open.data.load(std::memory_order_acquire)) return data;
    const std::lock_guard lock(sink_mutex_);
    if (uint8_t* data = open.data.load(std::memory_order_relaxed)) return data;
    FT_ASSIGN_OR_RETURN(uint8_t* data, item.is_extent ? sink_.open_extent(item.extent) : sink_.open(item.tensors[0].info));
    if (item.is_extent && item.packed_file < 0) clear_gaps(item.extent, data);
    open.data.store(data, std::memory_order_release);
    return data;
  }

  static void clear_gaps(const ExtentInfo& extent, uint8_t* data) {
    size_t end = 0;
    for (const ExtentPart& part : extent.parts) {
      std::memset(data + end, 0, part.offset - end);
      end = part.offset + part.tensor.bytes();
    }
    std::memset(data + end, 0, extent.bytes - end);
  }

  void fail(const Status& status) {
    const std::lock_guard lock(sink_mutex_);
    if (status_.ok()) status_ = status;
    failed_ = true;
  }

  void report(int64_t bytes) {
    const int64_t done = done_bytes_.fetch_add(bytes) + bytes;
    if (!progress_) return;
    const std::unique_lock lock(progress_mutex_, std::try_to_lock);
    const int64_t now = now_us();
    if (!lock || now - last_report_us_ < kProgressIntervalUs || done <= last_done_ || done >= plan_.source_bytes) return;
    last_report_us_ = now;
    last_done_ = done;
    progress_(done, plan_.source_bytes);
  }

  const WeightTable& table_;
  const LoadPlan& plan_;
  WeightSink& sink_;
  const LoadProgress& progress_;
  std::vector<File> files_;
  std::vector<Task> tasks_;
  std::vector<OpenItem> open_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::atomic<int64_t> done_bytes_{0};
  std::mutex sink_mutex_, progress_mutex_;
  Status status_;
  int64_t last_report_us_ = 0, last_done_ = -1;
};

}  // namespace

Status load_weights(const WeightTable& table, const LoadPlan& plan, WeightSink& sink, int threads,
                    const LoadProgress& progress) {
  return Loader(table, plan, sink, progress).run(threads);
}

}  // namespace freetoken
