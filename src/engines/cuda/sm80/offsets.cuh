// The first kernel of a call: offsets of sequences and numbers of chunks, in bounds whatever
// cu_seqlens holds; and the rows that belong to no sequence, which get zeros.
#pragma once

#include "engines/cuda/device/chunks.cuh"
#include "engines/cuda/device/gate.cuh"

namespace deltaworks::cuda::sm80 {

inline constexpr int kOffsetThreads = 256;

// One block. Each thread takes a run of sequences; a running maximum and a running sum over the
// threads' runs make offsets that never decrease and the chunks before each sequence.
__global__ void __launch_bounds__(kOffsetThreads) find_offsets(Params p) {
  __shared__ std::int64_t shared[kOffsetThreads];
  const int thread = threadIdx.x;
  const int run = (p.N + kOffsetThreads) / kOffsetThreads;  // of the N + 1 offsets
  const int first = thread * run, last = min(first + run, p.N + 1);

  std::int64_t largest = 0;
  for (int n = first; n < last; ++n) {
    const std::int64_t offset = n == 0 ? 0 : device::read_offset(p.cu_seqlens, n);
    largest = max(largest, min(offset, p.T));
    p.begin[n] = largest;
  }
  shared[thread] = largest;
  __syncthreads();  // every run's largest offset is there
  std::int64_t before = 0;
  for (int other = 0; other < thread; ++other) before = max(before, shared[other]);
  for (int n = first; n < last; ++n) p.begin[n] = max(p.begin[n], before);
  __syncthreads();  // offsets are final, and `shared` may be written again

  std::int64_t chunks = 0;
  for (int n = first; n < min(last, p.N); ++n) {
    chunks += (p.begin[n + 1] - p.begin[n] + kChunk - 1) / kChunk;
  }
  shared[thread] = chunks;
  __syncthreads();  // every run's chunks are there
  std::int64_t sum = 0;
  for (int other = 0; other < thread; ++other) sum += shared[other];
  for (int n = first; n < last; ++n) {
    p.chunks[n] = sum;
    if (n < p.N) sum += (p.begin[n + 1] - p.begin[n] + kChunk - 1) / kChunk;
  }
}

// Outputs of the rows past the last sequence.
__global__ void clear_rest(Params p) {
  const std::int64_t rest = p.T - p.begin[p.N];
  const std::int64_t count = rest * p.HO * p.V;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += step) {
    const std::int64_t t = p.begin[p.N] + i / p.V / p.HO;
    device::store_element(
        p.o, t * p.o.stride[0] + i / p.V % p.HO * p.o.stride[1] + i % p.V * p.o.stride[2], 0);
  }
}

}  // namespace deltaworks::cuda::sm80
