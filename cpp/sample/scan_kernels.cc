#include "sample/scan_kernels.h"

#include <immintrin.h>

#include <limits>

#include "core/math.h"

#define FT_AVX2 gnu::target("avx2,fma")

namespace freetoken {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
constexpr int kLanes = 16;

float fold_max(float* lanes) {
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; l++) lanes[l] = lanes[l + width] > lanes[l] ? lanes[l + width] : lanes[l];
  return lanes[0];
}

float fold_sum(float* lanes) {
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; l++) lanes[l] += lanes[l + width];
  return lanes[0];
}

float max_baseline(const float* x, int n) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = kNegativeInfinity;
  for (int i = 0; i < n; i++) lanes[i % kLanes] = x[i] > lanes[i % kLanes] ? x[i] : lanes[i % kLanes];
  return fold_max(lanes);
}

float sum_baseline(const float* x, int n, float max, float inv_temperature) {
  float lanes[kLanes] = {};
  for (int i = 0; i < n; i++) lanes[i % kLanes] += scan_weight(x[i], max, inv_temperature);
  return fold_sum(lanes);
}

void weigh_baseline(const float* x, int n, float max, float inv_temperature, float* out) {
  for (int i = 0; i < n; i++) out[i] = scan_weight(x[i], max, inv_temperature);
}

// max_ps(a, b) is a > b ? a : b, so a NaN in the first operand keeps the second.
[[FT_AVX2]] float max_avx2(const float* x, int n) {
  __m256 low = _mm256_set1_ps(kNegativeInfinity), high = low;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    low = _mm256_max_ps(_mm256_loadu_ps(x + i), low);
    high = _mm256_max_ps(_mm256_loadu_ps(x + i + 8), high);
  }
  float lanes[kLanes];
  _mm256_storeu_ps(lanes, low);
  _mm256_storeu_ps(lanes + 8, high);
  for (; i < n; i++) lanes[i % kLanes] = x[i] > lanes[i % kLanes] ? x[i] : lanes[i % kLanes];
  return fold_max(lanes);
}

// The steps of exp_f32 on eight values that are <= 0 or NaN; the comparison is false for NaN, which then weighs 0.
[[FT_AVX2, gnu::always_inline]] inline __m256 weight8(__m256 x, __m256 max, __m256 inv_temperature) {
  using C = ExpConstants;
  const __m256 d = _mm256_mul_ps(_mm256_sub_ps(x, max), inv_temperature), one = _mm256_set1_ps(1.0f);
  const __m256 rounded = _mm256_fmadd_ps(d, _mm256_set1_ps(C::kLog2E), _mm256_set1_ps(C::kMagic));
  const __m256 n = _mm256_sub_ps(rounded, _mm256_set1_ps(C::kMagic));
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-C::kLn2Hi), d);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(-C::kLn2Lo), r);
  __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(C::kC6), r, _mm256_set1_ps(C::kC5));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(C::kC4));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(C::kC3));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(C::kC2));
  p = _mm256_fmadd_ps(p, r, one);
  p = _mm256_fmadd_ps(p, r, one);
  const __m256i bits = _mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(rounded), 23), _mm256_castps_si256(one));
  const __m256 weight = _mm256_mul_ps(p, _mm256_castsi256_ps(bits));
  return _mm256_and_ps(weight, _mm256_cmp_ps(d, _mm256_set1_ps(C::kLowest), _CMP_GE_OQ));
}

[[FT_AVX2]] float sum_avx2(const float* x, int n, float max, float inv_temperature) {
  const __m256 m = _mm256_set1_ps(max), inv = _mm256_set1_ps(inv_temperature);
  __m256 low = _mm256_setzero_ps(), high = low;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    low = _mm256_add_ps(low, weight8(_mm256_loadu_ps(x + i), m, inv));
    high = _mm256_add_ps(high, weight8(_mm256_loadu_ps(x + i + 8), m, inv));
  }
  float lanes[kLanes];
  _mm256_storeu_ps(lanes, low);
  _mm256_storeu_ps(lanes + 8, high);
  for (; i < n; i++) lanes[i % kLanes] += scan_weight(x[i], max, inv_temperature);
  return fold_sum(lanes);
}

[[FT_AVX2]] void weigh_avx2(const float* x, int n, float max, float inv_temperature, float* out) {
  const __m256 m = _mm256_set1_ps(max), inv = _mm256_set1_ps(inv_temperature);
  int i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, weight8(_mm256_loadu_ps(x + i), m, inv));
  for (; i < n; i++) out[i] = scan_weight(x[i], max, inv_temperature);
}

bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

}  // namespace

float scan_weight(float logit, float max, float inv_temperature) {
  const float d = (logit - max) * inv_temperature;
  return d >= ExpConstants::kLowest ? exp_f32(d) : 0.0f;
}

const ScanKernels& baseline_scan_kernels() {
  static constexpr ScanKernels kernels = {max_baseline, sum_baseline, weigh_baseline};
  return kernels;
}

const ScanKernels& scan_kernels() {
  static constexpr ScanKernels wide = {max_avx2, sum_avx2, weigh_avx2};
  static const bool use_wide = has_avx2();
  return use_wide ? wide : baseline_scan_kernels();
}

}  // namespace freetoken
