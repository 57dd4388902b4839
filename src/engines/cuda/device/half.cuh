// The two 16-bit floats that tensor cores take, under one pair of names.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace deltaworks::cuda::device {

template <class Half>
concept HalfType = std::is_same_v<Half, __nv_bfloat16> || std::is_same_v<Half, __half>;

template <HalfType Half>
__device__ inline float to_float(Half x) {
  if constexpr (std::is_same_v<Half, __half>) {
    return __half2float(x);
  } else {
    return __bfloat162float(x);
  }
}

// Rounded to nearest, ties to even.
template <HalfType Half>
__device__ inline Half from_float(float x) {
  if constexpr (std::is_same_v<Half, __half>) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}

// Two of them in a register, the first in the low half.
template <HalfType Half>
__device__ inline std::uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<Half, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}

}  // namespace deltaworks::cuda::device
