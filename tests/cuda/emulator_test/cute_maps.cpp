// Compares fragment_maps.h with the layouts of CuTe, evaluated on the host. Prints what differs; test_cute_maps.py
// builds it.
#define CUTE_HOST_ONLY 1
#include "fragment_maps.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/tensor.hpp>

namespace maps = freetoken::cuda::maps;

namespace {

int compared = 0, wrong = 0;

void compare(const char* what, int lane, int value, int ours, int theirs) {
  compared++;
  if (ours == theirs) return;
  wrong++;
  std::printf("%s: lane %d, value %d: %d, CuTe has %d\n", what, lane, value, ours, theirs);
}

void compare_mma() {
  using Traits = cute::MMA_Traits<cute::SM80_16x8x16_F32BF16BF16F32_TN>;
  const typename Traits::ALayout a;  // (lane, value) -> row + 16 k
  const typename Traits::BLayout b;  // column + 8 k
  const typename Traits::CLayout d;  // row + 16 column
  for (int lane = 0; lane < 32; lane++) {
    for (int v = 0; v < 8; v++)
      compare("A", lane, v, maps::mma_a(lane, v).major + 16 * maps::mma_a(lane, v).minor, int(a(lane, v)));
    for (int v = 0; v < 4; v++)
      compare("B", lane, v, maps::mma_b(lane, v).major + 8 * maps::mma_b(lane, v).minor, int(b(lane, v)));
    for (int v = 0; v < 4; v++)
      compare("D", lane, v, maps::mma_d(lane, v).major + 16 * maps::mma_d(lane, v).minor, int(d(lane, v)));
  }
}

// Source (lane, bit) and destination (lane, bit) meet in one numbering of bits: row `r` of matrix `j` comes from lane 8
// j + r.
template <class Traits, class Map>
void compare_ldmatrix(const char* what, Map map) {
  const typename Traits::SrcLayout source;
  const typename Traits::DstLayout destination;
  for (int lane = 0; lane < 32; lane++)
    for (int j = 0; j < 4; j++)
      for (int v = 0; v < 2; v++) {
        const maps::Element e = map(lane, v);
        compare(what, lane, 2 * j + v, int(source(8 * j + e.major, 16 * e.minor)),
                int(destination(lane, 32 * j + 16 * v)));
      }
}

}  // namespace

int main() {
  compare_mma();
  compare_ldmatrix<cute::Copy_Traits<cute::SM75_U32x4_LDSM_N>>("ldmatrix", maps::matrix);
  compare_ldmatrix<cute::Copy_Traits<cute::SM75_U16x8_LDSM_T>>("ldmatrix.trans", maps::matrix_transposed);
  std::printf("%d of %d differ\n", wrong, compared);
  return wrong != 0;
}
