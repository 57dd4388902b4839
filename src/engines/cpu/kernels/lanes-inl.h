// A vector as a number: what variants/activation.h asks of one.
#pragma once

#include <hwy/contrib/math/math-inl.h>

#include "engines/cpu/kernels/rows-inl.h"
#include "variants/activation.h"

namespace deltaworks::cpu::HWY_NAMESPACE {

struct Lanes {
  using Mask = hn::Mask<F32>;
  Vec x;

  [[gnu::always_inline]] explicit Lanes(Vec value) : x(value) {}
  [[gnu::always_inline]] explicit Lanes(double value)
      : x(hn::Set(f32, static_cast<float>(value))) {}
  [[gnu::always_inline]] static Lanes load(const float* from) {
    return Lanes(hn::LoadU(f32, from));
  }
  [[gnu::always_inline]] void store(float* to) const { hn::StoreU(x, f32, to); }

  friend Lanes operator+(Lanes a, Lanes b) { return Lanes(hn::Add(a.x, b.x)); }
  friend Lanes operator-(Lanes a) { return Lanes(hn::Neg(a.x)); }
  friend Lanes operator*(Lanes a, Lanes b) { return Lanes(hn::Mul(a.x, b.x)); }
  friend Lanes operator/(Lanes a, Lanes b) { return Lanes(hn::Div(a.x, b.x)); }
  friend Mask operator<(Lanes a, Lanes b) { return hn::Lt(a.x, b.x); }
  friend Mask operator>=(Lanes a, Lanes b) { return hn::Ge(a.x, b.x); }
};

[[gnu::always_inline]] static inline Lanes where(Lanes::Mask condition, Lanes yes, Lanes no) {
  return Lanes(hn::IfThenElse(condition, yes.x, no.x));
}
static inline Lanes lowest_gate(Lanes) { return Lanes(-110.0); }

// Highway's functions are defined where they are finite; NaN and the rest are seen to here.
[[gnu::always_inline]] static inline Lanes exp_of(Lanes a) {
  const Vec largest = hn::Set(f32, 88.72283f);
  const Vec y = hn::Exp(f32, hn::Min(a.x, largest));
  const Vec bounded = hn::IfThenElse(hn::Gt(a.x, largest), hn::Inf(f32), y);
  return Lanes(hn::IfThenElse(hn::IsNaN(a.x), a.x, bounded));
}
// exp of a number at most kNear away from 0, to an ulp.
inline constexpr float kNear = 12.0f;
[[gnu::always_inline]] static inline Vec exp_near(Vec x) {
  const hn::RebindToSigned<F32> i32;
  const auto n = hn::NearestInt(hn::Mul(x, hn::Set(f32, 1.44269504f)));
  const Vec whole = hn::ConvertTo(f32, n);
  Vec r = hn::NegMulAdd(whole, hn::Set(f32, 0.693359375f), x);  // log 2 in two parts
  r = hn::NegMulAdd(whole, hn::Set(f32, -2.12194440e-4f), r);
  Vec y = hn::Set(f32, 1.0f / 720);
  HWY_UNROLL(6)
  for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    y = hn::MulAdd(y, r, hn::Set(f32, c));
  }
  return hn::BitCast(f32, hn::Add(hn::BitCast(i32, y), hn::ShiftLeft<23>(n)));
}

static inline Lanes log_of(Lanes a) {
  const Vec y = hn::Log(f32, a.x);
  return Lanes(hn::IfThenElse(hn::Gt(a.x, hn::Zero(f32)), y, hn::Sub(a.x, a.x)));
}
static inline Lanes log1p_of(Lanes a) {
  return Lanes(hn::IfThenElse(hn::IsNaN(a.x), a.x, hn::Log1p(f32, a.x)));
}

static inline Lanes round_to(DType dtype, Lanes a) {
  if (dtype == DType::kFloat32) return a;
  float values[kLanes];
  a.store(values);
  for (float& value : values) value = deltaworks::round_to(dtype, value);
  return Lanes::load(values);
}

}  // namespace deltaworks::cpu::HWY_NAMESPACE
