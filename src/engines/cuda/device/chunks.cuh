// Where the chunks and segments of a ragged batch lie. cu_seqlens may hold anything: the offsets
// that are made from it never decrease and stay within the tokens.
#pragma once

#include <cstdint>

#include "engines/cuda/params.h"

namespace deltaworks::cuda::device {

__device__ inline std::int64_t read_offset(const View& x, std::int64_t n) {
  const std::int64_t at = n * x.stride[0];
  return x.dtype == DType::kInt32 ? static_cast<const std::int32_t*>(x.data)[at]
                                  : static_cast<const std::int64_t*>(x.data)[at];
}

// The sequence that item `index` of a kind belongs to, given how many lie before each: the last n
// with before[n] <= index. There is such an item.
__device__ inline int find_sequence(const std::int64_t* before, int N, std::int64_t index) {
  int low = 0, high = N;  // before[low] <= index < before[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (before[middle] <= index ? low : high) = middle;
  }
  return low;
}

struct Chunk {
  std::int64_t begin;  // token
  int rows;            // 1..64; 0: there is no such chunk
};
__device__ inline Chunk find_chunk(const Params& p, std::int64_t index) {
  if (index >= p.chunks[p.N]) return {0, 0};
  const int n = find_sequence(p.chunks, p.N, index);
  const std::int64_t begin = p.begin[n] + (index - p.chunks[n]) * kChunk;
  const std::int64_t left = p.begin[n + 1] - begin;
  return {begin, static_cast<int>(left < kChunk ? left : kChunk)};
}

// A run of chunks of one sequence.
struct Segment {
  int n;
  int number;          // within the sequence
  bool last;           // of the sequence
  std::int64_t begin;  // token
  std::int64_t end;
  std::int64_t chunk;  // number of its first chunk
};
__device__ inline Segment segment_of(const Params& p, int n, int number) {
  Segment s{.n = n, .number = number};
  const std::int64_t tokens = p.segment_chunks * kChunk;
  s.begin = p.begin[n] + number * tokens;
  s.last = p.begin[n + 1] - s.begin <= tokens;
  s.end = s.last ? p.begin[n + 1] : s.begin + tokens;
  s.chunk = p.chunks[n] + number * p.segment_chunks;
  return s;
}
// Segment `further` of those that are no sequence's first; there is such a one.
__device__ inline Segment find_further(const Params& p, std::int64_t further) {
  const int n = find_sequence(p.further, p.N, further);
  return segment_of(p, n, 1 + static_cast<int>(further - p.further[n]));
}

}  // namespace deltaworks::cuda::device
