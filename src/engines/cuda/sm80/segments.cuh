// The kernels that walk. If no sequence is cut, the first one does everything. Else:
//
//   walk_first    first segments run; of the further ones between the first and the last of a
//                 sequence, states from zero and transitions
//   fix_up        from there the states that enter further segments, one after another:
//                 S' = S M + H, rows of values (the order in which states are stored)
//   walk_further  further segments run
//
// The exact product of transitions, whatever the gates: nothing is dropped.
#pragma once

#include "engines/cuda/device/split.cuh"
#include "engines/cuda/sm80/walk.cuh"

namespace deltaworks::cuda::sm80 {

__device__ inline View state_view(const Params& p, float* data, int rows) {
  const std::int64_t row = p.K, head = rows * row;
  return {.data = data, .dtype = DType::kFloat32, .stride = {p.HO * head, head, row, 1}};
}
__device__ inline View states(const Params& p) { return state_view(p, p.states, p.V); }
__device__ inline View transitions(const Params& p) { return state_view(p, p.transitions, p.K); }

__device__ inline std::int64_t offset(const View& x, std::int64_t row, int head, int value) {
  return row * x.stride[0] + head * x.stride[1] + value * x.stride[2];
}

__host__ __device__ inline int blocks_of(int values, int block) {
  return (values + block - 1) / block;
}

// Outputs and state of a segment for a block of values.
template <class Variant, class Config>
__device__ inline void run_segment(const Params& p, WalkShared<Config>& s,
                                   const device::Segment& segment, int head, int value) {
  Walk<Variant, Config, Role::kRun> walk(p, s, segment, head, value);
  const std::int64_t further = p.further[segment.n] + segment.number - 1;  // of this one
  if (segment.number > 0) {
    const View from = states(p);
    walk.start_from(from, offset(from, further, head, value));
  } else if (p.initial_state.data != nullptr) {
    walk.start_from(p.initial_state, offset(p.initial_state, segment.n, head, value));
  }
  walk.walk();
  if (segment.last) {
    if (p.final_state.data != nullptr) {
      walk.store_state(p.final_state, offset(p.final_state, segment.n, head, value));
    }
  } else if (segment.number == 0) {
    const View to = states(p);
    walk.store_state(to, offset(to, further + 1, head, value));
  }
}

template <class Variant, class Config>
__global__ void __launch_bounds__(kThreads, Config::kBlocks)
    walk_first(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& s = *reinterpret_cast<WalkShared<Config>*>(memory);
  const int value_blocks = blocks_of(p.V, Config::kVB), key_blocks = blocks_of(p.K, Config::kVB);
  const std::int64_t first = static_cast<std::int64_t>(p.N) * p.HO * value_blocks;
  if (blockIdx.x < first) {
    const int pair = blockIdx.x / value_blocks;
    run_segment<Variant, Config>(p, s, device::segment_of(p, pair / p.HO, 0), pair % p.HO,
                                 blockIdx.x % value_blocks * Config::kVB);
    return;
  }
  const std::int64_t rest = blockIdx.x - first;
  const std::int64_t further = rest / (value_blocks + key_blocks) / p.HO;
  const int head = rest / (value_blocks + key_blocks) % p.HO;
  const int block = rest % (value_blocks + key_blocks);
  if (further >= p.further[p.N]) return;
  const device::Segment segment = device::find_further(p, further);
  if (segment.last) return;
  if (block < value_blocks) {
    const int value = block * Config::kVB;
    Walk<Variant, Config, Role::kState> walk(p, s, segment, head, value);
    walk.walk();
    const View to = states(p);
    walk.store_state(to, offset(to, further + 1, head, value));  // H, to which fix_up adds
  } else {
    const int value = (block - value_blocks) * Config::kVB;
    Walk<Variant, Config, Role::kTransition> walk(p, s, segment, head, value);
    walk.start_from_identity();
    walk.walk();
    const View to = transitions(p);
    walk.store_state(to, offset(to, further, head, value));
  }
}

template <class Variant, class Config>
__global__ void __launch_bounds__(kThreads, Config::kBlocks)
    walk_further(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& s = *reinterpret_cast<WalkShared<Config>*>(memory);
  const int value_blocks = blocks_of(p.V, Config::kVB);
  const std::int64_t further = blockIdx.x / value_blocks / p.HO;
  if (further >= p.further[p.N]) return;
  run_segment<Variant, Config>(p, s, device::find_further(p, further),
                               blockIdx.x / value_blocks % p.HO,
                               blockIdx.x % value_blocks * Config::kVB);
}

inline constexpr int kFixValues = 16;  // of a block

// A block takes a sequence's further segments in turn for a head and 16 values; each warp makes a
// quarter of the keys' columns. Columns lie so that a lane's of all its accumulators are
// neighbours: it reads a row of M and writes a row of S in vectors. kK: the keys, padded.
template <int kK>
__global__ void __launch_bounds__(kThreads) fix_up(const __grid_constant__ Params p) {
  using namespace device;
  constexpr int kTiles = kK / kWarps / 8;
  constexpr int kDepth = kK < 128 ? kK : 128 / kTiles * 4;  // rows of M under way at once
  constexpr int kStride = kK + 8;  // floats: rows and pairs of a load lie in different banks
  using Vector = std::conditional_t<kTiles == 2, float2, float4>;
  constexpr int kWidth = sizeof(Vector) / 4, kVectors = kTiles / kWidth;
  __shared__ alignas(16) float s[kFixValues * kStride];
  const int value_blocks = blocks_of(p.V, kFixValues);
  const std::int64_t first = blockIdx.x / value_blocks / p.HO;
  const int head = blockIdx.x / value_blocks % p.HO;
  const int value = blockIdx.x % value_blocks * kFixValues;
  if (first >= p.further[p.N]) return;
  Segment segment = find_further(p, first);
  if (segment.number != 1) return;  // another block's

  const View state = states(p), transition = transitions(p);
  const int lane = threadIdx.x % 32, warp_key = threadIdx.x / 32 * kTiles * 8;
  for (int i = threadIdx.x; i < kFixValues * kK; i += kThreads) {
    const int row = i / kK, key = i % kK;
    const bool valid = key < p.K && value + row < p.V;
    s[row * kStride + key] = valid ? p.states[offset(state, first, head, value + row) + key] : 0.0f;
  }
  for (std::int64_t further = first; !segment.last;
       ++further, segment = segment_of(p, segment.n, segment.number + 1)) {
    // Calls f(vector, number of its first accumulator and element, row, key). K and V are multiples
    // of 16.
    const auto for_vectors = [&](auto&& f) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int n = 0; n < kTiles; n += kWidth) {
          const int row = Accumulator::row(e), key = warp_key + Accumulator::column(e) * kTiles + n;
          f(n, e, row, key, key < p.K && value + row < p.V);
        }
      }
    };
    Accumulator sums[kTiles];
    float* next = p.states + offset(state, further + 1, head, value);
    for_vectors([&](int n, int e, int row, int key, bool valid) {
      if (!valid) return;
      const Vector h = *reinterpret_cast<const Vector*>(next + row * p.K + key);
      for (int i = 0; i < kWidth; ++i) sums[n + i].x[e] = (&h.x)[i];
    });
    const float* m = p.transitions + offset(transition, further, head, 0);
#pragma unroll 1
    for (int c = 0; c < kK; c += kDepth) {
      Vector rows[kDepth / 8][2][kVectors];
#pragma unroll
      for (int step = 0; step < kDepth / 8; ++step) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = c + step * 8 + lane % 4 * 2 + i, key = warp_key + lane / 4 * kTiles;
          const auto* from = reinterpret_cast<const Vector*>(m + row * p.K + key);
#pragma unroll
          for (int n = 0; n < kVectors; ++n) {
            rows[step][i][n] = row < p.K && key + n * kWidth < p.K ? from[n] : Vector{};
          }
        }
      }
      if (c == 0) __syncthreads();  // the entering state is there
#pragma unroll
      for (int step = 0; step < kDepth / 8; ++step) {
        const float* at = s + lane / 4 * kStride + c + step * 8 + lane % 4 * 2;
        const float2 low = *reinterpret_cast<const float2*>(at);
        const float2 high = *reinterpret_cast<const float2*>(at + 8 * kStride);
        const SplitA left = split_a({{low.x, low.y, high.x, high.y}});
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          multiply_add(sums[n], left,
                       split_b((&rows[step][0][n / kWidth].x)[n % kWidth],
                               (&rows[step][1][n / kWidth].x)[n % kWidth]));
        }
      }
    }
    __syncthreads();  // the entering state has been read
    for_vectors([&](int n, int e, int row, int key, bool valid) {
      Vector x;
      for (int i = 0; i < kWidth; ++i) (&x.x)[i] = sums[n + i].x[e];
      if (valid) *reinterpret_cast<Vector*>(next + row * p.K + key) = x;
      *reinterpret_cast<Vector*>(s + row * kStride + key) = x;
    });
  }
}

}  // namespace deltaworks::cuda::sm80
