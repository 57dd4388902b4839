// Prefix sums by a warp, in an order that does not depend on anything.
#pragma once

namespace deltaworks::cuda::device {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// The sum over the lanes up to this one.
__device__ inline float warp_prefix_sum(float x) {
  const int lane = threadIdx.x % 32;
  for (int offset = 1; offset < 32; offset *= 2) {
    const float below = __shfl_up_sync(kAllLanes, x, offset);
    if (lane >= offset) x += below;
  }
  return x;
}

// Inclusive sums of the 64 values at `x` in shared memory, in place, by one warp: values 2 lane and
// 2 lane + 1.
__device__ inline void prefix_sum_64(float* x) {
  const int lane = threadIdx.x % 32;
  const float first = x[2 * lane], second = x[2 * lane + 1];
  const float through = warp_prefix_sum(first + second);
  // Not through - second: of values that nearly cancel it would keep an error of the larger ones.
  const float before = __shfl_up_sync(kAllLanes, through, 1);
  x[2 * lane] = (lane == 0 ? 0.0f : before) + first;
  x[2 * lane + 1] = through;
}

}  // namespace deltaworks::cuda::device
