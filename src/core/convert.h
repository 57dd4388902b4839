// Scalar conversions between the stored element types and float or double: bf16 has 8 exponent and
// 7 fraction bits, fp16 has 5 and 10. Narrowing rounds once, to nearest with ties to even; NaN
// stays NaN, overflow becomes infinity, subnormals are kept. Everything is `static inline` and
// calls no inline function of the standard library, so that files compiled for different
// instruction sets never share a copy.
#pragma once

#include <cstdint>

#include "deltaworks/types.h"

namespace deltaworks {

// A double as a 16-bit float of the given field widths.
template <int kExponentBits, int kFractionBits>
static inline std::uint16_t narrow(double x) {
  constexpr int kSmallest = 2 - (1 << (kExponentBits - 1));  // exponent of the least normal number
  constexpr std::uint64_t kInfinity = ((std::uint64_t{1} << kExponentBits) - 1) << kFractionBits;
  const std::uint64_t bits = __builtin_bit_cast(std::uint64_t, x);
  const std::uint64_t sign = bits >> 63 << 15;
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52) - 1);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  if (exponent == 1024) {
    const std::uint64_t quiet =
        fraction ? (fraction >> (52 - kFractionBits)) | (1u << (kFractionBits - 1)) : 0;
    return static_cast<std::uint16_t>(sign | kInfinity | quiet);
  }
  const int below = exponent < kSmallest ? kSmallest - exponent : 0;
  const int shift = 52 - kFractionBits + below;
  if (shift > 53) return static_cast<std::uint16_t>(sign);  // under half of the least subnormal
  const std::uint64_t significand = fraction | std::uint64_t{1} << 52;
  const std::uint64_t half = std::uint64_t{1} << (shift - 1);
  const std::uint64_t rounded = (significand + half - 1 + (significand >> shift & 1)) >> shift;
  // The leading one of a normal significand adds the missing 1 to the exponent field, and so does
  // the carry of a fraction that rounds up to the next power of two.
  const int field = below ? 0 : exponent - kSmallest;
  std::uint64_t magnitude = (static_cast<std::uint64_t>(field) << kFractionBits) + rounded;
  if (magnitude > kInfinity) magnitude = kInfinity;
  return static_cast<std::uint16_t>(sign | magnitude);
}

static inline std::uint16_t bf16_from_double(double x) { return narrow<8, 7>(x); }
static inline std::uint16_t fp16_from_double(double x) { return narrow<5, 10>(x); }

static inline std::uint16_t bf16_from_float(float x) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x);
  if (x != x) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline std::uint16_t fp16_from_float(float x) { return fp16_from_double(x); }

static inline float float_from_bf16(std::uint16_t x) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(x) << 16);
}

static inline float float_from_fp16(std::uint16_t x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x & 0x8000) << 16;
  const std::uint32_t exponent = x >> 10 & 0x1f;
  const std::uint32_t fraction = x & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: a multiple of 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const std::uint32_t widened = exponent == 31 ? 255 : exponent + (127 - 15);
  return __builtin_bit_cast(float, sign | widened << 23 | fraction << 13);
}

// Element `i` of an array of floating elements; its value as it stands in memory.
template <class Real>
static inline Real load(DType dtype, const void* base, std::int64_t i) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<Real>(static_cast<const float*>(base)[i]);
    case DType::kBFloat16:
      return static_cast<Real>(float_from_bf16(static_cast<const std::uint16_t*>(base)[i]));
    case DType::kFloat16:
      return static_cast<Real>(float_from_fp16(static_cast<const std::uint16_t*>(base)[i]));
    case DType::kFloat64:
      return static_cast<Real>(static_cast<const double*>(base)[i]);
    default:
      __builtin_unreachable();  // judge() lets no other dtype through
  }
}

static inline void store(DType dtype, void* base, std::int64_t i, double x) {
  switch (dtype) {
    case DType::kFloat32:
      static_cast<float*>(base)[i] = static_cast<float>(x);
      return;
    case DType::kBFloat16:
      static_cast<std::uint16_t*>(base)[i] = bf16_from_double(x);
      return;
    case DType::kFloat16:
      static_cast<std::uint16_t*>(base)[i] = fp16_from_double(x);
      return;
    case DType::kFloat64:
      static_cast<double*>(base)[i] = x;
      return;
    default:
      __builtin_unreachable();
  }
}

// x rounded to what `dtype` can hold.
template <class Real>
static inline Real round_to(DType dtype, Real x) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<Real>(static_cast<float>(x));
    case DType::kBFloat16:
      return static_cast<Real>(float_from_bf16(bf16_from_double(x)));
    case DType::kFloat16:
      return static_cast<Real>(float_from_fp16(fp16_from_double(x)));
    default:
      return x;
  }
}

}  // namespace deltaworks
