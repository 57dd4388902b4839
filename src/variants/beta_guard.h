// The guard of a beta that erases by channels. With the normalised key k, w = k * k and the slowest
// decay of the token, the erase step does not expand the state while
//
//   n nu - a^2 <= (c2 - 1) (1 - (1 - a)^2 / c2)
//   n = sum w,  a = sum beta w,  nu = sum beta^2 w,  c2 = exp(-2 max g).
//
// A row beyond that is drawn to its mean a / n just so far that it keeps the bound with a margin of
// 1/32. Like activation.h, this is compiled once per instruction set: everything is `static inline`
// and calls no inline function of the standard library.
#pragma once

#include <math.h>

#include <cstdint>

#include "core/convert.h"
#include "deltaworks/types.h"

namespace deltaworks {

// How far a row is beyond the bound. The sums cancel, so they are formed in double.
struct BetaExcess {
  double n, a, nu;
  double spread, bound;  // n nu - a^2 and what it may be
};

static inline double mean_of(const BetaExcess& x) { return x.a / (x.n > 1e-20 ? x.n : 1e-20); }
static inline bool exceeds(const BetaExcess& x, double slack) {
  return x.n > 1e-20 && x.spread - x.bound > slack;
}

template <class Real>
static inline BetaExcess beta_excess(std::int64_t K, const Real* beta, const Real* k, double c2) {
  double n = 0, a = 0, nu = 0;
  for (std::int64_t i = 0; i < K; ++i) {
    const double b = static_cast<double>(beta[i]), x = static_cast<double>(k[i]), w = x * x;
    n += w;
    a += b * w;
    nu += b * b * w;
  }
  const double spread = n * nu - a * a, bound = (c2 - 1) * (1 - (1 - a) * (1 - a) / c2);
  return {n, a, nu, spread > 0 ? spread : 0, bound > 0 ? bound : 0};
}

// beta [K], effective, in and out; k [K], the normalised key; g [K], the effective log decays; io
// is the dtype that the row is rounded to, also one that keeps the bound.
template <class Real>
static inline void beta_guard(std::int64_t K, Real* beta, const Real* k, const Real* g, DType io) {
  double slowest = static_cast<double>(g[0]);
  for (std::int64_t i = 1; i < K; ++i) {
    if (slowest < static_cast<double>(g[i])) slowest = static_cast<double>(g[i]);
  }
  const double c2 = ::exp(-2 * slowest);
  const BetaExcess given = beta_excess(K, beta, k, c2);
  const bool drawn = exceeds(given, 0);
  const double mean = mean_of(given);
  double share = 1;
  if (drawn) {
    const double spread = given.spread > 1e-30 ? given.spread : 1e-30;
    share = ::sqrt((1 - 1.0 / 32) * given.bound / spread);
    if (share > 1) share = 1;
  }
  for (std::int64_t i = 0; i < K; ++i) {
    const double b = static_cast<double>(beta[i]);
    const double moved = drawn ? mean + share * (b - mean) : b;
    beta[i] = static_cast<Real>(round_to(io, moved));
  }
  // Rounding may have spread the row again by more than it can account for.
  const double eps = io == DType::kBFloat16 ? 0x1p-7 : io == DType::kFloat16 ? 0x1p-10 : 0.0;
  const BetaExcess rounded = beta_excess(K, beta, k, c2);
  if (!exceeds(rounded, 4 * eps * (rounded.n * rounded.nu + rounded.a * rounded.a))) return;
  const Real constant = static_cast<Real>(round_to(io, mean_of(rounded)));
  for (std::int64_t i = 0; i < K; ++i) beta[i] = constant;
}

}  // namespace deltaworks
