#include <algorithm>

#include "api/tensor_pool.h"
#include "moe/resident_experts.h"
#include "ops/expert_extent.h"
#include "quant/t32.h"

namespace freetoken {

struct PackedExperts::State {
  int experts = 0;
  ExpertLayout layout;
  Memory memory;
  mutable ResidentExperts resolver;  // its answers are constant
};

namespace {

// Gate and up of one format: 16 rows of each in turn.
void pack_pair(WeightFormat format, int inner, int k, const uint8_t* gate, const uint8_t* up, uint8_t* packed) {
  const size_t row_bytes = source_row_bytes(format, k);
  const int half = kTileRows / 2;
  for (int tile = 0; tile < ceil_div(inner, half); tile++) {
    const uint8_t* rows[kTileRows] = {};
    for (int i = 0; i < half && tile * half + i < inner; i++) {
      rows[i] = gate + size_t(tile * half + i) * row_bytes;
      rows[half + i] = up + size_t(tile * half + i) * row_bytes;
    }
    pack_tile(format, k, rows, packed + size_t(tile) * tile_bytes(format, k));
  }
}

Status check_choice(const int32_t* ids, int64_t rows, int64_t per_token, int experts) {
  std::vector<int64_t> last_row(experts, -1);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < per_token; i++) {
      const int32_t id = ids[r * per_token + i];
      if (id < 0 || id >= experts)
        return InvalidArgument("expert_ids[" + std::to_string(r) + ", " + std::to_string(i) + "] is " + std::to_string(id) +
                               ": there are experts 0 to " + std::to_string(experts - 1));
      if (last_row[id] == r)
        return InvalidArgument("expert_ids: row " + std::to_string(r) + " names expert " + std::to_string(id) +
                               " twice; add its weights");
      last_row[id] = r;
    }
  return {};
}

}  // namespace

PackedExperts::PackedExperts(std::unique_ptr<State> state) : state_(std::move(state)) {}
PackedExperts::~PackedExperts() = default;
int64_t PackedExperts::experts() const { return state_->experts; }
int64_t PackedExperts::hidden() const { return state_->layout.hidden; }
int64_t PackedExperts::inner() const { return state_->layout.inner; }
int64_t PackedExperts::packed_bytes() const { return int64_t(state_->memory.size_bytes()); }

Status PackedExperts::pack(int64_t experts, const WeightSource& gate, const WeightSource& up, const WeightSource& down,
                           std::unique_ptr<PackedExperts>* out) {
  return guarded("packing experts", [&]() -> Status {
    auto state = std::make_unique<State>();
    FT_ASSIGN_OR_RETURN(const WeightFormat gate_format, checked_format(gate, "gate"));
    FT_ASSIGN_OR_RETURN(const WeightFormat up_format, checked_format(up, "up"));
    FT_ASSIGN_OR_RETURN(const WeightFormat down_format, checked_format(down, "down"));
    if (experts < 1 || experts > kMaxTensorExperts)
      return InvalidArgument(std::to_string(experts) + " experts: must be 1 to " + std::to_string(kMaxTensorExperts));
    if (gate.n > kMaxTensorColumns)  // it is the number of columns of down
      return InvalidArgument("gate has " + std::to_string(gate.n) + " rows: at most " + std::to_string(kMaxTensorColumns));
    if (up.n != gate.n || up.k != gate.k || down.n != gate.k || down.k != gate.n)
      return InvalidArgument("gate [" + std::to_string(gate.n) + ", " + std::to_string(gate.k) + "], up [" +
                             std::to_string(up.n) + ", " + std::to_string(up.k) + "], down [" + std::to_string(down.n) + ", " +
                             std::to_string(down.k) + "] of an expert: must be [inner, hidden] twice and [hidden, inner]");
    state->experts = int(experts);
    ExtentInfo info;
    for (PackedTensorInfo& tensor : gated_tensors("", gate_format, up_format, down_format, int(gate.n), int(gate.k)))
      info.append(std::move(tensor));
    FT_ASSIGN_OR_RETURN(state->layout, expert_layout(info));
    const ExpertLayout& layout = state->layout;
    FT_ASSIGN_OR_RETURN(state->memory, Memory::allocate(size_t(layout.bytes) * size_t(experts)));

    const auto part = [](const WeightSource& source, WeightFormat format, int64_t expert) {
      return source.data + size_t(expert) * size_t(source.n) * source_row_bytes(format, int(source.k));
    };
    std::vector<uint64_t> addresses;
    for (int64_t e = 0; e < experts; e++) {
      uint8_t* extent = state->memory.data() + size_t(e) * size_t(layout.bytes);
      addresses.push_back(reinterpret_cast<uint64_t>(extent));
      const uint8_t *gate_rows = part(gate, layout.gate_format, e), *up_rows = part(up, layout.up_format, e);
      if (layout.up_offset < 0) {
        pack_pair(layout.gate_format, layout.inner, layout.hidden, gate_rows, up_rows, extent);
      } else {
        pack_matrix(layout.gate_format, layout.inner, layout.hidden, gate_rows, extent);
        pack_matrix(layout.up_format, layout.inner, layout.hidden, up_rows, extent + layout.up_offset);
      }
      pack_matrix(layout.down_format, layout.hidden, layout.inner, part(down, layout.down_format, e),
                  extent + layout.down_offset);
    }
    state->resolver.add_layer(std::move(addresses));
    out->reset(new PackedExperts(std::move(state)));
    return {};
  });
}

Status PackedExperts::run(const float* x, int64_t rows, const int32_t* ids, const float* weights, int64_t per_token,
                          MatmulInput input, float* out) const {
  const State& s = *state_;
  const int hidden = s.layout.hidden;
  if (per_token < 1 || per_token > s.experts)
    return InvalidArgument(std::to_string(per_token) + " experts per row: must be 1 to " + std::to_string(s.experts));
  FT_RETURN_IF_ERROR(guarded("computing experts", [&] { return check_choice(ids, rows, per_token, s.experts); }));
  if (rows == 0) return {};
  const OpsSize size{hidden, s.layout.inner, s.experts, int(per_token)};
  return with_shared_ops(input, size, [&](CpuOps& ops, Queue& queue, int block) -> Status {
    MoeSpec spec;
    spec.experts = s.experts;
    spec.experts_per_token = int(per_token);
    spec.inner = s.layout.inner;
    const ExpertSet set{.layer = 0, .experts = s.experts, .layout = s.layout, .resolver = &s.resolver};
    for (int64_t first = 0; first < rows; first += block) {
      const int count = int(std::min<int64_t>(block, rows - first));
      begin_plain_step(ops, queue, count);
      ops.set_route(Lane::kMain, count, s.experts, int(per_token), ids + first * per_token, weights + first * per_token);
      ops.moe(queue, Lane::kMain, host_tensor(x + first * hidden, count, hidden), spec, set, {0, s.experts},
              host_tensor(out + first * hidden, count, hidden));
      FT_RETURN_IF_ERROR(ops.wait(queue, ops.end_step(queue)));
    }
    return {};
  });
}

}  // namespace freetoken
