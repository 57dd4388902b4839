// The first kernel of a call: where sequences, their chunks and their further segments lie, in
// bounds whatever cu_seqlens holds.
#pragma once

#include "engines/cuda/device/chunks.cuh"

namespace deltaworks::cuda::sm80 {

inline constexpr int kOffsetThreads = 256;

// The sum, or the maximum, of what the threads before this one give.
struct Plus {
  __device__ std::int64_t operator()(std::int64_t a, std::int64_t b) const { return a + b; }
};
struct Largest {
  __device__ std::int64_t operator()(std::int64_t a, std::int64_t b) const { return max(a, b); }
};
template <class Fold>
__device__ inline std::int64_t fold_before(std::int64_t mine, std::int64_t* shared, Fold fold) {
  std::int64_t* at = shared + threadIdx.x;
  *at = mine;
  __syncthreads();  // every thread's value is there
  for (int step = 1; step < kOffsetThreads; step *= 2) {
    const std::int64_t other = static_cast<int>(threadIdx.x) >= step ? at[-step] : 0;
    __syncthreads();  // and has been read
    *at = fold(*at, other);
    __syncthreads();  // this round's are there
  }
  const std::int64_t before = threadIdx.x == 0 ? 0 : at[-1];
  __syncthreads();  // `shared` may be written again
  return before;
}

// One block; each thread takes a run of sequences.
__global__ void __launch_bounds__(kOffsetThreads) find_offsets(const __grid_constant__ Params p) {
  __shared__ std::int64_t shared[kOffsetThreads];
  const int run = (p.N + kOffsetThreads) / kOffsetThreads;  // of the N + 1 offsets
  const int first = threadIdx.x * run, last = min(first + run, p.N + 1);

  std::int64_t largest = 0;
  for (int n = first; n < last; ++n) {
    const std::int64_t offset = n == 0 ? 0 : device::read_offset(p.cu_seqlens, n);
    largest = max(largest, min(offset, p.T));
    p.begin[n] = largest;
  }
  const std::int64_t before = fold_before(largest, shared, Largest{});
  for (int n = first; n < last; ++n) p.begin[n] = max(p.begin[n], before);
  __syncthreads();  // offsets are final

  const auto chunks_of = [&](int n) {
    return n < p.N ? (p.begin[n + 1] - p.begin[n] + kChunk - 1) / kChunk : 0;
  };
  const auto further_of = [&](std::int64_t chunks) {
    return chunks == 0 ? 0 : (chunks - 1) / p.segment_chunks;
  };
  std::int64_t chunks = 0, further = 0;
  for (int n = first; n < last; ++n) {
    chunks += chunks_of(n);
    further += further_of(chunks_of(n));
  }
  chunks = fold_before(chunks, shared, Plus{});
  further = fold_before(further, shared, Plus{});
  for (int n = first; n < last; ++n) {
    p.chunks[n] = chunks;
    p.further[n] = further;
    chunks += chunks_of(n);
    further += further_of(chunks_of(n));
  }
}

}  // namespace deltaworks::cuda::sm80
