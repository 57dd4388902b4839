// Warp-wide products on tensor cores (PTX ISA 9.7.14; sm_80 and newer): 16-bit tiles by
// mma.m16n8k16, operands by ldmatrix from swizzled tiles; fp32 matrices by mma.m16n8k8 on tf32, as
// three products of split operands. Accumulators are fp32.
//
// Of the lanes of a warp, lane 4 g + t holds of an accumulator [16, 8] the elements
// (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
#pragma once

#include <cstdint>

#include "engines/cuda/device/tile.cuh"

namespace deltaworks::cuda::device {

struct FragmentA {  // [16, 16]
  std::uint32_t x[4];
};
struct FragmentB {  // [16, 8]
  std::uint32_t x[2];
};
struct Accumulator {  // [16, 8]
  float x[4] = {0, 0, 0, 0};

  // Row and column of element i, for the calling lane.
  __device__ static int row(int i) { return (threadIdx.x % 32) / 4 + (i / 2) * 8; }
  __device__ static int column(int i) { return (threadIdx.x % 4) * 2 + i % 2; }
};

__device__ inline void ldmatrix_x4(std::uint32_t (&x)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address));
}
__device__ inline void ldmatrix_x4_transposed(std::uint32_t (&x)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address));
}
// Transposes an 8 x 8 matrix of 16-bit elements, of which lane 4 g + t holds (g, 2t), (g, 2t + 1).
__device__ inline std::uint32_t transpose_8x8(std::uint32_t x) {
  std::uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Stores the transpose of a [16, 16] matrix, two neighbouring accumulators rounded (to_a), into a
// tile: element (i, j) goes to tile(row + j, column + i).
template <HalfType Half, int kRows, int kColumns>
__device__ inline void store_transposed(const Tile<Half, kRows, kColumns>& tile, int row,
                                        int column, const FragmentA& x) {
  const int lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   tile.address(row + lane % 8 + lane / 16 * 8, column / 8 + lane / 8 % 2)),
               "r"(x.x[0]), "r"(x.x[1]), "r"(x.x[2]), "r"(x.x[3])
               : "memory");
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<std::uint32_t*>(&tile.at(
        row + i / 2 * 8 + lane / 4, column + i % 2 * 8 + lane % 4 * 2)) = transpose_8x8(x.x[i]);
  }
#endif
}

// Rows row..row+15 and columns column..column+15 of a tile as a left operand.
template <HalfType Half, int kRows, int kColumns>
__device__ inline FragmentA load_a(const Tile<Half, kRows, kColumns>& tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  FragmentA a;
  ldmatrix_x4(a.x, tile.address(row + lane % 16, column / 8 + lane / 16));
  return a;
}
// The same of the tile's transpose: element (i, j) is tile(row + j, column + i). Its four registers
// are also the pairs of two neighbouring accumulators of the transpose (see to_a).
template <HalfType Half, int kRows, int kColumns>
__device__ inline FragmentA load_a_transposed(const Tile<Half, kRows, kColumns>& tile, int row,
                                              int column) {
  const int lane = threadIdx.x % 32;
  FragmentA a;
  ldmatrix_x4_transposed(a.x,
                         tile.address(row + lane % 8 + lane / 16 * 8, column / 8 + lane / 8 % 2));
  return a;
}

// Two right operands side by side, [16, 16], of which the first has columns 0..7.
struct FragmentBPair {
  FragmentB x[2];
};

// Element (k, n) is tile(row + k, column + n): a row-major right operand.
template <HalfType Half, int kRows, int kColumns>
__device__ inline FragmentBPair load_b(const Tile<Half, kRows, kColumns>& tile, int row,
                                       int column) {
  const int lane = threadIdx.x % 32;
  std::uint32_t x[4];
  ldmatrix_x4_transposed(x, tile.address(row + lane % 16, column / 8 + lane / 16));
  return {{{{x[0], x[1]}}, {{x[2], x[3]}}}};
}
// Element (k, n) is tile(row + n, column + k): the transpose, as in A B^T.
template <HalfType Half, int kRows, int kColumns>
__device__ inline FragmentBPair load_b_transposed(const Tile<Half, kRows, kColumns>& tile, int row,
                                                  int column) {
  const int lane = threadIdx.x % 32;
  std::uint32_t x[4];
  ldmatrix_x4(x, tile.address(row + lane % 8 + lane / 16 * 8, column / 8 + lane / 8 % 2));
  return {{{{x[0], x[1]}}, {{x[2], x[3]}}}};
}
// A pair that lies in memory as a lane's 16 bytes (below).
__device__ inline FragmentBPair load_b_vector(const uint4& x) {
  return {{{{x.x, x.y}}, {{x.z, x.w}}}};
}

// c += a b
template <HalfType Half>
__device__ inline void multiply_add(Accumulator& c, const FragmentA& a, const FragmentB& b) {
  if constexpr (std::is_same_v<Half, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])
        : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])
        : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
  }
}

// Two neighbouring accumulators X, [16, 16], rounded: a left operand for the next product.
template <HalfType Half>
__device__ inline FragmentA to_a(const Accumulator& left, const Accumulator& right) {
  return {{pack<Half>(left.x[0], left.x[1]), pack<Half>(left.x[2], left.x[3]),
           pack<Half>(right.x[0], right.x[1]), pack<Half>(right.x[2], right.x[3])}};
}
// The same as a lane's vector of a right operand: B = X, and B = X^T.
template <HalfType Half>
__device__ inline uint4 to_b(const Accumulator& left, const Accumulator& right) {
  const FragmentA a = to_a<Half>(left, right);
  return {transpose_8x8(a.x[0]), transpose_8x8(a.x[1]), transpose_8x8(a.x[2]),
          transpose_8x8(a.x[3])};
}
template <HalfType Half>
__device__ inline uint4 to_b_transposed(const Accumulator& left, const Accumulator& right) {
  const FragmentA a = to_a<Half>(left, right);
  return {a.x[0], a.x[2], a.x[1], a.x[3]};
}

}  // namespace deltaworks::cuda::device
