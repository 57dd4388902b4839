// The numbers of accuracy tests in C++; those of Python, deltaworks/testing/bounds.py, are the
// same, and a test compares the two files. Bounds are relative to the RMS of the reference.
#pragma once

#include "deltaworks/types.h"

namespace deltaworks::tolerances {

inline constexpr double kForward[] = {2e-6, 1e-2, 3e-3};   // float32, bfloat16, float16
inline constexpr double kBackward[] = {2e-5, 2e-2, 5e-3};  // the same
// Of a_log and dt_bias, and of g in bf16, where a 16-bit tensor takes part.
inline constexpr double kGateSum = 3e-2;
// fp32 bounds follow the error of a plain fp32 loop.
inline constexpr double kLoop = 4;
// Of a single element.
inline constexpr double kLargest = 30;
// RMS of a reference that tests something.
inline constexpr double kNotTiny = 1e-4;
inline constexpr double kGateFloor = 1e-3;
// Groups of fewer numbers share the loop's worst group: in one number the loop's error may cancel.
inline constexpr int kSmallGroup = 16;
// What fp16 cannot hold with its full precision, being subnormal.
inline constexpr double kVanished16 = 2e-5;

// Of a tensor that is written by the forward, or a gradient, in a dtype.
constexpr double base_bound(bool forward, DType dtype) {
  static_assert(static_cast<int>(DType::kFloat32) == 0 && static_cast<int>(DType::kFloat16) == 2);
  return (forward ? kForward : kBackward)[static_cast<int>(dtype)];
}

}  // namespace deltaworks::tolerances
