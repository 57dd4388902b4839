// One sweep over a block of a state: what a step adds, and what the next step reads.
#pragma once

#include "engines/cpu/kernels/rows-inl.h"

namespace deltaworks::cpu::HWY_NAMESPACE {

// Vectors of values in a block: the least that hides the loads of k, x' and q' behind arithmetic,
// and the most whose state of 128 keys leaves room for rows in the first-level cache.
inline constexpr int kVectors = kLanes < 16 ? 4 : 2;
inline constexpr std::int64_t kValueBlock = kVectors * kLanes;

// How a sweep multiplies the state before it adds to it.
enum class Fade { kNone, kNumber, kRow };

// S = D S + k u^T over a block [keys, kValueBlock] of a state, then e = x^T S and r = q^T S.
// `decay` is a number or a row, as kFade says; without kErase there is no x, without kRead no q.
template <Fade kFade, bool kErase, bool kRead>
static void sweep(std::int64_t keys, const float* k, const float* x, const float* q,
                  const float* decay, const float* u, float* state, float* e, float* r) {
  Vec write[kVectors], erased[kVectors], read[kVectors];
  HWY_UNROLL(4)
  for (int j = 0; j < kVectors; ++j) {
    write[j] = hn::LoadU(f32, u + j * kLanes);
    erased[j] = read[j] = hn::Zero(f32);
  }
  Vec d = kFade == Fade::kNumber ? hn::Set(f32, decay[0]) : hn::Zero(f32);
  for (std::int64_t i = 0; i < keys; ++i) {
    if constexpr (kFade == Fade::kRow) d = hn::Set(f32, decay[i]);
    const Vec ki = hn::Set(f32, k[i]);
    const Vec xi = kErase ? hn::Set(f32, x[i]) : ki;
    const Vec qi = kRead ? hn::Set(f32, q[i]) : ki;
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) {
      float* s = state + i * kValueBlock + j * kLanes;
      Vec updated = hn::LoadU(f32, s);
      if constexpr (kFade != Fade::kNone) updated = hn::Mul(d, updated);
      updated = hn::MulAdd(ki, write[j], updated);
      hn::StoreU(updated, f32, s);
      if constexpr (kErase) erased[j] = hn::MulAdd(xi, updated, erased[j]);
      if constexpr (kRead) read[j] = hn::MulAdd(qi, updated, read[j]);
    }
  }
  HWY_UNROLL(4)
  for (int j = 0; j < kVectors; ++j) {
    if constexpr (kErase) hn::StoreU(erased[j], f32, e + j * kLanes);
    if constexpr (kRead) hn::StoreU(read[j], f32, r + j * kLanes);
  }
}

}  // namespace deltaworks::cpu::HWY_NAMESPACE
