// X = (I + A)^-1 of a strictly lower triangular A, [64, 64] fp32 in shared memory, by a block of
// threads: the four 16 x 16 blocks on the diagonal by forward substitution, then merged twice,
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

// X21 of a merge of two neighbouring blocks of kSize; `a` and `x` point to the first. Each of
// `threads` threads owns elements of X21; `scratch` holds the product A21 X11, [kSize, kSize].
template <int kSize>
__device__ inline void merge_product(const float* a, const float* x, float* scratch, int thread,
                                     int threads) {
  for (int e = thread; e < kSize * kSize; e += threads) {
    const int i = e / kSize, j = e % kSize;
    float sum = 0;
#pragma unroll 8
    for (int m = j; m < kSize; ++m) {  // X11 is lower triangular
      sum += a[(kSize + i) * kInverseStride + m] * x[m * kInverseStride + j];
    }
    scratch[i * kInverseStride + j] = sum;
  }
}
template <int kSize>
__device__ inline void merge_solve(float* x, const float* scratch, int thread, int threads) {
  for (int e = thread; e < kSize * kSize; e += threads) {
    const int i = e / kSize, j = e % kSize;
    float sum = 0;
#pragma unroll 8
    for (int m = 0; m <= i; ++m) {
      sum += x[(kSize + i) * kInverseStride + kSize + m] * scratch[m * kInverseStride + j];
    }
    x[(kSize + i) * kInverseStride + j] = -sum;
  }
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
  // Pairs of 16: a half of the threads each. The products lie above the diagonal for a while.
  const int half = threads / 2, pair = thread / half;
  const int corner = pair * 32 * (kInverseStride + 1);
  merge_product<16>(a + corner, x + corner, x + corner + 16, thread % half, half);
  __syncthreads();  // the products of both pairs are there
  merge_solve<16>(x + corner, x + corner + 16, thread % half, half);
  __syncthreads();  // and have been read
  merge_product<32>(a, x, x + 32, thread, threads);
  __syncthreads();
  merge_solve<32>(x, x + 32, thread, threads);
  __syncthreads();  // the scratch above the diagonal may be cleared
  for (int e = thread; e < kInverseRows * kInverseRows; e += threads) {
    const int i = e / kInverseRows, j = e % kInverseRows;
    if (j > i) x[i * kInverseStride + j] = 0;
  }
  __syncthreads();
}

}  // namespace deltaworks::cuda::device
