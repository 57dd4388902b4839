// A block walks the chunks of a segment for one head and a block of values. Each of its warps holds
// the transposed states S^T, [values, K] in fp32, of its own values in registers, and with what
// prep.cuh gives makes of each chunk, all transposed, too:
//
//   R = V - read_k K S
//   U = solve R
//   O = scale (read_q Q S + scores U)
//   S = decay S + K^T (write U)
//
// with the factors of params.h, and solve in two parts.
//
// S^T, R^T and U^T are left operands straight from the registers that hold them: warps never wait
// for one another but for the chunk's tiles. S, R and U are rounded to the io type where they
// become operands; sums are fp32, and R is rounded after its subtraction.
//
// The same walk gives a segment's summary: the state that it ends with from zero, and its
// transition, which is the walk of the identity's columns without values.
#pragma once

#include "engines/cuda/device/chunks.cuh"
#include "engines/cuda/device/copy.cuh"
#include "engines/cuda/device/gate.cuh"
#include "engines/cuda/device/mma.cuh"
#include "engines/cuda/device/norm.cuh"
#include "engines/cuda/sm80/config.h"
#include "variants/traits.h"

namespace deltaworks::cuda::sm80 {

enum class Role {
  kRun,         // values in, outputs and state out
  kState,       // values in, state out
  kTransition,  // state out
};

template <class Config>
struct WalkShared {
  using Half = typename Config::Half;
  template <int kColumns>
  using TileBytes = unsigned char[device::Tile<Half, kChunk, kColumns>::kBytes];
  struct Stage {
    alignas(16) TileBytes<Config::kK> k, q;
    alignas(16) TileBytes<Config::kVB> v;  // then the outputs
    alignas(16) uint4 solve[kSolveVectors], scores[kTriangleVectors];
    alignas(16) float rows[kRowFactors];
  };
  Stage stages[Config::kStages];
};

template <class Variant, class Config, Role kRole>
class Walk {
  static_assert(Variant::decay == Decay::kScalar, "a row's decay is one factor");
  using Half = typename Config::Half;
  using Accumulator = device::Accumulator;
  using FragmentA = device::FragmentA;
  static constexpr int kKeyTiles = Config::kK / 8;
  static constexpr int kBlocks = kChunk / 16;  // of a chunk's rows
  // fp16 ends where states may still be fine; bf16 ends with fp32.
  static constexpr bool kHalfIsNarrow = std::is_same_v<Half, __half>;

 public:
  // `value`: the first of the block's.
  __device__ Walk(const Params& p, WalkShared<Config>& s, const device::Segment& segment, int head,
                  int value)
      : p_(p), s_(s), t_(segment.begin), end_(segment.end), value_(value) {
    next_.t = segment.begin;
    const int left = (kRole == Role::kTransition ? p.K : p.V) - value;
    columns_ = left < Config::kVB ? left : Config::kVB;
    const auto rows_of = [&](const View& x, int column) {
      return static_cast<Half*>(x.data) + segment.begin * x.stride[0] +
             head / x.heads_per * x.stride[1] + column * x.stride[2];
    };
    next_.k = rows_of(p.k, 0);
    if constexpr (kRole != Role::kTransition) next_.v = rows_of(p.v, value);
    if constexpr (kRole == Role::kRun) {
      next_.q = rows_of(p.q, 0);
      o_ = rows_of(p.o, value);
    }
    next_.item = segment.chunk * p.HO + head;
  }

  __device__ void start_from(const View& view, std::int64_t at) {
    for_state([&](float& x, int value, int key) {
      if (value < columns_ && key < p_.K) {
        x = device::load_element(view, at + value * view.stride[2] + key * view.stride[3]);
      }
    });
  }
  __device__ void start_from_identity() {
    for_state([&](float& x, int value, int key) { x = value_ + value == key ? 1.0f : 0.0f; });
  }
  __device__ void store_state(const View& view, std::int64_t at) {
    for_state([&](float& x, int value, int key) {
      if (value < columns_ && key < p_.K) {
        device::store_element(view, at + value * view.stride[2] + key * view.stride[3], x);
      }
    });
  }

  __device__ void walk() {
    if (t_ < end_) load_next(0);
    int stage = 0;
    for (; t_ < end_; t_ += kChunk) {
      device::wait_async<0>();
      __syncthreads();  // the chunk is there; the one before has been read
      const int other = (stage + 1) % Config::kStages;
      if (Config::kStages == 2 && t_ + kChunk < end_) load_next(other);
      walk_chunk(s_.stages[stage]);
      if (Config::kStages == 1 && t_ + kChunk < end_) {
        __syncthreads();  // the chunk has been read
        load_next(other);
      }
      stage = other;
    }
  }

 private:
  using Stage = typename WalkShared<Config>::Stage;

  __device__ static int warp_value() { return threadIdx.x / 32 * 16; }
  // Rows of the chunk that begins at token t.
  __device__ int rows(std::int64_t t) const {
    return end_ - t < kChunk ? static_cast<int>(end_ - t) : kChunk;
  }
  // Calls f(element, value in the block, key) for what this thread holds of S^T.
  template <class F>
  __device__ void for_state(F&& f) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        f(state_[n].x[e], warp_value() + Accumulator::row(e), n * 8 + Accumulator::column(e));
      }
    }
  }

  // Starts the next chunk's copies.
  __device__ void load_next(int stage) {
    Stage& to = s_.stages[stage];
    const int here = rows(next_.t);
    const auto load = [&]<int kColumns>(void* tile, const View& x, const Half*& from, int columns) {
      device::load_rows<kThreads>(device::Tile<Half, kChunk, kColumns>(tile), from, x.stride[0],
                                  x.stride[2], here, columns, x.wide);
      from += kChunk * x.stride[0];
    };
    const auto load_prepared = [&]<int kVectors>(void* to, const void* from) {
      device::load_vectors<kThreads, kVectors>(
          to, static_cast<const uint4*>(from) + next_.item * kVectors);
    };
    load.template operator()<Config::kK>(to.k, p_.k, next_.k, p_.K);
    load_prepared.template operator()<kSolveVectors>(to.solve, p_.solve);
    load_prepared.template operator()<kRowFactors / 4>(to.rows, p_.rows);
    if constexpr (kRole != Role::kTransition) {
      load.template operator()<Config::kVB>(to.v, p_.v, next_.v, columns_);
    }
    if constexpr (kRole == Role::kRun) {
      load.template operator()<Config::kK>(to.q, p_.q, next_.q, p_.K);
      load_prepared.template operator()<kTriangleVectors>(to.scores, p_.scores);
    }
    device::commit_async();
    next_.t += kChunk;
    next_.item += p_.HO;
  }

  // Of row factors: those of this lane's two tokens in each of two neighbouring accumulators.
  struct Factors {
    float2 x[2];
    __device__ Factors(const float* rows, int token) {
      const float* at = rows + token + Accumulator::column(0);
      x[0] = *reinterpret_cast<const float2*>(at);
      x[1] = *reinterpret_cast<const float2*>(at + 8);
    }
    __device__ float of(int n, int e) const { return e % 2 == 0 ? x[n].x : x[n].y; }
  };

  // sums += left x for two neighbouring accumulators.
  __device__ static void multiply_pair(Accumulator* sums, const FragmentA& left,
                                       const device::FragmentBPair& right) {
    device::multiply_add<Half>(sums[0], left, right.x[0]);
    device::multiply_add<Half>(sums[1], left, right.x[1]);
  }
  // sums += x^T triangle^T for row block `i` of a triangle.
  __device__ static void multiply_triangle(Accumulator* sums, const FragmentA (&x)[kBlocks],
                                           const uint4* triangle, int i) {
    const uint4* block = triangle + i * (i + 1) / 2 * kBlockVectors + threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j <= i; ++j) {
      multiply_pair(sums, x[j], device::load_b_vector(block[j * kBlockVectors]));
    }
  }
  // Scales 16 columns, tokens, by their factors.
  __device__ static void scale(Accumulator* x, const Factors& factors) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[n].x[e] *= factors.of(n, e);
    }
  }

  // Multiplies the rows of K by their powers of two, two lanes of a warp a row.
  template <class TileT>
  __device__ static void scale_keys(const TileT& k) {
    const int row = threadIdx.x / 2;
    const float scale = device::row_scale<Half>(device::inverse_norm(k, row));
    __syncwarp();  // both lanes have read the row
    for (int c = threadIdx.x % 2; c < TileT::kVectors; c += 2) {
      Half* x = k.vector(row, c);
      for (int e = 0; e < 8; ++e) x[e] = device::from_float<Half>(scale * device::to_float(x[e]));
    }
    __syncthreads();  // all rows are scaled
  }

  __device__ void walk_chunk(Stage& stage) {
    using namespace device;
    const Tile<Half, kChunk, Config::kK> k(stage.k), q(stage.q);
    const Tile<Half, kChunk, Config::kVB> v(stage.v);

    if constexpr (kHalfIsNarrow) {
      if (stage.rows[kKeysScaled] != 0) scale_keys(k);
    }
    Accumulator sums[kChunk / 8], out[kChunk / 8];  // (K S)^T, (Q S)^T
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      const FragmentA left = to_a<Half>(state_[n], state_[n + 1]);
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        multiply_pair(sums + i * 2, left, load_b_transposed(k, i * 16, n * 8));
        if constexpr (kRole == Role::kRun) {
          multiply_pair(out + i * 2, left, load_b_transposed(q, i * 16, n * 8));
        }
      }
    }

    FragmentA r[kBlocks];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      FragmentA values = {};
      if constexpr (kRole != Role::kTransition) values = load_a_transposed(v, i * 16, warp_value());
      scale(sums + i * 2, Factors(stage.rows + kReadK, i * 16));
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& x = sums[i * 2 + n].x[e];
          x = unpack<Half>(values.x[n * 2 + e / 2], e % 2) - x;
          if constexpr (kHalfIsNarrow) x = bounded<Half>(x);  // as of U below
        }
      }
      r[i] = to_a<Half>(sums[i * 2], sums[i * 2 + 1]);
    }

    FragmentA u[kBlocks], written[kBlocks];  // U^T, and as the state is given it
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      Accumulator x[2];
      multiply_triangle(x, r, stage.solve + kTriangleVectors, i);
      multiply_triangle(x, r, stage.solve, i);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        // A row of U beyond the largest number must not make NaN of the rows before it, which
        // multiply it by zeros.
        for (float& each : x[n].x) each = bounded<Half>(each);
      }
      u[i] = to_a<Half>(x[0], x[1]);
      scale(x, Factors(stage.rows + kWrite, i * 16));
      written[i] = to_a<Half>(x[0], x[1]);
    }

    if constexpr (kRole == Role::kRun) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        scale(out + i * 2, Factors(stage.rows + kReadQ, i * 16));
        multiply_triangle(out + i * 2, u, stage.scores, i);
        for (int n = 0; n < 2; ++n) {
          for (float& x : out[i * 2 + n].x) x *= p_.scale;
        }
        // To where this warp's values were.
        store_transposed(v, i * 16, warp_value(), to_a<Half>(out[i * 2], out[i * 2 + 1]));
      }
    }

    const float decay = stage.rows[kChunkDecay];
    for_state([&](float& x, int, int) { x *= decay; });
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        multiply_pair(state_ + n, written[j], load_b(k, j * 16, n * 8));
      }
    }
    if constexpr (kRole == Role::kRun) store_outputs(v);
  }

  // From the tile to the outputs of the chunk.
  template <class TileT>
  __device__ void store_outputs(const TileT& tile) {
    __syncwarp();                                       // the warp's outputs are in the tile
    constexpr int kVectors = 2, kStep = 32 / kVectors;  // of a warp's values; rows at a time
    const int row = threadIdx.x % 32 / kVectors;
    const int vector = warp_value() / 8 + threadIdx.x % kVectors;
    const int here = vector * 8 < columns_ ? rows(t_) : 0;
    Half* to = o_ + row * p_.o.stride[0] + vector * 8 * p_.o.stride[2];
    if (p_.o.wide) {
#pragma unroll
      for (int i = 0; i < kChunk; i += kStep) {
        if (row + i < here) {
          *reinterpret_cast<uint4*>(to + i * p_.o.stride[0]) =
              *reinterpret_cast<const uint4*>(tile.vector(row + i, vector));
        }
      }
    } else {
      for (int i = 0; row + i < here; i += kStep) {
        for (int e = 0; e < 8; ++e) {
          to[i * p_.o.stride[0] + e * p_.o.stride[2]] = tile.vector(row + i, vector)[e];
        }
      }
    }
    o_ += kChunk * p_.o.stride[0];
  }

  const Params& p_;
  WalkShared<Config>& s_;
  std::int64_t t_, end_;  // first token of this chunk; the segment's end
  struct {
    std::int64_t t;
    const Half *k, *v, *q;
    std::int64_t item;  // number of its chunk and head
  } next_ = {};         // chunk to be loaded
  Half* o_ = nullptr;   // rows of this chunk
  int value_, columns_;
  Accumulator state_[kKeyTiles];
};

}  // namespace deltaworks::cuda::sm80
