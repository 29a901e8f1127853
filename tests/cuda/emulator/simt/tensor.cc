// ldmatrix and mma, computed by the last lane of a warp that arrives. tests/cuda checks the maps against CuTe's.
#include <cstring>

#include "cuda/kernels/device.h"

namespace freetoken::emu {
namespace {

struct Matrices {
  const void* row;
  uint32_t* r;
};

void check_rows(uint32_t mask, void** arguments) {
  if (mask != ~0u) die("ldmatrix: the whole warp must take part");
  for (int lane = 0; lane < 32; lane++) {
    const void* row = static_cast<Matrices*>(arguments[lane])->row;
    if (reinterpret_cast<uintptr_t>(row) % 16) die("ldmatrix: the row of lane %d is not 16-byte aligned", lane);
    if (!is_shared(row, 16)) die("ldmatrix: the row of lane %d is not in shared memory", lane);
  }
}

void load_lanes(uint32_t mask, void** arguments) {
  check_rows(mask, arguments);
  for (int lane = 0; lane < 32; lane++)
    for (int j = 0; j < 4; j++) {
      const auto* row = static_cast<const char*>(static_cast<Matrices*>(arguments[8 * j + lane / 4])->row);
      std::memcpy(&static_cast<Matrices*>(arguments[lane])->r[j], row + 4 * (lane % 4), 4);
    }
}

void load_lanes_transposed(uint32_t mask, void** arguments) {
  check_rows(mask, arguments);
  for (int lane = 0; lane < 32; lane++)
    for (int j = 0; j < 4; j++) {
      uint16_t pair[2];
      for (int i = 0; i < 2; i++) {
        const auto* row = static_cast<const char*>(static_cast<Matrices*>(arguments[8 * j + 2 * (lane % 4) + i])->row);
        std::memcpy(&pair[i], row + 2 * (lane / 4), 2);
      }
      std::memcpy(&static_cast<Matrices*>(arguments[lane])->r[j], pair, 4);
    }
}

struct Fragments {
  float* d;
  const uint32_t *a, *b;
};

void multiply_lanes(uint32_t mask, void** arguments) {
  if (mask != ~0u) die("mma: the whole warp must take part");
  float a[16][16], b[8][16];
  const auto put = [](float* to, uint32_t pair) {
    to[0] = std::bit_cast<float>(pair << 16);
    to[1] = std::bit_cast<float>(pair & 0xffff0000u);
  };
  for (int lane = 0; lane < 32; lane++) {
    const auto* f = static_cast<Fragments*>(arguments[lane]);
    const int q = lane / 4, k = lane % 4 * 2;
    for (int j = 0; j < 4; j++) put(&a[q + 8 * (j % 2)][k + 8 * (j / 2)], f->a[j]);
    for (int j = 0; j < 2; j++) put(&b[q][k + 8 * j], f->b[j]);
  }
  // The order in which the hardware adds the 16 products is not specified: tests allow for any.
  for (int lane = 0; lane < 32; lane++) {
    auto* f = static_cast<Fragments*>(arguments[lane]);
    for (int i = 0; i < 4; i++) {
      const float *x = a[lane / 4 + 8 * (i / 2)], *y = b[lane % 4 * 2 + i % 2];
      float sum[4] = {};
      for (int k = 0; k < 16; k += 4)
        for (int u = 0; u < 4; u++) sum[u] += x[k + u] * y[k + u];
      f->d[i] += (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
  }
}

}  // namespace

void load_matrices(uint32_t (&r)[4], const void* row, bool transposed) {
  FT_EMU_NOTE(row, 16, kRead);
  Matrices matrices{row, r};
  collective(~0u, transposed ? load_lanes_transposed : load_lanes, &matrices, "ldmatrix");
}

void multiply_fragments(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  Fragments fragments{d, a, b};
  collective(~0u, multiply_lanes, &fragments, "mma");
}

}  // namespace freetoken::emu
