// Where the chunks of a ragged batch lie. cu_seqlens may hold anything: the offsets that are made
// from it never decrease and stay within the tokens.
#pragma once

#include <cstdint>

#include "engines/cuda/params.h"

namespace deltaworks::cuda::device {

struct Chunk {
  std::int64_t begin;  // token
  int rows;            // 1..64; 0: there is no such chunk
};

__device__ inline std::int64_t read_offset(const View& x, std::int64_t n) {
  const std::int64_t at = n * x.stride[0];
  return x.dtype == DType::kInt32 ? static_cast<const std::int32_t*>(x.data)[at]
                                  : static_cast<const std::int64_t*>(x.data)[at];
}

// Chunk `index` of the batch: the sequence that it belongs to is the last one with
// chunks[n] <= index.
__device__ inline Chunk find_chunk(const Params& p, std::int64_t index) {
  if (index >= p.chunks[p.N]) return {0, 0};
  int low = 0, high = p.N;  // chunks[low] <= index < chunks[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (p.chunks[middle] <= index ? low : high) = middle;
  }
  const std::int64_t begin = p.begin[low] + (index - p.chunks[low]) * kChunk;
  const std::int64_t left = p.begin[low + 1] - begin;
  return {begin, static_cast<int>(left < kChunk ? left : kChunk)};
}

}  // namespace deltaworks::cuda::device
