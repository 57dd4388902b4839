// X = (I + A)^-1 of a strictly lower triangular A, [64, 64] fp32 in shared memory and aligned to 16
// bytes: the 16 x 16 blocks D on the diagonal by forward substitution, then each column of blocks j
// by itself,
//
//   X_jj = D_j^-1,   X_ij = -D_i^-1 sum_{j <= m < i} A_im X_mj      i > j,
//
// as products of split fp32 operands. (Powers of A would overflow where keys repeat.) A row of X
// depends on the rows of A up to it alone. X is made transposed, in registers: a block X_ij^T is
// two accumulators, and the left operand of the blocks below it.
#pragma once

#include "engines/cuda/device/split.cuh"

namespace deltaworks::cuda::device {

inline constexpr int kInverseRows = 64;
// Floats of a row: eight rows and four pairs, which a load of a right operand takes, lie in
// different banks.
inline constexpr int kInverseStride = kInverseRows + 8;

// Replaces one 16 x 16 block on the diagonal, of which only what lies below the diagonal is read,
// by its whole inverse. One warp; the block is its own until others wait for it.
__device__ inline void invert_diagonal_16(float* block) {
  const int column = threadIdx.x % 16;  // the upper half of the warp does the same again
  float solved[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float sums[4] = {};
#pragma unroll
    for (int m = 0; m < i; m += 4) {
      const float4 row = *reinterpret_cast<const float4*>(block + i * kInverseStride + m);
      const float a[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (m + n < i) sums[n] += a[n] * solved[m + n];
      }
    }
    const float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    solved[i] = i == column ? 1.0f : i < column ? 0.0f : -sum;
  }
  __syncwarp();  // every lane has read the block
#pragma unroll
  for (int i = 0; i < 16; ++i) block[i * kInverseStride + column] = solved[i];
  __syncwarp();
}

// A transposed 16 x 16 block, in the columns' order of two accumulators.
struct TransposedBlock {
  Accumulator x[2];
};

// c += a B^T for the 16 x 16 block B at `b`.
__device__ inline void multiply_add_transposed(TransposedBlock& c, const SplitA (&a)[2],
                                               const float* b) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < 2; ++step) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float* row = b + (n * 8 + lane / 4) * kInverseStride + step * 8 + lane % 4 * 2;
      multiply_add(c.x[n], a[step], split_b(row[0], row[1]));
    }
  }
}

// One column of blocks by one warp, given A with its diagonal blocks inverted: calls
// store(i, block) with X_ij^T for i = j..3.
template <class Store>
__device__ inline void invert_column(const float* a, int j, Store&& store) {
  const auto at = [a](int i, int m) { return a + (i * kInverseStride + m) * 16; };
  SplitA left[4][2];  // X_mj^T, m = j, j + 1, ...
  const auto finish = [&](int index, const TransposedBlock& block) {
    left[index][0] = split_a(block.x[0]);
    left[index][1] = split_a(block.x[1]);
    store(j + index, block);
  };
  TransposedBlock first;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      first.x[n].x[e] =
          at(j, j)[(n * 8 + Accumulator::column(e)) * kInverseStride + Accumulator::row(e)];
    }
  }
  finish(0, first);
#pragma unroll
  for (int below = 1; below < 4; ++below) {
    if (j + below < 4) {
      TransposedBlock sum, block;
#pragma unroll
      for (int m = 0; m < below; ++m) {
        multiply_add_transposed(sum, left[m], at(j + below, j + m));
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        // Bounded: a later row's infinity must not reach the rows before it through their zeros.
        for (float& x : sum.x[n].x) x = bounded<__nv_bfloat16>(-x);
      }
      const SplitA negated[2] = {split_a(sum.x[0]), split_a(sum.x[1])};
      multiply_add_transposed(block, negated, at(j + below, j + below));
      finish(below, block);
    }
  }
}

}  // namespace deltaworks::cuda::device
