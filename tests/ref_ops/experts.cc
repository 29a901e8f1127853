// Routing and experts: each expert by itself as its answer arrives, results kept per (row, rank) and added in rank order.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "ref_ops/executor.h"
#include "ref_ops/poison.h"

namespace freetoken::ref {
namespace {

uint64_t checksum(const float* x, int count) {
  uint64_t sum = 1;
  for (int i = 0; i < count; i++) {
    uint32_t word;
    std::memcpy(&word, x + i, 4);
    sum = (sum ^ word) * 0x100000001b3u + (sum >> 27);
  }
  return sum;
}

}  // namespace

void Executor::run(const RouteCall& c) {
  const View x = input("x", c.x);
  LaneState& lane = lanes_[int(c.lane)];
  lane = {c.x.rows, c.spec.experts, c.spec.experts_per_token, {}, {}, {}, 0, 0};
  std::vector<float> p(size_t(c.spec.experts));
  std::vector<int32_t> order(size_t(c.spec.experts));
  for (int r = 0; r < c.x.rows; r++) {
    matmul(c.router, ActivationKind::kF32, x.row(r), p.data());
    row_kernels_.softmax(p.data(), c.spec.experts, p.data());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return p[size_t(a)] > p[size_t(b)]; });
    float total = 0;
    for (int rank = 0; rank < lane.per_token; rank++) total += p[size_t(order[size_t(rank)])];
    for (int rank = 0; rank < lane.per_token; rank++) {
      const float chosen = p[size_t(order[size_t(rank)])];
      lane.ids.push_back(order[size_t(rank)]);
      lane.weights.push_back((c.spec.normalise ? chosen / total : chosen) * c.spec.scaling);
    }
  }
}

void Executor::run(const MoeCall& c) {
  const View x = input("x", c.x);
  LaneState& lane = lanes_[int(c.lane)];
  const int hidden = c.x.cols;
  uint64_t sum = 0;
  for (int r = 0; r < c.x.rows; r++) sum = sum * 31 + checksum(x.row(r), hidden);
  if (lane.rows != c.x.rows || lane.experts != c.spec.experts || lane.per_token != c.spec.experts_per_token)
    return violation("the lane's last route() was for " + std::to_string(lane.rows) + " rows and " + std::to_string(lane.experts) +
                     " experts");
  if (c.part.begin != lane.next)
    return violation("a part that begins with expert " + std::to_string(c.part.begin) + ", but the lane's next is " +
                     std::to_string(lane.next));
  if (c.part.begin == 0) {
    lane.results.resize(lane.ids.size() * size_t(hidden));
    fill_poison(lane.results.data(), lane.results.size() * sizeof(float));
    lane.input = sum;
  }
  if (sum != lane.input) violation("x is not what it was in the layer's first part");
  lane.next = c.part.end == c.spec.experts ? 0 : c.part.end;

  std::set<int32_t> active;
  for (const int32_t e : lane.ids)
    if (e >= c.part.begin && e < c.part.end) active.insert(e);
  const std::vector<int32_t> wanted(active.begin(), active.end());
  mailbox_.post(c.experts.resolver, c.experts.layer, wanted);
  posted_experts_ += int64_t(wanted.size());
  const ExpertLayout& layout = c.experts.layout;
  int failed = c.spec.experts;  // the lowest, whatever the order of answers
  Status failure;
  for (size_t i = 0; i < wanted.size(); i++) {
    const auto [expert, answer] = mailbox_.take();
    answered_experts_++;
    if (answer.kind != ExpertAnswer::Kind::kAddress) {
      if (expert >= failed) continue;
      failed = expert;
      failure = answer.kind == ExpertAnswer::Kind::kFailed
                    ? answer.error
                    : Internal("expert " + std::to_string(expert) + " of layer " + std::to_string(c.experts.layer) +
                               " was to be computed elsewhere, but this device computes all of them");
      continue;
    }
    if (!memory_.at(answer.address, size_t(layout.bytes))) {
      violation("the answer for expert " + std::to_string(expert) + " is " + memory_.describe(answer.address));
      continue;
    }
    auto matrix = [&](int64_t offset, WeightFormat format, int n, int k) {
      return Weight{answer.address + uint64_t(offset), format, n, k};
    };
    FeedForward f;
    const bool interleaved = layout.up_offset < 0;
    f.gate = matrix(layout.gate_offset, layout.gate_format,
                    interleaved ? 2 * int(align_up(size_t(layout.inner), 16)) : layout.inner, layout.hidden);
    if (!interleaved) f.up = matrix(layout.up_offset, layout.up_format, layout.inner, layout.hidden);
    f.down = matrix(layout.down_offset, layout.down_format, layout.hidden, layout.inner);
    f.hidden = layout.hidden;
    f.inner = layout.inner;
    for (size_t entry = 0; entry < lane.ids.size(); entry++)
      if (lane.ids[entry] == expert)
        feed_forward(f, x.row(int(entry) / lane.per_token), lane.results.data() + entry * size_t(hidden));
  }
  mailbox_.release(c.experts.resolver, c.experts.layer);
  if (!failure.ok() && error_.ok()) error_ = failure;
  if (c.part.end < c.spec.experts) return;

  const View out = output("out", c.out);
  for (int r = 0; r < c.x.rows; r++) {
    std::fill_n(out.row(r), hidden, 0.0f);
    for (int rank = 0; rank < lane.per_token; rank++) {
      const size_t entry = size_t(r) * size_t(lane.per_token) + size_t(rank);
      const float* result = lane.results.data() + entry * size_t(hidden);
      if (error_.ok() && find_poison(result, size_t(hidden), true) < size_t(hidden))
        violation("expert " + std::to_string(lane.ids[entry]) + " of row " + std::to_string(r) + " is in no part");
      for (int i = 0; i < hidden; i++) out.row(r)[i] = std::fmaf(result[i], lane.weights[entry], out.row(r)[i]);
    }
  }
}

}  // namespace freetoken::ref
