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

// What rounding leaves of a number.
template <HalfType Half>
__device__ inline float rest_of(float x) {
  return x - to_float(from_float<Half>(x));
}

template <HalfType Half>
inline constexpr float kLargest = std::is_same_v<Half, __half> ? 65504.0f : 3.3895e38f;

// The number itself, or the largest finite one of its sign where rounding would give an infinity;
// NaN stays NaN.
template <HalfType Half>
__device__ inline float bounded(float x) {
#if __CUDA_ARCH__ >= 900
  asm("min.NaN.xorsign.abs.f32 %0, %0, %1;" : "+f"(x) : "f"(kLargest<Half>));
#else
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(kLargest<Half>));
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-kLargest<Half>));
#endif
  return x;
}

// One of them; `which` is 0 for the low half.
template <HalfType Half>
__device__ inline float unpack(std::uint32_t pair, int which) {
  if constexpr (std::is_same_v<Half, __half>) {
    const auto bits = static_cast<std::uint16_t>(which == 0 ? pair : pair >> 16);
    return __half2float(__ushort_as_half(bits));
  } else {
    return __uint_as_float(which == 0 ? pair << 16 : pair & 0xffff0000u);
  }
}

}  // namespace deltaworks::cuda::device
