// What a chunk gives without the state, for each chunk and head; with `fade` the decay from token
// j to token i (decay.cuh):
//
//   P_ij = fade q_i k_j             i >= j     `scores`
//   A_ij = beta_i fade k_i k_j      i > j
//   (I + A)^-1 diag(beta)                      `solve`, and what rounding leaves of it
//
// and the factors of the chunk's rows (params.h), with 1/|q| and 1/|k| where the operation
// normalises. Norms scale products in fp32; no normalised row is rounded. Rows past a chunk's end
// are zeros with beta = 0 and g = 0: they neither write nor decay. Each warp has 16 rows of both
// products, and then a column of blocks of the inverse: the first has the fewest of the one and the
// most of the other.
#pragma once

#include "engines/cuda/device/chunks.cuh"
#include "engines/cuda/device/copy.cuh"
#include "engines/cuda/device/gate.cuh"
#include "engines/cuda/device/inverse.cuh"
#include "engines/cuda/device/mma.cuh"
#include "engines/cuda/device/norm.cuh"
#include "engines/cuda/device/warp.cuh"
#include "engines/cuda/sm80/config.h"
#include "engines/cuda/sm80/decay.cuh"

namespace deltaworks::cuda::sm80 {

template <class Config>
struct PrepShared {
  using Tile = device::Tile<typename Config::Half, kChunk, Config::kK>;
  struct Rows {
    alignas(16) unsigned char q[Tile::kBytes];
    alignas(16) unsigned char k[Tile::kBytes];
  };
  union {
    Rows rows;
    alignas(16) float a[kChunk * device::kInverseStride];  // when the rows have been read
  };
  float gate[kChunk], beta[kChunk], inverse_q[kChunk], inverse_k[kChunk];
};

// Zeros to the outputs of rows past the last sequence; every block of the grid takes a part.
__device__ inline void clear_rest(const Params& p) {
  const std::int64_t rest = p.T - p.begin[p.N];
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
       i < rest * p.HO * p.V; i += step) {
    const std::int64_t t = p.begin[p.N] + i / p.V / p.HO;
    device::store_element(
        p.o, t * p.o.stride[0] + i / p.V % p.HO * p.o.stride[1] + i % p.V * p.o.stride[2], 0);
  }
}

// Number of a block of a packed triangle (params.h).
__device__ constexpr int triangle_block(int i, int j) { return i * (i + 1) / 2 + j; }

template <class Variant, class Config>
__global__ void __launch_bounds__(kThreads, Config::kBlocks)
    prepare_chunks(const __grid_constant__ Params p) {
  using namespace device;
  using Half = typename Config::Half;
  static_assert(Variant::erase == Erase::kScalar && Variant::write == Write::kScalar,
                "e = beta k and w = beta v are one solve with diag(beta) on its right");
  extern __shared__ __align__(16) unsigned char memory[];
  auto& s = *reinterpret_cast<PrepShared<Config>*>(memory);
  clear_rest(p);
  const std::int64_t index = blockIdx.x / p.HO;
  const int head = blockIdx.x % p.HO;
  const Chunk chunk = find_chunk(p, index);
  if (chunk.rows == 0) return;

  const Tile<Half, kChunk, Config::kK> q(s.rows.q), k(s.rows.k);
  const auto load = [&](const auto& tile, const View& x) {
    const auto* from = static_cast<const Half*>(x.data) + chunk.begin * x.stride[0] +
                       head / x.heads_per * x.stride[1];
    load_rows<kThreads>(tile, from, x.stride[0], x.stride[2], chunk.rows, p.K, x.wide);
  };
  load(q, p.q);
  load(k, p.k);
  commit_async();
  const int row = threadIdx.x % kChunk, warp = threadIdx.x / 32;
  if (threadIdx.x < kChunk) {
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
  }
  wait_async<0>();
  __syncthreads();  // rows, gates and betas are there
  if (warp == 0) prefix_sum_64(s.gate);
  bool scaled = false;  // this thread's key
  if (threadIdx.x < kChunk) {
    s.inverse_q[row] = p.l2norm ? inverse_norm(q, row) : 1.0f;
  } else if (p.l2norm) {
    s.inverse_k[row] = inverse_norm(k, row);
    scaled = row < chunk.rows && row_scale<Half>(s.inverse_k[row]) != 1;
  } else {
    s.inverse_k[row] = 1;
  }
  scaled = __syncthreads_or(scaled);  // of any key; sums and norms are there

  const std::int64_t item = index * p.HO + head;
  using Decays = ChunkDecay<Variant::decay>;
  if (threadIdx.x < kChunk) {
    float* rows = p.rows + item * kRowFactors;
    const float last = s.gate[kChunk - 1], start = Decays::from_start(s.gate[row]);
    const float scale = p.l2norm ? row_scale<Half>(s.inverse_k[row]) : 1.0f;
    const float factor = s.inverse_k[row] / scale;  // exact
    rows[kReadK + row] = start * factor;
    rows[kReadQ + row] = start * s.inverse_q[row];
    rows[kWrite + row] = Decays::between(s.gate[row], last) * factor;
    if (row == 0) {
      rows[kChunkDecay] = Decays::from_start(last);
      rows[kKeysScaled] = scaled ? 1.0f : 0.0f;
      rows[kKeysScaled + 1] = rows[kKeysScaled + 2] = 0;  // padding
    }
  }

  Accumulator kk[4][2], qk[4][2];  // blocks on and left of the diagonal
  for (int m = 0; m < Config::kK; m += 16) {
    const FragmentA k_rows = load_a(k, warp * 16, m), q_rows = load_a(q, warp * 16, m);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j <= warp) {
        const FragmentBPair right = load_b_transposed(k, j * 16, m);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          multiply_add<Half>(kk[j][n], k_rows, right.x[n]);
          multiply_add<Half>(qk[j][n], q_rows, right.x[n]);
        }
      }
    }
  }
  __syncthreads();  // the rows have been read; A takes their place

  uint4* scores = static_cast<uint4*>(p.scores) + item * kTriangleVectors + threadIdx.x % 32;
  float gate[2], factor_k[2], factor_q[2];  // of this lane's rows
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int i = warp * 16 + Accumulator::row(2 * n);
    gate[n] = s.gate[i];
    factor_k[n] = s.beta[i] * s.inverse_k[i];
    factor_q[n] = s.inverse_q[i];
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (j <= warp) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int c = j * 16 + n * 8 + Accumulator::column(0);
        const float2 gates = *reinterpret_cast<const float2*>(s.gate + c);
        const float2 norms = *reinterpret_cast<const float2*>(s.inverse_k + c);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = warp * 16 + Accumulator::row(2 * half);
          float* x_k = kk[j][n].x + 2 * half;
          float* x_q = qk[j][n].x + 2 * half;
          // What lies above the diagonal is selected away, never multiplied by 0.
          const float first = Decays::between(gates.x, gate[half]) * norms.x;
          const float second = Decays::between(gates.y, gate[half]) * norms.y;
          *reinterpret_cast<float2*>(s.a + i * kInverseStride + c) = {
              i > c ? x_k[0] * first * factor_k[half] : 0.0f,
              i > c + 1 ? x_k[1] * second * factor_k[half] : 0.0f};
          x_q[0] = i >= c ? x_q[0] * first * factor_q[half] : 0.0f;
          x_q[1] = i >= c + 1 ? x_q[1] * second * factor_q[half] : 0.0f;
        }
      }
      scores[triangle_block(warp, j) * kBlockVectors] = to_b_transposed<Half>(qk[j][0], qk[j][1]);
    }
  }
  __syncwarp();  // the warp's rows of A are there
  invert_diagonal_16(s.a + warp * 16 * (kInverseStride + 1));
  __syncthreads();  // all rows of A and all blocks on its diagonal are there
  uint4* solve = static_cast<uint4*>(p.solve) + item * kSolveVectors + threadIdx.x % 32;
  const float beta[2] = {s.beta[warp * 16 + Accumulator::row(0)],
                         s.beta[warp * 16 + Accumulator::row(2)]};
  invert_column(s.a, warp, [&](int i, TransposedBlock block) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) block.x[n].x[e] *= beta[e / 2];
    }
    uint4* to = solve + triangle_block(i, warp) * kBlockVectors;
    *to = to_b<Half>(block.x[0], block.x[1]);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      for (float& x : block.x[n].x) x = rest_of<Half>(x);
    }
    to[kTriangleVectors] = to_b<Half>(block.x[0], block.x[1]);
  });
}

}  // namespace deltaworks::cuda::sm80
