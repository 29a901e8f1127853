// The CPU kernels as functions on plain memory: for hosts that have a model of their own and want its matrix products or its
// attention from here (freetoken.torch_ops is such a host). All matrices are dense and row-major.
//
// Results are the engine's, bit for bit: they depend on neither the number of rows of a call nor the number of threads
// (docs/numerics.md). Any thread may call; calls on the process's shared threads take turns. The caller's floating-point
// environment is left as it was.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "freetoken/engine.h"
#include "freetoken/status.h"

namespace freetoken {

// A matrix of n rows and k columns in the blocks of a checkpoint, rows one after the other.
struct WeightSource {
  std::string format;          // f32, f16, bf16, q8_0, q4_0, q4_1, q6_k
  const uint8_t* data = nullptr;
  int64_t n = 0, k = 0;
};

// Bytes of one row of k weights, or columns in a row of so many bytes; 0 when there is no such format or no such row.
FREETOKEN_API int64_t weight_row_bytes(const std::string& format, int64_t k);
FREETOKEN_API int64_t weight_row_columns(const std::string& format, int64_t row_bytes);

// Threads of PackedLinear and PackedExperts and of PagedKv objects made later: 1 to 1024, 0 = one per usable core (the
// default). kInvalidArgument otherwise.
FREETOKEN_API Status set_tensor_threads(int threads);
FREETOKEN_API int tensor_threads();

// What a matmul reads beside the weights: narrowed to match them (kAuto), or fp32.
enum class MatmulInput { kAuto, kFloat32 };

// y = x W^T + b on packed weights.
class FREETOKEN_API PackedLinear {
 public:
  // Copies the weight and the bias ([n], may be null). kInvalidArgument (sizes, format), kResourceExhausted.
  static Status pack(const WeightSource& weight, const float* bias, std::unique_ptr<PackedLinear>* out);
  ~PackedLinear();
  int64_t n() const;
  int64_t k() const;
  int64_t packed_bytes() const;
  // x [rows, k], out [rows, n].
  Status run(const float* x, int64_t rows, MatmulInput input, float* out) const;

 private:
  struct State;
  explicit PackedLinear(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The experts of one layer: sum over chosen experts e of weight_e * down_e(silu(gate_e x) * up_e x).
class FREETOKEN_API PackedExperts {
 public:
  // Stacks of `experts` matrices, one after the other: gate and up [inner, hidden] each, down [hidden, inner].
  static Status pack(int64_t experts, const WeightSource& gate, const WeightSource& up, const WeightSource& down,
                     std::unique_ptr<PackedExperts>* out);
  ~PackedExperts();
  int64_t experts() const;
  int64_t hidden() const;
  int64_t inner() const;
  int64_t packed_bytes() const;
  // x and out [rows, hidden]; ids and weights [rows, per_token], the outputs are added in this order. kInvalidArgument when
  // an id is not in [0, experts) or stands twice in a row.
  Status run(const float* x, int64_t rows, const int32_t* ids, const float* weights, int64_t per_token, MatmulInput input,
             float* out) const;

 private:
  struct State;
  explicit PackedExperts(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct PagedKvOptions {
  int64_t pages = 0;               // of kPageTokens positions each
  int64_t layers = 1;
  int64_t kv_heads = 0;
  int64_t qk_dim = 0, v_dim = 0;   // per head; v_dim a multiple of 16
  bool float32 = false;            // keys and values are kept in bf16, or in fp32
};

// Keys and values of one call: sequence s has row_counts[s] consecutive rows of q, k and v at the positions from
// context_lengths[s] on; page_table[s * table_width + i] is the page of its positions [64 i, 64 i + 64).
struct PagedStep {
  int64_t layer = 0;
  int64_t q_heads = 0;
  int64_t sequences = 0, table_width = 0;
  const int32_t* page_table = nullptr;
  const int32_t* context_lengths = nullptr;
  const int32_t* row_counts = nullptr;
  float scale = 1.0f;
  int64_t window = 0;              // positions seen, the query's own included; 0 = all
};

// A paged cache of keys and values, and causal attention over it.
class FREETOKEN_API PagedKv {
 public:
  static constexpr int kPageTokens = 64;
  static Status create(const PagedKvOptions& options, std::unique_ptr<PagedKv>* out);
  ~PagedKv();
  const PagedKvOptions& options() const;
  // Appends k [rows, kv_heads * qk_dim] and v [rows, kv_heads * v_dim] to the cache, then out [rows, q_heads * v_dim] =
  // attention of q [rows, q_heads * qk_dim] over each row's own and earlier positions. Nothing is written when it fails with
  // kInvalidArgument: rows other than the sum of the counts, a page that does not exist, a page that is written and stands
  // elsewhere in the table.
  Status attend(const PagedStep& step, int64_t rows, const float* q, const float* k, const float* v, float* out);

 private:
  struct State;
  explicit PagedKv(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace freetoken
