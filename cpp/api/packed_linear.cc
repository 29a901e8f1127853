#include <algorithm>
#include <cstring>

#include "api/tensor_pool.h"
#include "quant/t32.h"

namespace freetoken {

struct PackedLinear::State {
  WeightFormat format = WeightFormat::kF32;
  int n = 0, k = 0;
  Memory packed, bias;
};

PackedLinear::PackedLinear(std::unique_ptr<State> state) : state_(std::move(state)) {}
PackedLinear::~PackedLinear() = default;
int64_t PackedLinear::n() const { return state_->n; }
int64_t PackedLinear::k() const { return state_->k; }
int64_t PackedLinear::packed_bytes() const { return int64_t(state_->packed.size_bytes()); }

Status PackedLinear::pack(const WeightSource& weight, const float* bias, std::unique_ptr<PackedLinear>* out) {
  return guarded("packing a matrix", [&]() -> Status {
    auto state = std::make_unique<State>();
    FT_ASSIGN_OR_RETURN(state->format, checked_format(weight, "weight"));
    state->n = int(weight.n);
    state->k = int(weight.k);
    FT_ASSIGN_OR_RETURN(state->packed, Memory::allocate(freetoken::packed_bytes(state->format, state->n, state->k)));
    pack_matrix(state->format, state->n, state->k, weight.data, state->packed.data());
    if (bias) {
      FT_ASSIGN_OR_RETURN(state->bias, Memory::allocate(size_t(state->n) * sizeof(float)));
      std::memcpy(state->bias.data(), bias, size_t(state->n) * sizeof(float));
    }
    out->reset(new PackedLinear(std::move(state)));
    return {};
  });
}

Status PackedLinear::run(const float* x, int64_t rows, MatmulInput input, float* out) const {
  const State& s = *state_;
  if (rows == 0) return {};
  return with_shared_ops(input, {.k = s.k}, [&](CpuOps& ops, Queue& queue, int block) -> Status {
    // Kernels write whole tiles: rows that end within one are computed beside and copied.
    const int columns = int(align_up(size_t(s.n), kTileRows));
    Memory padded;
    if (columns != s.n) {
      FT_ASSIGN_OR_RETURN(padded, Memory::allocate(size_t(std::min<int64_t>(block, rows)) * columns * sizeof(float)));
    }
    LinearOutput output;
    output.weight = {reinterpret_cast<uint64_t>(s.packed.data()), s.format, s.n, s.k};
    if (s.bias.data()) output.bias = host_tensor(s.bias.as<float>(), 1, s.n);
    for (int64_t first = 0; first < rows; first += block) {
      const int count = int(std::min<int64_t>(block, rows - first));
      float* to = out + first * s.n;
      output.out = columns == s.n ? host_tensor(to, count, s.n) : host_tensor(padded.as<float>(), count, columns);
      begin_plain_step(ops, queue, count);
      ops.linear(queue, host_tensor(x + first * s.k, count, s.k), {&output, 1});
      FT_RETURN_IF_ERROR(ops.wait(queue, ops.end_step(queue)));
      if (columns == s.n) continue;
      for (int r = 0; r < count; r++)
        std::memcpy(to + int64_t(r) * s.n, padded.as<float>() + int64_t(r) * columns, size_t(s.n) * sizeof(float));
    }
    return {};
  });
}

}  // namespace freetoken
