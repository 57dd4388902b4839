// Rows between memory, in any dtype and stride, and fp32 buffers; and the l2 norm of a row.
#pragma once

#include "engines/cpu/args.h"
#include "engines/cpu/simd.h"

namespace deltaworks::cpu::HWY_NAMESPACE {

static inline Vec zero() { return hn::Zero(f32); }

static inline void clear(float* x, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) x[i] = 0.0f;
}

static inline void fill(float* x, std::int64_t count, float value) {
  for (std::int64_t i = 0; i < count; ++i) x[i] = value;
}

static inline void copy(const float* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
}

// Widens whole vectors; returns how many elements it did.
static inline std::int64_t widen(const Run& run, std::int64_t count, float* to) {
  const std::int64_t whole = count / kLanes * kLanes;
  if (run.dtype == DType::kFloat32) {
    const auto* from = static_cast<const float*>(run.data);
    for (std::int64_t i = 0; i < whole; i += kLanes) {
      hn::StoreU(hn::LoadU(f32, from + i), f32, to + i);
    }
  } else if (run.dtype == DType::kBFloat16) {
    const hn::Rebind<hwy::bfloat16_t, F32> bf16;
    const auto* from = static_cast<const hwy::bfloat16_t*>(run.data);
    for (std::int64_t i = 0; i < whole; i += kLanes) {
      hn::StoreU(hn::PromoteTo(f32, hn::LoadU(bf16, from + i)), f32, to + i);
    }
  } else {
#if HWY_TARGET == HWY_SSE4
    return 0;  // no instruction: the scalar conversion takes it all
#else
    const hn::Rebind<hwy::float16_t, F32> f16;
    const auto* from = static_cast<const hwy::float16_t*>(run.data);
    for (std::int64_t i = 0; i < whole; i += kLanes) {
      hn::StoreU(hn::PromoteTo(f32, hn::LoadU(f16, from + i)), f32, to + i);
    }
#endif
  }
  return whole;
}

// How a vector is written: into the caches, or past them, to an aligned address.
struct Keep {
  template <class D, class X>
  [[gnu::always_inline]] void operator()(X x, D d, hn::TFromD<D>* to) const {
    hn::StoreU(x, d, to);
  }
};
struct Stream {
  template <class D, class X>
  [[gnu::always_inline]] void operator()(X x, D d, hn::TFromD<D>* to) const {
    if constexpr (hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) >= 16) {
      hn::Stream(x, d, to);
    } else {
      hn::StoreU(x, d, to);  // Highway would write 16 bytes
    }
  }
};

// The inverse; rounds to nearest even. bf16 by integer arithmetic: Highway's demotion truncates.
template <class Write>
static inline std::int64_t narrow(const float* from, std::int64_t count, const Run& run) {
  const Write write;
  const std::int64_t whole = count / kLanes * kLanes;
  if (run.dtype == DType::kFloat32) {
    auto* to = static_cast<float*>(run.data);
    for (std::int64_t i = 0; i < whole; i += kLanes) {
      write(hn::LoadU(f32, from + i), f32, to + i);
    }
  } else if (run.dtype == DType::kBFloat16) {
    const hn::RebindToUnsigned<F32> u32;
    const hn::Rebind<std::uint16_t, F32> u16;
    auto* to = static_cast<std::uint16_t*>(run.data);
    for (std::int64_t i = 0; i < whole; i += kLanes) {
      const Vec x = hn::LoadU(f32, from + i);
      const auto bits = hn::BitCast(u32, x);
      const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u32, 1));
      const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(u32, 0x7fff)));
      const auto quiet = hn::Or(bits, hn::Set(u32, 0x400000));
      const auto is_nan = hn::RebindMask(u32, hn::IsNaN(x));
      write(hn::TruncateTo(u16, hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded))), u16,
            to + i);
    }
  } else {
#if HWY_TARGET == HWY_SSE4
    return 0;
#else
    const hn::Rebind<hwy::float16_t, F32> f16;
    auto* to = static_cast<hwy::float16_t*>(run.data);
    for (std::int64_t i = 0; i < whole; i += kLanes) {
      write(hn::DemoteTo(f16, hn::LoadU(f32, from + i)), f16, to + i);
    }
#endif
  }
  return whole;
}

// Asks for a row ahead of its use. Rows of one head lie a whole token apart, further than the
// hardware looks ahead by itself. Always inlined: a call of what only prefetches counts as one
// without effect, and is dropped.
[[gnu::always_inline]] static inline void prefetch_row(const Run& run, std::int64_t count) {
  constexpr std::int64_t kCacheLine = 64;
  const auto* from = static_cast<const char*>(run.data);
  const std::int64_t bytes = run.stride == 1 ? count * run.size : 1;
  for (std::int64_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(from + i);
}

// Reads a row of `count` elements; the buffer's rest up to `padded` becomes zero.
static inline void load_row(const Run& run, std::int64_t count, std::int64_t padded, float* to) {
  std::int64_t i = run.stride == 1 ? widen(run, count, to) : 0;
  for (; i < count; ++i) to[i] = load<float>(run.dtype, run.data, i * run.stride);
  for (; i < padded; ++i) to[i] = 0.0f;
}

// The same row where it lies, if it needs no conversion; else in the buffer.
static inline const float* view_row(const Run& run, std::int64_t count, std::int64_t padded,
                                    float* buffer) {
  if (run.stride == 1 && run.dtype == DType::kFloat32 && count == padded) {
    return static_cast<const float*>(run.data);
  }
  load_row(run, count, padded, buffer);
  return buffer;
}

template <class Write = Keep>
static inline void store_row(const float* from, std::int64_t count, const Run& run) {
  std::int64_t i = run.stride == 1 ? narrow<Write>(from, count, run) : 0;
  for (; i < count; ++i) store(run.dtype, run.data, i * run.stride, from[i]);
}

// The same of a row of `x`, past the caches if that is how it is written.
static inline void write_row(const Tensor& x, const float* from, std::int64_t count,
                             const Run& run) {
  if (x.streams) {
    store_row<Stream>(from, count, run);
  } else {
    store_row(from, count, run);
  }
}

// Sum of a[i] b[i] over a padded row: always in the same order, four chains of vectors.
static inline float dot(const float* a, const float* b, std::int64_t padded) {
  Vec s0 = zero(), s1 = zero(), s2 = zero(), s3 = zero();
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= padded; i += 4 * kLanes) {
    s0 = hn::MulAdd(hn::LoadU(f32, a + i), hn::LoadU(f32, b + i), s0);
    s1 = hn::MulAdd(hn::LoadU(f32, a + i + kLanes), hn::LoadU(f32, b + i + kLanes), s1);
    s2 = hn::MulAdd(hn::LoadU(f32, a + i + 2 * kLanes), hn::LoadU(f32, b + i + 2 * kLanes), s2);
    s3 = hn::MulAdd(hn::LoadU(f32, a + i + 3 * kLanes), hn::LoadU(f32, b + i + 3 * kLanes), s3);
  }
  for (; i < padded; i += kLanes) {
    s0 = hn::MulAdd(hn::LoadU(f32, a + i), hn::LoadU(f32, b + i), s0);
  }
  return hn::GetLane(hn::SumOfLanes(f32, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

// The same in double, for sums whose terms cancel.
static inline double exact_dot(const float* a, const float* b, std::int64_t padded) {
  const hn::Half<F32> half;
  const hn::RepartitionToWide<F32> f64;
  auto even = hn::Zero(f64), odd = hn::Zero(f64);
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    const std::int64_t j = i + kLanes / 2;
    even = hn::MulAdd(hn::PromoteTo(f64, hn::LoadU(half, a + i)),
                      hn::PromoteTo(f64, hn::LoadU(half, b + i)), even);
    odd = hn::MulAdd(hn::PromoteTo(f64, hn::LoadU(half, a + j)),
                     hn::PromoteTo(f64, hn::LoadU(half, b + j)), odd);
  }
  return hn::GetLane(hn::SumOfLanes(f64, hn::Add(even, odd)));
}

// to = c x, over a padded row.
static inline void scale_row(float c, const float* x, std::int64_t padded, float* to) {
  const Vec factor = hn::Set(f32, c);
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    hn::StoreU(hn::Mul(factor, hn::LoadU(f32, x + i)), f32, to + i);
  }
}

// to += c x, over a padded row.
static inline void add_scaled_row(float c, const float* x, std::int64_t padded, float* to) {
  const Vec factor = hn::Set(f32, c);
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    hn::StoreU(hn::MulAdd(factor, hn::LoadU(f32, x + i), hn::LoadU(f32, to + i)), f32, to + i);
  }
}

// The factor that l2norm divides by, and the norm applied in place.
static inline float inverse_norm(const float* x, std::int64_t padded) {
  return 1.0f / __builtin_sqrtf(dot(x, x, padded) + 1e-6f);
}

static inline float normalise(std::int64_t padded, float* x) {
  const float factor = inverse_norm(x, padded);
  scale_row(factor, x, padded, x);
  return factor;
}

}  // namespace deltaworks::cpu::HWY_NAMESPACE
