// Multiply-adds on registers alone, at the full rate of the instruction set: what a benchmark's
// times are compared with.
#pragma once

#include "engines/cpu/dispatch.h"
#include "engines/cpu/simd.h"

namespace deltaworks::cpu::HWY_NAMESPACE {

// x = x / 2 + b in every lane of kPeakChains vectors, `steps` times. Values converge to 2 b, so
// that none is ever subnormal; their sum is returned, so that none is left out.
static inline float peak(std::int64_t steps) {
  const Vec half = hn::Set(f32, 0.5F);
  const Vec b = hn::Set(f32, 1.0F);
  Vec x0 = hn::Iota(f32, 0.0F), x1 = hn::Add(x0, b), x2 = hn::Add(x1, b), x3 = hn::Add(x2, b);
  Vec x4 = hn::Add(x3, b), x5 = hn::Add(x4, b), x6 = hn::Add(x5, b), x7 = hn::Add(x6, b);
  Vec x8 = hn::Add(x7, b), x9 = hn::Add(x8, b), x10 = hn::Add(x9, b), x11 = hn::Add(x10, b);
  static_assert(kPeakChains == 12, "one variable a chain: an array may be spilled");
  for (std::int64_t step = 0; step < steps; ++step) {
    x0 = hn::MulAdd(x0, half, b);
    x1 = hn::MulAdd(x1, half, b);
    x2 = hn::MulAdd(x2, half, b);
    x3 = hn::MulAdd(x3, half, b);
    x4 = hn::MulAdd(x4, half, b);
    x5 = hn::MulAdd(x5, half, b);
    x6 = hn::MulAdd(x6, half, b);
    x7 = hn::MulAdd(x7, half, b);
    x8 = hn::MulAdd(x8, half, b);
    x9 = hn::MulAdd(x9, half, b);
    x10 = hn::MulAdd(x10, half, b);
    x11 = hn::MulAdd(x11, half, b);
  }
  const Vec low = hn::Add(hn::Add(hn::Add(x0, x1), hn::Add(x2, x3)), hn::Add(x4, x5));
  const Vec high = hn::Add(hn::Add(hn::Add(x6, x7), hn::Add(x8, x9)), hn::Add(x10, x11));
  return hn::GetLane(hn::SumOfLanes(f32, hn::Add(low, high)));
}

}  // namespace deltaworks::cpu::HWY_NAMESPACE
