// Which element of a matrix lies where in the registers of a warp, as device.h says it. instructions_test.cu holds the
// emulator to these maps, cute_maps.cpp holds the maps to CuTe's.
#pragma once

namespace freetoken::cuda::maps {

struct Element {
  int major, minor;  // A: row, k. B: column, k. D: row, column
};
// Value v of a lane; two bf16 values share a register.
constexpr Element mma_a(int lane, int v) { return {lane / 4 + v / 2 % 2 * 8, lane % 4 * 2 + v / 4 * 8 + v % 2}; }
constexpr Element mma_b(int lane, int v) { return {lane / 4, lane % 4 * 2 + v / 2 * 8 + v % 2}; }
constexpr Element mma_d(int lane, int v) { return {lane / 4 + v / 2 * 8, lane % 4 * 2 + v % 2}; }
// 16-bit value v (0, 1) of register j after ldmatrix: the element of matrix j.
constexpr Element matrix(int lane, int v) { return {lane / 4, lane % 4 * 2 + v}; }
constexpr Element matrix_transposed(int lane, int v) { return {lane % 4 * 2 + v, lane / 4}; }

}  // namespace freetoken::cuda::maps
