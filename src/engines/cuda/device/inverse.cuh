// X = (I + A)^-1 of a strictly lower triangular A, [64, 64] fp32 in shared memory, aligned to 16
// bytes, by a block of threads: the four 16 x 16 blocks on the diagonal by forward substitution,
// then merged twice,
//
//   [I + A11        ]^-1   [ X11              X11 = (I + A11)^-1,  X22 = (I + A22)^-1
//   [A21     I + A22]    = [ X21   X22 ],     X21 = -X22 (A21 X11),
//
// all in fp32. (Powers of A would overflow where keys repeat.) A row of X depends on the rows of A
// up to it alone.
#pragma once

namespace deltaworks::cuda::device {

inline constexpr int kInverseRows = 64;
inline constexpr int kInverseStride = kInverseRows + 4;  // floats, of a row of A and of X

// One 16 x 16 block on the diagonal by 16 lanes, a column each.
__device__ inline void invert_diagonal_16(const float* a, float* x, int column) {
  float solved[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float sum = 0;
#pragma unroll
    for (int m = 0; m < i; ++m) sum += a[i * kInverseStride + m] * solved[m];
    solved[i] = i == column ? 1.0f : i < column ? 0.0f : -sum;
    x[i * kInverseStride + column] = solved[i];
  }
}

// C = A B or, kNegated, -A B, for [kSize, kSize] blocks of rows of kInverseStride floats. Each
// thread takes four rows of a column and goes through the middle axis four at a time: first(row,
// column) to last(row, column), multiples of 4 between which the factors are that are not zero.
template <int kSize, bool kNegated, class First, class Last>
__device__ inline void multiply_blocks(const float* a, const float* b, float* c, int thread,
                                       int threads, First first, Last last) {
  for (int e = thread; e < kSize / 4 * kSize; e += threads) {
    const int i = e / kSize * 4, j = e % kSize;
    float sums[4] = {};
#pragma unroll 2
    for (int m = first(i, j); m < last(i, j); m += 4) {
      float column[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) column[n] = b[(m + n) * kInverseStride + j];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float4 row = *reinterpret_cast<const float4*>(a + (i + r) * kInverseStride + m);
        sums[r] += row.x * column[0];
        sums[r] += row.y * column[1];
        sums[r] += row.z * column[2];
        sums[r] += row.w * column[3];
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) c[(i + r) * kInverseStride + j] = kNegated ? -sums[r] : sums[r];
  }
}

// X21 of a merge of two neighbouring blocks of kSize, of which `a` and `x` point to the first, in
// two steps with a barrier between: the product A21 X11, which lies above the diagonal for a while,
// then X21. The 16 x 16 blocks on a diagonal are whole, so four at a time never meets what is not
// there.
template <int kSize>
__device__ inline void merge_product(const float* a, float* x, int thread, int threads) {
  multiply_blocks<kSize, false>(
      a + kSize * kInverseStride, x, x + kSize, thread, threads,
      [](int, int j) { return j / 4 * 4; }, [](int, int) { return kSize; });
}
template <int kSize>
__device__ inline void merge_solve(float* x, int thread, int threads) {
  float* second = x + kSize * kInverseStride;
  multiply_blocks<kSize, true>(
      second + kSize, x + kSize, second, thread, threads, [](int, int) { return 0; },
      [](int i, int) { return i + 4; });
}

// Reads A below its diagonal alone and writes the whole of X, zeros above its diagonal included;
// `x` is scratch in between. Blocks of at least 64 threads, a multiple of 64; begins and ends with
// the block's barrier.
__device__ inline void invert_unit_lower_64(const float* a, float* x) {
  const int thread = threadIdx.x, threads = blockDim.x;
  __syncthreads();  // A is written
  if (thread < 64) {
    const int corner = thread / 16 * 16 * (kInverseStride + 1);
    invert_diagonal_16(a + corner, x + corner, thread % 16);
  }
  __syncthreads();  // the diagonal blocks are there
  // Pairs of 16: a half of the threads each.
  const int half = threads / 2, pair = thread / half;
  const int corner = pair * 32 * (kInverseStride + 1);
  merge_product<16>(a + corner, x + corner, thread % half, half);
  __syncthreads();  // the products of both pairs are there
  merge_solve<16>(x + corner, thread % half, half);
  __syncthreads();  // and have been read
  merge_product<32>(a, x, thread, threads);
  __syncthreads();  // the product is there
  merge_solve<32>(x, thread, threads);
  __syncthreads();  // the scratch above the diagonal may be cleared
  for (int e = thread; e < kInverseRows * kInverseRows; e += threads) {
    const int i = e / kInverseRows, j = e % kInverseRows;
    if (j > i) x[i * kInverseStride + j] = 0;
  }
  __syncthreads();
}

}  // namespace deltaworks::cuda::device
