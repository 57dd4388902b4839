// One chunk of one head: its rows, its gates and the two triangular solves (docs/design/cpu.md).
// With G the cumulative gate inside the chunk, and for row i
//
//   enter_i = exp(G_i)         what is left of the entering state S0 when row i reads it
//   leave_i = exp(G_C - G_i)   what is left of row i's write in the leaving state
//   D_ij = exp(G_i - G_j)      what is left of row j's write when row i reads it, i >= j
//
// No exponent is ever positive for gates <= 0.
#pragma once

#include "engines/cpu/kernels/panels-inl.h"

namespace deltaworks::cpu::HWY_NAMESPACE {

inline constexpr std::int64_t kChunk = 32;
static_assert(kChunk % kPanel == 0);

// Element (i, j) of a [kChunk, kChunk] matrix in panels.
static inline std::int64_t at(std::int64_t i, std::int64_t j) {
  return (j / kPanel * kChunk + i) * kPanel + j % kPanel;
}

// out_ij = f(i, j) below the diagonal, and on it if kDiagonal; 0 elsewhere, whatever f would give
// there.
template <bool kDiagonal, class F>
static inline void lower(const F& f, float* out) {
  for (std::int64_t i = 0; i < kChunk; ++i) {
    const std::int64_t width = kDiagonal ? i + 1 : i;
    for (std::int64_t j = 0; j < width; ++j) out[at(i, j)] = f(i, j);
    for (std::int64_t j = width; j < kChunk; ++j) out[at(i, j)] = 0.0f;
  }
}

// Products of rows of a chunk, in double: element (i, j) at i kChunk + j, read for j <= i only.
struct Overlaps {
  double at(std::int64_t i, std::int64_t j) const { return x[i * kChunk + j]; }
  alignas(64) double x[kChunk * kChunk];
};

// A chunk's place: tokens [t, t + count) of a sequence, count <= kChunk. Rows past count are zero.
struct Place {
  std::int64_t t, count;
};

// Loads rows of a port into panels [kChunk, padded]; multiplied by `scale`. Where `inverse_norms`
// is given, each row is normalised and its factor kept there.
static inline void load_rows(const Args& args, Port port, Place place, std::int64_t head,
                             std::int64_t width, std::int64_t padded, float scale, float* flat,
                             float* inverse_norms, float* to) {
  for (std::int64_t i = 0; i < kChunk; ++i) {
    if (i < place.count) {
      load_row(row(args, port, place.t + i, head), width, padded, flat);
      if (inverse_norms != nullptr) {
        inverse_norms[i] = inverse_norm(flat, padded);
        scale_row(inverse_norms[i], flat, padded, flat);
      }
      if (scale != 1.0f) scale_row(scale, flat, padded, flat);
    } else {
      clear(flat, padded);
    }
    put_row(flat, kChunk, i, padded, to);
  }
}

struct Gates {
  float beta[kChunk];
  float enter[kChunk], leave[kChunk];
  float through;                 // exp(G_C): what is left of S0 in the leaving state
  float decay[kChunk * kChunk];  // D, element (i, j) at i kChunk + j, for i >= j

  // What is left of x, of the pair (i, j).
  [[gnu::always_inline]] double fade(std::int64_t i, std::int64_t j, double x) const {
    return static_cast<double>(decay[i * kChunk + j]) * x;
  }
};

static inline void load_gates(const Args& args, Place place, std::int64_t head, Gates& x) {
  double sum[kChunk];  // in double: a prefix past a few resets has lost its small digits in fp32
  double running = 0;
  for (std::int64_t i = 0; i < kChunk; ++i) {
    const bool inside = i < place.count;
    if (inside) running += static_cast<double>(gate(args, place.t + i, head));
    x.beta[i] = inside ? beta(args, place.t + i, head) : 0.0f;
    sum[i] = running;
  }
  x.through = exp_of(static_cast<float>(running));
  for (std::int64_t i = 0; i < kChunk; ++i) {
    x.enter[i] = exp_of(static_cast<float>(sum[i]));
    x.leave[i] = exp_of(static_cast<float>(running - sum[i]));
    for (std::int64_t j = 0; j <= i; ++j) {
      x.decay[i * kChunk + j] = exp_of(static_cast<float>(sum[i] - sum[j]));
    }
  }
}

// One row of a panel in double. The substitutions below run in it: where keys repeat and beta is 1
// their sums telescope, and what is left of them is one term.
struct WideRow {
  static constexpr int kParts = 4;
  static constexpr std::int64_t kPart = kLanes / 2;
  using Narrow = hn::Half<F32>;
  using Wide = hn::RepartitionToWide<F32>;

  [[gnu::always_inline]] explicit WideRow(const float* from) {
    for (int p = 0; p < kParts; ++p) part[p] = load(from, p);
  }
  [[gnu::always_inline]] static hn::Vec<Wide> load(const float* from, int p) {
    return hn::PromoteTo(Wide(), hn::LoadU(Narrow(), from + p * kPart));
  }
  [[gnu::always_inline]] void subtract(double c, const float* row) {
    for (int p = 0; p < kParts; ++p) {
      part[p] = hn::NegMulAdd(hn::Set(Wide(), c), load(row, p), part[p]);
    }
  }
  [[gnu::always_inline]] void store(double c, float* to) const {
    for (int p = 0; p < kParts; ++p) {
      const auto scaled = hn::Mul(hn::Set(Wide(), c), part[p]);
      hn::StoreU(hn::DemoteTo(Narrow(), scaled), Narrow(), to + p * kPart);
    }
  }

  hn::Vec<Wide> part[kParts];
};

// Forward substitution for the residuals R = v - (what the state holds for k), before beta:
//
//   R_i = v_i - enter_i S0^T k_i - sum over j < i of L_ij U_j,   U_i = beta_i R_i,
//
// with L_ij = D_ij k_i.k_j. `held` holds the rows enter_i S0^T k_i. R may be v itself.
static inline void solve_residuals(const Gates& gates, const Overlaps& L, const float* held,
                                   const float* v, std::int64_t V, float* R, float* U) {
  for (std::int64_t panel = 0; panel < V / kPanel; ++panel) {
    for (std::int64_t i = 0; i < kChunk; ++i) {
      const std::int64_t out = (panel * kChunk + i) * kPanel;
      WideRow r(v + out);
      r.subtract(1.0, held + out);
      for (std::int64_t j = 0; j < i; ++j) {
        r.subtract(L.at(i, j), panel_row(U, kChunk, j, panel));
      }
      r.store(1.0, R + out);
      r.store(static_cast<double>(gates.beta[i]), U + out);
    }
  }
}

// Back substitution with the transposed matrix, in place: on entry X holds dU, on return
//
//   X_i = dU_i - sum over j > i of beta_j L_ji X_j.
static inline void solve_transposed(const Gates& gates, const Overlaps& L, std::int64_t V,
                                    float* X) {
  for (std::int64_t panel = 0; panel < V / kPanel; ++panel) {
    for (std::int64_t i = kChunk - 1; i >= 0; --i) {
      float* out = panel_row(X, kChunk, i, panel);
      WideRow x(out);
      for (std::int64_t j = kChunk - 1; j > i; --j) {
        x.subtract(static_cast<double>(gates.beta[j]) * L.at(j, i), panel_row(X, kChunk, j, panel));
      }
      x.store(1.0, out);
    }
  }
}

// The gradient of each token's gate. Gate t lies in the decay of every pair i >= t > j, in what
// row i >= t takes from the entering state, in what row j < t leaves, and in what passes through.
// Those terms are summed as they are: a difference of row sums and column sums would cancel where
// decay is strong. They do cancel where a state is overwritten, so they come in double.
// `pair(i, j)` is dD_ij D_ij; `entering` and `leaving` are the same for enter and leave.
template <class Pair>
static inline void gate_gradient(const Pair& pair, const double* entering, const double* leaving,
                                 double through, double* dg) {
  double row[kChunk], left = 0;
  for (std::int64_t i = 0; i < kChunk; ++i) row[i] = entering[i];
  for (std::int64_t t = 0; t < kChunk; ++t) {
    double sum = through + left;
    for (std::int64_t i = t; i < kChunk; ++i) {
      if (t > 0) row[i] += pair(i, t - 1);
      sum += row[i];
    }
    dg[t] = sum;
    left += leaving[t];
  }
}

}  // namespace deltaworks::cpu::HWY_NAMESPACE
