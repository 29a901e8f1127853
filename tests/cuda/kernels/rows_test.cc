// Element-wise kernels: against plain fp32 arithmetic and the CPU's scalar kernel, bit for bit.
#include "cuda/kernels/rows.h"

#include "cuda/kernels/rows_support.h"
#include "kernels/row_ops.h"

namespace freetoken::cuda {
namespace {

using testing::DeviceArray;
using testing::random_values;
using testing::Rows2d;

struct Shape {
  int rows, cols;
};
constexpr Shape kShapes[] = {{1, 1}, {3, 255}, {2, 256}, {5, 257}, {1, 1000}};

TEST(Rows, AddIsOneFma) {
  std::mt19937 rng(1);
  for (const Shape s : kShapes) {
    Rows2d x(s.rows, s.cols), y(s.rows, s.cols, 8);
    x.fill(rng);
    y.fill(rng);
    const DeviceArray<float> a(x.values), b(y.values);
    FT_EXPECT_CUDA(launch_add(a.data(), x.stride, b.data(), y.stride, 0.3f, s.rows, s.cols, nullptr));
    for (int r = 0; r < s.rows; r++)
      for (int i = 0; i < s.cols; i++) x.row(r)[i] = std::fmaf(y.row(r)[i], 0.3f, x.row(r)[i]);
    EXPECT_EQ(a.read(), x.values);
  }
}

TEST(Rows, AddsBias) {
  std::mt19937 rng(2);
  for (const Shape s : kShapes) {
    Rows2d x(s.rows, s.cols);
    x.fill(rng);
    const std::vector<float> bias = random_values(size_t(s.cols), rng);
    const DeviceArray<float> a(x.values), b(bias);
    FT_EXPECT_CUDA(launch_add_bias(a.data(), x.stride, b.data(), s.rows, s.cols, nullptr));
    for (int r = 0; r < s.rows; r++)
      for (int i = 0; i < s.cols; i++) x.row(r)[i] += bias[size_t(i)];
    EXPECT_EQ(a.read(), x.values);
  }
}

TEST(Rows, GathersRowsInAnyOrder) {
  std::mt19937 rng(3);
  Rows2d x(6, 300);
  x.fill(rng);
  const std::vector<int32_t> rows = {5, 0, 3, 3};
  Rows2d expected(4, 300, 12);
  const DeviceArray<float> in(x.values), out(expected.values);
  const DeviceArray<int32_t> index(rows);
  FT_EXPECT_CUDA(launch_gather(in.data(), x.stride, index.data(), 4, 300, out.data(), expected.stride, nullptr));
  for (int i = 0; i < 4; i++) std::copy_n(x.row(rows[size_t(i)]), 300, expected.row(i));
  EXPECT_EQ(out.read(), expected.values);
}

TEST(Rows, ScalesAndCapsAsTheCpu) {
  std::mt19937 rng(4);
  const RowKernels& cpu = row_kernels(IsaLevel::kScalar);
  for (const float cap : {0.0f, 30.0f, 0.5f})
    for (const Shape s : kShapes) {
      Rows2d x(s.rows, s.cols);
      x.fill(rng, 200.0f);
      const DeviceArray<float> a(x.values);
      FT_EXPECT_CUDA(launch_scale_softcap(a.data(), x.stride, 0.37f, cap, s.rows, s.cols, nullptr));
      Rows2d got = x;
      got.values = a.read();
      for (int r = 0; r < s.rows; r++)
        for (int i = 0; cap > 0 && i < s.cols; i++) {
          // 1 - 2 / (e + 1) cancels near 0: an absolute error of a few units of the cap.
          const double exact = cap * std::tanh(double(x.row(r)[i] * 0.37f) / cap);
          EXPECT_NEAR(got.row(r)[i], exact, 4e-7 * cap);
        }
      for (int r = 0; r < s.rows; r++) cpu.scale_softcap(x.row(r), 0.37f, cap, s.cols);
      EXPECT_EQ(got.values, x.values);
    }
}

TEST(Rows, NothingToDoIsNoLaunch) {
  FT_EXPECT_CUDA(launch_add(nullptr, 0, nullptr, 0, 1.0f, 0, 8, nullptr));
  FT_EXPECT_CUDA(launch_add_bias(nullptr, 0, nullptr, 0, 8, nullptr));
  FT_EXPECT_CUDA(launch_gather(nullptr, 0, nullptr, 0, 8, nullptr, 0, nullptr));
  FT_EXPECT_CUDA(launch_scale_softcap(nullptr, 0, 1.0f, 0.0f, 0, 8, nullptr));
}

}  // namespace
}  // namespace freetoken::cuda
