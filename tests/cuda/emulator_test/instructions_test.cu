// Each instruction of device.h against its definition in plain arithmetic.
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "cuda/emulator_test/fragment_maps.h"
#include "cuda/emulator_test/support.h"
#include "cuda/kernels/device.h"

namespace freetoken::cuda {
namespace {

uint16_t bf16_bits(int v) { return uint16_t(std::bit_cast<uint32_t>(float(v)) >> 16); }
uint32_t join(uint16_t lo, uint16_t hi) { return uint32_t(lo) | uint32_t(hi) << 16; }

// a [16][16] rows, b [8][16] columns, both over k; d [16][8].
__global__ void __launch_bounds__(32) multiply(const uint16_t* a, const uint16_t* b, float* d) {
  const int lane = int(threadIdx.x);
  const auto pick = [lane](const uint16_t* from, maps::Element (*map)(int, int), int v) {
    return from[map(lane, v).major * 16 + map(lane, v).minor];
  };
  uint32_t fa[4], fb[2];
  for (int j = 0; j < 4; j++) fa[j] = join(pick(a, maps::mma_a, 2 * j), pick(a, maps::mma_a, 2 * j + 1));
  for (int j = 0; j < 2; j++) fb[j] = join(pick(b, maps::mma_b, 2 * j), pick(b, maps::mma_b, 2 * j + 1));
  float acc[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  mma_m16n8k16(acc, fa, fb);
  for (int v = 0; v < 4; v++) d[maps::mma_d(lane, v).major * 8 + maps::mma_d(lane, v).minor] = acc[v];
}

TEST(Instructions, MmaIsTheMatrixProduct) {
  std::mt19937 rng(1);
  std::vector<int> a(256), b(128);
  std::vector<uint16_t> a_bits, b_bits;
  for (int& v : a) a_bits.push_back(bf16_bits(v = int(rng() % 17) - 8));
  for (int& v : b) b_bits.push_back(bf16_bits(v = int(rng() % 17) - 8));
  Device<uint16_t> da(a_bits), db(b_bits);
  Device<float> d(128);
  FT_LAUNCH((multiply), dim3(1), dim3(32), 0, nullptr, da.p, db.p, d.p);
  const std::vector<float> got = d.get();
  for (size_t m = 0; m < 16; m++)
    for (size_t n = 0; n < 8; n++) {
      int sum = 1;
      for (size_t k = 0; k < 16; k++) sum += a[m * 16 + k] * b[n * 16 + k];
      EXPECT_EQ(got[m * 8 + n], float(sum)) << m << " " << n;
    }
}

__global__ void load_all(const uint32_t* from, uint32_t* plain, uint32_t* transposed) {
  FT_SHARED(uint32_t, rows, [32][4]);
  const int lane = int(threadIdx.x);
  cp_async16(rows[lane], from + lane * 4);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  uint32_t r[4];
  ldmatrix_x4(r, rows[lane]);
  for (int j = 0; j < 4; j++) plain[lane * 4 + j] = r[j];
  ldmatrix_x4_trans(r, rows[lane]);
  for (int j = 0; j < 4; j++) transposed[lane * 4 + j] = r[j];
}

TEST(Instructions, LdmatrixLoadsRowsOrColumns) {
  std::vector<uint16_t> halves(256);  // element (row, column) of matrix j: 64 j + 8 row + column
  std::iota(halves.begin(), halves.end(), uint16_t(0));
  std::vector<uint32_t> words(128);
  std::memcpy(words.data(), halves.data(), 512);
  Device<uint32_t> from(words), plain(128), transposed(128);
  FT_LAUNCH((load_all), dim3(1), dim3(32), 0, nullptr, from.p, plain.p, transposed.p);
  const auto a = plain.get(), b = transposed.get();
  const auto expected = [](maps::Element (*map)(int, int), int lane, int j) {
    const maps::Element lo = map(lane, 0), hi = map(lane, 1);
    return join(uint16_t(64 * j + 8 * lo.major + lo.minor), uint16_t(64 * j + 8 * hi.major + hi.minor));
  };
  for (int lane = 0; lane < 32; lane++)
    for (int j = 0; j < 4; j++) {
      EXPECT_EQ(a[size_t(lane * 4 + j)], expected(maps::matrix, lane, j));
      EXPECT_EQ(b[size_t(lane * 4 + j)], expected(maps::matrix_transposed, lane, j));
    }
}

__global__ void round_pairs(const float* x, uint32_t* packed, const uint32_t* pairs, uint32_t* sums) {
  const int i = int(threadIdx.x);
  packed[i] = pack_bf16x2(x[2 * i], x[2 * i + 1]);
  sums[i] = fma_bf16x2(pairs[3 * i], pairs[3 * i + 1], pairs[3 * i + 2]);
}

// The nearest of all bf16 values, the even one of two: found by looking at the neighbours in exact arithmetic.
uint16_t nearest_bf16(long double v) {
  uint32_t below = std::bit_cast<uint32_t>(float(std::fabs(v))) >> 16;
  if (below > 0) below--;
  uint32_t best = below;
  long double error = INFINITY;
  for (uint32_t c = below; c <= below + 2; c++) {
    const long double e = std::fabs(static_cast<long double>(std::bit_cast<float>(c << 16)) - std::fabs(v));
    if (e < error || (e == error && c % 2 == 0)) best = c, error = e;
  }
  return uint16_t(best | (std::signbit(v) ? 0x8000u : 0u));
}

TEST(Instructions, Bf16RoundsOnceToNearestEven) {
  std::mt19937 rng(2);
  std::vector<float> x;
  std::vector<uint32_t> pairs;
  const auto number = [&] { return std::bit_cast<float>(uint32_t((rng() & 0x807fffffu) | (120u + rng() % 16) << 23)); };
  for (int i = 0; i < 512; i++)
    x.push_back(i % 3 ? number() : std::bit_cast<float>(std::bit_cast<uint32_t>(number()) & 0xffff8000u));
  for (int i = 0; i < 768; i++)
    pairs.push_back((std::bit_cast<uint32_t>(number()) & 0xffff0000u) | std::bit_cast<uint32_t>(number()) >> 16);
  Device<float> dx(x);
  Device<uint32_t> dpairs(pairs), packed(256), sums(256);
  FT_LAUNCH((round_pairs), dim3(1), dim3(256), 0, nullptr, dx.p, packed.p, dpairs.p, sums.p);
  const auto p = packed.get(), s = sums.get();
  for (size_t i = 0; i < 256; i++)
    for (int half = 0; half < 2; half++) {
      EXPECT_EQ(uint16_t(p[i] >> (16 * half)), nearest_bf16(x[2 * i + size_t(half)]));
      const auto at = [&](size_t k) {
        return static_cast<long double>(std::bit_cast<float>(pairs[3 * i + k] >> (16 * half) << 16));
      };
      EXPECT_EQ(uint16_t(s[i] >> (16 * half)), nearest_bf16(at(0) * at(1) + at(2))) << i;
    }
}

__global__ void warp_functions(int* out) {
  const int lane = int(threadIdx.x);
  int* mine = out + lane * 8;
  mine[0] = __shfl_xor_sync(~0u, lane, 5);
  mine[1] = __shfl_up_sync(~0u, lane, 3u);
  mine[2] = __shfl_down_sync(~0u, lane, 3u, 8);
  mine[3] = __shfl_sync(~0u, lane, 9, 8);
  mine[4] = int(__ballot_sync(~0u, lane % 3 == 0));
  mine[5] = int(__reduce_add_sync(~0u, unsigned(lane)));
  mine[6] = lane < 4 ? __reduce_max_sync(0xfu, lane * 7 % 4) : -1;
  mine[7] = __syncthreads_count(lane < 11);
}

TEST(Instructions, ShufflesVotesReductions) {
  Device<int> out(256);
  FT_LAUNCH((warp_functions), dim3(1), dim3(32), 0, nullptr, out.p);
  const auto got = out.get();
  unsigned threes = 0;
  for (int lane = 0; lane < 32; lane += 3) threes |= 1u << lane;
  for (int lane = 0; lane < 32; lane++) {
    const int* mine = got.data() + lane * 8;
    EXPECT_EQ(mine[0], lane ^ 5);
    EXPECT_EQ(mine[1], lane < 3 ? lane : lane - 3);
    EXPECT_EQ(mine[2], lane % 8 < 5 ? lane + 3 : lane);
    EXPECT_EQ(mine[3], lane / 8 * 8 + 1);
    EXPECT_EQ(unsigned(mine[4]), threes);
    EXPECT_EQ(mine[5], 496);
    EXPECT_EQ(mine[6], lane < 4 ? 3 : -1);
    EXPECT_EQ(mine[7], 11);
  }
}

__global__ void count_up(int* counter, float* sum) {
  atomicAdd(counter, 1);
  atomicMax(counter + 1, int(blockIdx.x * 64 + threadIdx.x));
  atomicAdd(sum, 0.5f);
}

TEST(Instructions, AtomicsOverBlocksAndWorkers) {
  emu::options().workers = 3;
  Device<int> counter(std::vector<int>{0, -1});
  Device<float> sum(std::vector<float>{0.0f});
  FT_LAUNCH((count_up), dim3(10), dim3(64), 0, nullptr, counter.p, sum.p);
  EXPECT_EQ(counter.get(), (std::vector<int>{640, 639}));
  EXPECT_EQ(sum.get()[0], 320.0f);
  emu::options().workers = 1;
}

// Stages x through shared memory in two steps; the step order shows whether a barrier holds under every schedule.
__global__ void __launch_bounds__(96) reverse(const int* x, int* y, int n) {
  FT_DYNAMIC_SHARED(raw);
  int* s = reinterpret_cast<int*>(raw);
  for (int i = int(threadIdx.x); i < n; i += int(blockDim.x)) s[i] = x[i];
  __syncthreads();
  for (int i = int(threadIdx.x); i < n; i += int(blockDim.x)) y[i] = s[n - 1 - i];
}

TEST(Instructions, SchedulesAgree) {
  std::vector<int> x(200);
  std::iota(x.begin(), x.end(), 0);
  Device<int> dx(x), dy(200);
  for (uint64_t seed = 0; seed < 8; seed++) {
    emu::reseed(seed);
    FT_LAUNCH((reverse), dim3(1), dim3(96), 800, nullptr, dx.p, dy.p, 200);
    const auto y = dy.get();
    for (int i = 0; i < 200; i++) ASSERT_EQ(y[size_t(i)], 199 - i);
  }
  emu::reseed(0);
}

TEST(Limits, OfALaunch) {
  Device<int> x(4);
  const auto launch = [&](dim3 grid, dim3 block, size_t dynamic) {
    FT_LAUNCH((reverse), grid, block, dynamic, nullptr, x.p, x.p, 0);
    return cudaGetLastError();
  };
  EXPECT_EQ(launch(dim3(1), dim3(96), 16), cudaSuccess);
  EXPECT_EQ(launch(dim3(1), dim3(128), 16), cudaErrorInvalidValue);  // __launch_bounds__(96)
  EXPECT_EQ(launch(dim3(1), dim3(1025), 16), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(0), dim3(32), 16), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1, 65536), dim3(32), 16), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1), dim3(96), 48 * 1024 + 4), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 * 1024), cudaSuccess);
  EXPECT_EQ(launch(dim3(1), dim3(96), 48 * 1024 + 4), cudaSuccess);
  EXPECT_EQ(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 * 1024),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  cudaGetLastError();
}

}  // namespace
}  // namespace freetoken::cuda
