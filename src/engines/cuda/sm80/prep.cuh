// What a chunk gives without the state, for each chunk and head: with G the cumulative gates,
//
//   rows    G, and 1/|q|, 1/|k| where the operation normalises (else 1)
//   scores  P_ij = exp(G_i - G_j) q_i k_j              i >= j
//   solve   (I + A)^-1 diag(beta),  A_ij = beta_i exp(G_i - G_j) k_i k_j,  i > j
//
// Only differences of G with i >= j appear, so that no exponent is positive. Norms scale the
// products in fp32; no normalised row is rounded. Rows past a chunk's end are zeros with beta = 0
// and g = 0: they neither write nor decay.
#pragma once

#include "engines/cuda/device/chunks.cuh"
#include "engines/cuda/device/copy.cuh"
#include "engines/cuda/device/gate.cuh"
#include "engines/cuda/device/inverse.cuh"
#include "engines/cuda/device/mma.cuh"
#include "engines/cuda/device/warp.cuh"
#include "engines/cuda/sm80/config.h"

namespace deltaworks::cuda::sm80 {

template <class Config>
struct PrepShared {
  using Half = typename Config::Half;
  alignas(16) unsigned char q[device::Tile<Half, kChunk, Config::kK>::kBytes];
  alignas(16) unsigned char k[device::Tile<Half, kChunk, Config::kK>::kBytes];
  alignas(16) float a[kChunk * device::kInverseStride];
  alignas(16) float x[kChunk * device::kInverseStride];
  float gate[kChunk], beta[kChunk], inverse_q[kChunk], inverse_k[kChunk];
};

// 1 / sqrt(|row|^2 + 1e-6) of the tile's rows, a warp a row.
template <class Tile>
__device__ inline void inverse_norms(const Tile& tile, int columns, float* norms) {
  const int lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < kChunk; row += blockDim.x / 32) {
    float sum = 0;
    for (int c = lane; c < columns; c += 32) {
      const float x = device::to_float(tile.at(row, c));
      sum += x * x;
    }
    sum = device::warp_sum(sum);
    if (lane == 0) norms[row] = rsqrtf(sum + 1e-6f);
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads) prepare_chunks(Params p) {
  using namespace device;
  using Half = typename Config::Half;
  extern __shared__ unsigned char memory[];
  auto& s = *reinterpret_cast<PrepShared<Config>*>(memory);
  const std::int64_t index = blockIdx.x / p.HO;
  const int head = blockIdx.x % p.HO;
  const Chunk chunk = find_chunk(p, index);
  if (chunk.rows == 0) return;

  const Tile<Half, kChunk, Config::kK> q(s.q), k(s.k);
  const auto load = [&](const auto& tile, const View& x) {
    const auto* from = static_cast<const Half*>(x.data) + chunk.begin * x.stride[0] +
                       head / x.heads_per * x.stride[1];
    load_rows(tile, from, x.stride[0], x.stride[2], chunk.rows, p.K, x.wide);
  };
  load(q, p.q);
  load(k, p.k);
  commit_async();
  if (threadIdx.x < kChunk) {
    const int row = threadIdx.x;
    const bool valid = row < chunk.rows;
    const std::int64_t t = chunk.begin + row;
    s.gate[row] =
        valid ? effective_gate(p.gate, load_element(p.g, t * p.g.stride[0] + head * p.g.stride[1]),
                               parameter(p.a_log, head), parameter(p.dt_bias, head))
              : 0.0f;
    s.beta[row] = valid
                      ? effective_beta(
                            p, load_element(p.beta, t * p.beta.stride[0] + head * p.beta.stride[1]))
                      : 0.0f;
    s.inverse_q[row] = s.inverse_k[row] = 1;
  }
  wait_async<0>();
  __syncthreads();  // rows, gates and betas are there
  if (threadIdx.x < 32) prefix_sum_64(s.gate);
  if (p.l2norm) {
    inverse_norms(q, Config::kK, s.inverse_q);
    inverse_norms(k, Config::kK, s.inverse_k);
  }
  __syncthreads();  // sums and norms are there

  // Each warp has 16 rows and 32 columns of both products.
  const int row = threadIdx.x / 32 % 4 * 16, column = threadIdx.x / 128 * 32;
  Accumulator kk[4], qk[4];
  for (int m = 0; m < Config::kK; m += 16) {
    const FragmentA k_rows = load_a(k, row, m), q_rows = load_a(q, row, m);
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      const FragmentBPair right = load_b_transposed(k, column + n * 8, m);
      for (int half = 0; half < 2; ++half) {
        multiply_add<Half>(kk[n + half], k_rows, right.x[half]);
        multiply_add<Half>(qk[n + half], q_rows, right.x[half]);
      }
    }
  }
  const std::int64_t item = index * p.HO + head;
  Half* scores = static_cast<Half*>(p.scores) + item * kChunk * kChunk;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    for (int e = 0; e < 4; ++e) {
      const int i = row + Accumulator::row(e), j = column + n * 8 + Accumulator::column(e);
      // Above the diagonal the exponent may be positive: selected away, never multiplied by 0.
      const float fade = i >= j ? expf(s.gate[i] - s.gate[j]) : 0.0f;
      const float pair_q = qk[n].x[e] * s.inverse_q[i] * s.inverse_k[j] * fade;
      const float pair_k = kk[n].x[e] * s.inverse_k[i] * s.inverse_k[j] * fade;
      scores[i * kChunk + j] = from_float<Half>(i >= j ? pair_q : 0.0f);
      s.a[i * kInverseStride + j] = i > j ? s.beta[i] * pair_k : 0.0f;
    }
  }
  invert_unit_lower_64(s.a, s.x);
  Half* solve = static_cast<Half*>(p.solve) + item * kChunk * kChunk;
  for (int e = threadIdx.x; e < kChunk * kChunk; e += blockDim.x) {
    const int i = e / kChunk, j = e % kChunk;
    solve[e] = from_float<Half>(s.x[i * kInverseStride + j] * s.beta[j]);
  }
  if (threadIdx.x < kChunk) {
    float* rows = p.rows + item * 3 * kChunk + threadIdx.x;
    rows[0] = s.gate[threadIdx.x];
    rows[kChunk] = s.inverse_q[threadIdx.x];
    rows[2 * kChunk] = s.inverse_k[threadIdx.x];
  }
}

}  // namespace deltaworks::cuda::sm80
