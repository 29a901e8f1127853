// Cases of the CUDA matmul tests: random T32 matrices, device arrays, and the reference in double over decode_row().
#pragma once
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "quant/bytes.h"
#include "quant/random_weights.h"
#include "quant/t32.h"

namespace freetoken::cuda::testing {

#define FT_EXPECT_CUDA(call) ASSERT_EQ(int(call), int(cudaSuccess)) << #call

// An array in device memory that ends where the device's allocation ends.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    const cudaError_t error = cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice);
    EXPECT_EQ(int(error), 0);
  }
  explicit DeviceArray(size_t size) : size_(size) {
    EXPECT_EQ(int(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<size_t>(size, 1) * sizeof(T))), 0);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> values(size_);
    EXPECT_EQ(int(cudaDeviceSynchronize()), 0);
    EXPECT_EQ(int(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost)), 0);
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

inline std::vector<float> random_values(size_t count, std::mt19937& rng, float scale = 1.0f) {
  std::uniform_real_distribution<float> uniform(-scale, scale);
  std::vector<float> values(count);
  for (float& v : values) v = uniform(rng);
  return values;
}

// Rows of x start 32 floats apart at least; what lies past k is NaN, which no kernel may read into a result.
struct Input {
  int rows, k, stride;
  std::vector<float> values;
  Input(int rows, int k, std::mt19937& rng) : rows(rows), k(k), stride(int(align_up(size_t(k), 32)) + 4) {
    values.assign(size_t(rows) * stride, NAN);
    for (int r = 0; r < rows; r++) {
      const std::vector<float> row = random_values(size_t(k), rng);
      std::copy(row.begin(), row.end(), values.begin() + size_t(r) * stride);
    }
  }
  const float* row(int r) const { return values.data() + size_t(r) * stride; }
};

// y = W x and how far a kernel may be from it.
struct Exact {
  double value = 0, bound = 0;
};

// Every product is exact in fp32 (bf16 x bf16, or an integer code of at most 8 bits x bf16) or rounded once (f32, f16).
// Then sums and scalings round, on the longest way from a product to the result: 24 times in and after the mma of its
// 16 k, in its piece once per 16 k (f32: per 4 k), over the pieces 8 times; mma may truncate (2^-23) of a running sum
// that the sum of magnitudes bounds. Q4_1's weight is a sum itself: its terms count apart.
inline std::vector<Exact> exact_rows(WeightFormat f, int n, int k, const uint8_t* source, const float* x,
                                     bool round_x) {
  const auto in = [&](int i) { return round_x ? double(bf16_to_f32(f32_to_bf16(x[i]))) : double(x[i]); };
  const int chain = k / (round_x ? 16 : 4) + 32;
  std::vector<float> w(static_cast<size_t>(k));
  std::vector<Exact> out(static_cast<size_t>(n));
  for (int i = 0; i < n; i++) {
    const uint8_t* row = source + size_t(i) * source_row_bytes(f, k);
    decode_row(f, k, row, w.data());
    double sum = 0, magnitude = 0;
    for (int j = 0; j < k; j++) {
      const double weight = w[size_t(j)];
      const double m = f == WeightFormat::kQ4_1 ? f16_to_f32(load_u16(row + j / 32 * 20 + 2)) : 0.0;
      sum += weight * in(j);
      magnitude += (std::abs(weight - m) + std::abs(m)) * std::abs(in(j));
    }
    out[size_t(i)] = {sum, magnitude * chain * 0x1p-23 + 1e-30};
  }
  return out;
}

inline std::string format_case(const ::testing::TestParamInfo<WeightFormat>& info) { return traits(info.param).name; }

}  // namespace freetoken::cuda::testing
