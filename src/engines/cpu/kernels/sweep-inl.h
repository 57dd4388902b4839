// One sweep over a block of a state: what a step adds, and what the next step reads.
#pragma once

#include "engines/cpu/kernels/rows-inl.h"

namespace deltaworks::cpu::HWY_NAMESPACE {

// Vectors of values in a block: the least that hides the loads of k, x' and q' behind arithmetic,
// and the most whose state of 128 keys leaves room for rows in the first-level cache.
inline constexpr int kVectors = kLanes < 16 ? 4 : 2;
inline constexpr std::int64_t kValueBlock = kVectors * kLanes;

// Sums of a value over the keys, side by side: with fewer vectors than two a cycle for the latency
// of a multiply-add, one sum waits for itself.
inline constexpr int kChains = kVectors < 4 ? 2 : 1;

// How a sweep multiplies the state before it adds to it.
enum class Fade { kNone, kNumber, kRow };

// a b + c, to be stored. The 512-bit multiply-adds of what is loaded and stored again cost half as
// much time once more; a product and a sum do not (docs/design/cpu.md).
static inline Vec add_product(Vec a, Vec b, Vec c) {
  return kLanes < 16 ? hn::MulAdd(a, b, c) : hn::Add(hn::Mul(a, b), c);
}

// A row of values of a block.
struct BlockRow {
  Vec x[kVectors];
};
[[gnu::always_inline]] static inline void load_block(const float* from, BlockRow& to) {
  HWY_UNROLL(4)
  for (int j = 0; j < kVectors; ++j) to.x[j] = hn::LoadU(f32, from + j * kLanes);
}
[[gnu::always_inline]] static inline void store_block(const BlockRow& from, float* to) {
  HWY_UNROLL(4)
  for (int j = 0; j < kVectors; ++j) hn::StoreU(from.x[j], f32, to + j * kLanes);
}

// S = D S + k u^T over a block [keys, kValueBlock] of a state, then e = x^T S and r = q^T S.
// `decay` is a number or a row, as kFade says; without kErase there is no x, without kRead no q.
// Inlined, so that the rows of values stay in registers from step to step.
template <Fade kFade, bool kErase, bool kRead>
[[gnu::always_inline]] static inline void sweep(std::int64_t keys, const float* k, const float* x,
                                                const float* q, const float* decay,
                                                const BlockRow& u, float* state, BlockRow& e,
                                                BlockRow& r) {
  Vec erased[kChains][kVectors], read[kChains][kVectors];
  HWY_UNROLL(2)
  for (int chain = 0; chain < kChains; ++chain) {
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) erased[chain][j] = read[chain][j] = zero();
  }
  Vec d = kFade == Fade::kNumber ? hn::Set(f32, decay[0]) : zero();
  const auto sweep_key = [&](std::int64_t i, int chain) __attribute__((always_inline)) {
    if constexpr (kFade == Fade::kRow) d = hn::Set(f32, decay[i]);
    const Vec ki = hn::Set(f32, k[i]);
    const Vec xi = kErase ? hn::Set(f32, x[i]) : ki;
    const Vec qi = kRead ? hn::Set(f32, q[i]) : ki;
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) {
      float* s = state + i * kValueBlock + j * kLanes;
      Vec updated = hn::LoadU(f32, s);
      if constexpr (kFade != Fade::kNone) updated = hn::Mul(d, updated);
      updated = add_product(ki, u.x[j], updated);
      hn::StoreU(updated, f32, s);
      if constexpr (kErase) erased[chain][j] = hn::MulAdd(xi, updated, erased[chain][j]);
      if constexpr (kRead) read[chain][j] = hn::MulAdd(qi, updated, read[chain][j]);
    }
  };
  std::int64_t i = 0;
  for (; i + kChains <= keys; i += kChains) {
    HWY_UNROLL(2)
    for (int chain = 0; chain < kChains; ++chain) sweep_key(i + chain, chain);
  }
  for (; i < keys; ++i) sweep_key(i, 0);
  HWY_UNROLL(4)
  for (int j = 0; j < kVectors; ++j) {
    HWY_UNROLL(1)
    for (int chain = 1; chain < kChains; ++chain) {
      erased[0][j] = hn::Add(erased[0][j], erased[chain][j]);
      read[0][j] = hn::Add(read[0][j], read[chain][j]);
    }
    if constexpr (kErase) e.x[j] = erased[0][j];
    if constexpr (kRead) r.x[j] = read[0][j];
  }
}

}  // namespace deltaworks::cpu::HWY_NAMESPACE
