// A block walks the chunks of one (sequence, head) for a block of values and keeps their state S,
// [K, VB] in fp32, in registers. For each chunk, with what prep.cuh gives and G the cumulative
// gates:
//
//   R = V - exp(G) K S                 rows scaled by 1/|k|, as K is everywhere
//   U = solve R
//   O = scale (exp(G) Q S + scores U)  rows of Q S scaled by 1/|q|
//   S = exp(G_C) S + K^T (exp(G_C - G) U)
//
// S, R and U are rounded to the io type where they become operands; sums are fp32, and R is rounded
// after its subtraction.
#pragma once

#include "engines/cuda/device/chunks.cuh"
#include "engines/cuda/device/copy.cuh"
#include "engines/cuda/device/gate.cuh"
#include "engines/cuda/device/mma.cuh"
#include "engines/cuda/sm80/config.h"

namespace deltaworks::cuda::sm80 {

template <class Config>
struct RunShared {
  using Half = typename Config::Half;
  template <int kRows, int kColumns>
  using TileBytes = unsigned char[device::Tile<Half, kRows, kColumns>::kBytes];
  alignas(16) TileBytes<kChunk, Config::kK> q, k;
  alignas(16) TileBytes<Config::kK, Config::kVB> state;
  alignas(16) TileBytes<kChunk, Config::kVB> v, r, u;
  alignas(16) TileBytes<kChunk, kChunk> solve, scores;
  // Factors of the rows of K S, Q S, and of U for the state; and the decay of the whole chunk.
  float read_k[kChunk], read_q[kChunk], write[kChunk], decay;
};

template <class Config>
class Run {
  using Half = typename Config::Half;
  using Accumulator = device::Accumulator;
  static constexpr int kKeyTiles = Config::kK / 64;   // of 16 keys, of a warp's part of S
  static constexpr int kTiles = Config::kVB / 2 / 8;  // of 8 columns, of a warp's part of anything

 public:
  __device__ Run(const Params& p, RunShared<Config>& s, int n, int head, int value)
      : p_(p),
        s_(s),
        n_(n),
        head_(head),
        value_(value),
        columns_(p.V - value < Config::kVB ? p.V - value : Config::kVB) {}

  __device__ void walk() {
    load_state();
    const std::int64_t begin = p_.begin[n_], end = p_.begin[n_ + 1];
    std::int64_t item = p_.chunks[n_] * p_.HO + head_;
    for (std::int64_t t = begin; t < end; t += kChunk, item += p_.HO) {
      const int rows = static_cast<int>(end - t < kChunk ? end - t : kChunk);
      load_chunk(t, rows, item);
      chunk(t, rows);
      __syncthreads();  // the tiles have been read; the next chunk may come
    }
    store_state();
  }

 private:
  __device__ static int warp_row() { return threadIdx.x / 32 % 4; }
  __device__ static int warp_column() { return threadIdx.x / 128 * (Config::kVB / 2); }

  __device__ std::int64_t state_at(const View& x, int key, int column) const {
    return n_ * x.stride[0] + head_ * x.stride[1] + (value_ + column) * x.stride[2] +
           key * x.stride[3];
  }
  // Calls f(element, key, column) for the elements of S that this thread holds.
  template <class F>
  __device__ void for_state(F&& f) {
    const int key = warp_row() * kKeyTiles * 16;
#pragma unroll
    for (int m = 0; m < kKeyTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          f(state_[m][n].x[e], key + m * 16 + Accumulator::row(e),
            warp_column() + n * 8 + Accumulator::column(e));
        }
      }
    }
  }

  __device__ void load_state() {
    if (p_.initial_state.data == nullptr) return;
    for_state([&](float& x, int key, int column) {
      if (key < p_.K && column < columns_) {
        x = device::load_element(p_.initial_state, state_at(p_.initial_state, key, column));
      }
    });
  }
  __device__ void store_state() {
    if (p_.final_state.data == nullptr) return;
    for_state([&](float& x, int key, int column) {
      if (key < p_.K && column < columns_) {
        device::store_element(p_.final_state, state_at(p_.final_state, key, column), x);
      }
    });
  }

  __device__ void load_chunk(std::int64_t t, int rows, std::int64_t item) {
    using namespace device;
    const auto load = [&](const auto& tile, const View& x, int first, int columns) {
      const auto* from = static_cast<const Half*>(x.data) + t * x.stride[0] +
                         head_ / x.heads_per * x.stride[1] + first * x.stride[2];
      load_rows(tile, from, x.stride[0], x.stride[2], rows, columns, x.wide);
    };
    load(Tile<Half, kChunk, Config::kK>(s_.q), p_.q, 0, p_.K);
    load(Tile<Half, kChunk, Config::kK>(s_.k), p_.k, 0, p_.K);
    load(Tile<Half, kChunk, Config::kVB>(s_.v), p_.v, value_, columns_);
    const auto prepared = [&](void* tile, const void* x) {
      load_rows(Tile<Half, kChunk, kChunk>(tile),
                static_cast<const Half*>(x) + item * kChunk * kChunk, kChunk, 1, kChunk, kChunk,
                true);
    };
    prepared(s_.solve, p_.solve);
    prepared(s_.scores, p_.scores);
    commit_async();
    if (threadIdx.x < kChunk) {
      const int i = threadIdx.x;
      const float* from = p_.rows + item * 3 * kChunk;
      const float gate = from[i], last = from[kChunk - 1], inverse_k = from[2 * kChunk + i];
      s_.read_q[i] = expf(gate) * from[kChunk + i];
      s_.read_k[i] = expf(gate) * inverse_k;
      s_.write[i] = expf(last - gate) * inverse_k;
      if (i == 0) s_.decay = expf(last);
    }
    const Tile<Half, Config::kK, Config::kVB> state(s_.state);
    const int key = warp_row() * kKeyTiles * 16;
#pragma unroll
    for (int m = 0; m < kKeyTiles; ++m) store_rounded(state, key + m * 16, state_[m]);
    wait_async<0>();
    __syncthreads();  // the chunk and the rounded state are there
  }

  // Rounds 16 rows of a result into a tile, a pair of columns a store.
  template <class TileT>
  __device__ static void store_rounded(const TileT& tile, int row, const Accumulator (&x)[kTiles]) {
    row += Accumulator::row(0);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int column = warp_column() + n * 8 + Accumulator::column(0);
      store_pair(&tile.at(row, column), x[n].x[0], x[n].x[1]);
      store_pair(&tile.at(row + 8, column), x[n].x[2], x[n].x[3]);
    }
  }
  __device__ static void store_pair(Half* to, float first, float second) {
    *reinterpret_cast<std::uint32_t*>(to) = device::pack<Half>(first, second);
  }

  // sums += a b for 16 rows of a, [*, kDepth], and this warp's columns of b.
  template <int kDepth, class TileA, class TileB>
  __device__ static void product(Accumulator (&sums)[kTiles], const TileA& a, int row,
                                 const TileB& b) {
#pragma unroll
    for (int m = 0; m < kDepth; m += 16) {
      const device::FragmentA left = device::load_a(a, row, m);
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        const device::FragmentBPair right = device::load_b(b, m, warp_column() + n * 8);
        device::multiply_add<Half>(sums[n], left, right.x[0]);
        device::multiply_add<Half>(sums[n + 1], left, right.x[1]);
      }
    }
  }
  // Calls f(element, i, j) for this warp's part of a [64, VB] result.
  template <class F>
  __device__ static void for_rows(Accumulator (&sums)[kTiles], F&& f) {
    const int row = warp_row() * 16;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        f(sums[n].x[e], row + Accumulator::row(e), warp_column() + n * 8 + Accumulator::column(e));
      }
    }
  }

  __device__ void chunk(std::int64_t t, int rows) {
    using namespace device;
    const Tile<Half, kChunk, Config::kK> q(s_.q), k(s_.k);
    const Tile<Half, Config::kK, Config::kVB> state(s_.state);
    const Tile<Half, kChunk, Config::kVB> v(s_.v), r(s_.r), u(s_.u);
    const Tile<Half, kChunk, kChunk> solve(s_.solve), scores(s_.scores);
    const int row = warp_row() * 16;

    Accumulator out[kTiles];
    product<Config::kK>(out, q, row, state);
    {
      Accumulator sums[kTiles];
      product<Config::kK>(sums, k, row, state);
      for_rows(sums, [&](float& x, int i, int j) { x = to_float(v.at(i, j)) - s_.read_k[i] * x; });
      store_rounded(r, row, sums);
    }
    __syncthreads();  // R is there
    {
      Accumulator sums[kTiles];
      product<kChunk>(sums, solve, row, r);
      store_rounded(u, row, sums);
      __syncthreads();  // R has been read; its tile takes the rows that the state is given
      for_rows(sums, [&](float& x, int i, int) { x *= s_.write[i]; });
      store_rounded(r, row, sums);
    }
    __syncthreads();  // U is there, both ways
    for_rows(out, [&](float& x, int i, int) { x *= s_.read_q[i]; });
    product<kChunk>(out, scores, row, u);
    auto* o = static_cast<Half*>(p_.o.data) + t * p_.o.stride[0] + head_ * p_.o.stride[1] +
              value_ * p_.o.stride[2];
    for_rows(out, [&](float& x, int i, int j) {
      if (i < rows && j < columns_) {
        o[i * p_.o.stride[0] + j * p_.o.stride[2]] = from_float<Half>(p_.scale * x);
      }
    });

    for_state([&](float& x, int, int) { x *= s_.decay; });
    const int key = warp_row() * kKeyTiles * 16;
#pragma unroll
    for (int j = 0; j < kChunk; j += 16) {
      FragmentA left[kKeyTiles];
#pragma unroll
      for (int m = 0; m < kKeyTiles; ++m) left[m] = load_a_transposed(k, j, key + m * 16);
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        const FragmentBPair right = load_b(r, j, warp_column() + n * 8);
#pragma unroll
        for (int m = 0; m < kKeyTiles; ++m) {
          multiply_add<Half>(state_[m][n], left[m], right.x[0]);
          multiply_add<Half>(state_[m][n + 1], left[m], right.x[1]);
        }
      }
    }
  }

  const Params& p_;
  RunShared<Config>& s_;
  int n_, head_, value_, columns_;
  Accumulator state_[kKeyTiles][kTiles];
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads) run_chunks(const __grid_constant__ Params p) {
  extern __shared__ unsigned char memory[];
  const int blocks = (p.V + Config::kVB - 1) / Config::kVB;
  const int pair = blockIdx.x / blocks;
  Run<Config>(p, *reinterpret_cast<RunShared<Config>*>(memory), pair / p.HO, pair % p.HO,
              blockIdx.x % blocks * Config::kVB)
      .walk();
}

}  // namespace deltaworks::cuda::sm80
