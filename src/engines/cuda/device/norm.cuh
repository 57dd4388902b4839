// Norms of keys and queries, and the powers of two that keep keys of any size within fp16.
#pragma once

#include "engines/cuda/device/tile.cuh"

namespace deltaworks::cuda::device {

// 1 / sqrt(|row|^2 + 1e-6) of a tile's row, by one thread.
template <class Tile>
__device__ inline float inverse_norm(const Tile& tile, int row) {
  float sum = 0;
#pragma unroll 4
  for (int c = 0; c < Tile::kVectors; ++c) {
    const auto* vector = tile.vector(row, c);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float x = to_float(vector[e]);
      sum += x * x;
    }
  }
  return rsqrtf(sum + 1e-6f);
}

// What a key's row is multiplied by where it is an operand of a product with the state; the rest of
// its inverse norm, at most 1 then, is a factor of the other operand. A power of two: of fp16 the
// one that brings a row shorter than 1 or longer than 64 to about 1, else 1. It depends on the row
// alone.
template <HalfType Half>
__device__ inline float row_scale(float inverse_norm) {
  if (std::is_same_v<Half, __nv_bfloat16> || (inverse_norm <= 1 && inverse_norm >= 1.0f / 64)) {
    return 1;
  }
  return __uint_as_float((__float_as_uint(inverse_norm) + 0x7fffffu) & 0xff800000u);
}

}  // namespace deltaworks::cuda::device
