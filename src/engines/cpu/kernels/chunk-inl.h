// One chunk of one head: its rows and the two triangular solves (docs/design/cpu.md). A chunk has
// kChunk rows, one a step of the recurrence; those past the end of the sequence are zero.
#pragma once

#include "engines/cpu/kernels/inputs-inl.h"
#include "engines/cpu/kernels/panels-inl.h"

namespace deltaworks::cpu::HWY_NAMESPACE {

inline constexpr std::int64_t kChunk = 32;
static_assert(kChunk % kPanel == 0);

// Where element (i, j) of a matrix of so many rows lies in its panels.
static inline std::int64_t panel_element(std::int64_t i, std::int64_t j,
                                         std::int64_t rows = kChunk) {
  return (j / kPanel * rows + i) * kPanel + j % kPanel;
}

// Rows of a chunk, every `step`-th of it from `first` on. A matrix of such rows holds them alone,
// padded with zeros: its row m is the chunk's row at(m).
struct Rows {
  std::int64_t at(std::int64_t m) const { return first + m * step; }
  std::int64_t index(std::int64_t i) const { return (i - first) / step; }  // of one of them

  std::int64_t first, step, count, padded;
};
static constexpr Rows kAllRows{0, 1, kChunk, kChunk};  // inline it would be a weak symbol

// The rows that are read, a token's last ones, of a chunk that begins at step r of the batch.
static inline Rows rows_read(const Args& args, std::int64_t r) {
  const std::int64_t n = args.dims.n, first = n - 1 - r % n;
  const std::int64_t count = first < kChunk ? (kChunk - 1 - first) / n + 1 : 0;
  return {first, n, count, count == 0 ? kPanel : round_up(count, kPanel)};
}

// out_mj = f(m, j) left of the diagonal of the chunk's matrix, and on it if kDiagonal; 0 elsewhere,
// whatever f would give there.
template <bool kDiagonal, class F>
static inline void lower(const Rows& rows, const F& f, float* out) {
  for (std::int64_t m = 0; m < rows.padded; ++m) {
    const std::int64_t width = m < rows.count ? rows.at(m) + (kDiagonal ? 1 : 0) : 0;
    for (std::int64_t j = 0; j < width; ++j) out[panel_element(m, j, rows.padded)] = f(m, j);
    for (std::int64_t j = width; j < kChunk; ++j) out[panel_element(m, j, rows.padded)] = 0.0f;
  }
}

// The part of A B left of the diagonal and on it, in double: A [rows, depth], B [depth, kChunk].
// What lies right of the diagonal is left in part unwritten.
static inline void exact_lower_product(const Rows& rows, std::int64_t depth, const float* a,
                                       const float* b, double* out) {
  for (std::int64_t m = 0; m < rows.count; m += kExactRows) {
    const std::int64_t last = rows.at(m + kExactRows - 1);
    for (std::int64_t j = 0; j < kChunk && j <= last; j += kLanes) {
      exact_block(m, j, kChunk, depth, Plain{a, rows.padded}, b, out);
    }
  }
}

// Products of rows of a chunk, in double: element (m, j) at m kChunk + j, read only where row m is
// not before row j.
struct Overlaps {
  double at(std::int64_t i, std::int64_t j) const { return x[i * kChunk + j]; }
  alignas(64) double x[kChunk * kChunk];
};
inline constexpr std::int64_t kOverlapFloats = sizeof(Overlaps) / sizeof(float);

// What the pairs of rows i >= j of a chunk have to do with one another, i > j for L. P and its
// gradient have the rows that are read.
struct Pairs {
  const Overlaps *P, *L;    // q_i.(D_ij k_j), x_i.(D_ij k_j)
  const Overlaps *dP, *dL;  // their gradients
};

// A chunk's place: steps [r, r + count) of the packed batch, count <= kChunk.
struct Place {
  std::int64_t r, count;
};

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

// Forward substitution for the residuals R = t - (what the state holds for x), before b:
//
//   R_i = t_i - S0^T (enter_i x_i) - sum over j < i of L_ij U_j,   U_i = b_i R_i,
//
// with L_ij = x_i.(D_ij k_j). `held` holds the rows S0^T (enter_i x_i). R may be t itself.
static inline void solve_residuals(const float* b, const Overlaps& L, const float* held,
                                   const float* t, std::int64_t V, float* R, float* U) {
  for (std::int64_t panel = 0; panel < V / kPanel; ++panel) {
    for (std::int64_t i = 0; i < kChunk; ++i) {
      const std::int64_t out = (panel * kChunk + i) * kPanel;
      WideRow r(t + out);
      r.subtract(1.0, held + out);
      for (std::int64_t j = 0; j < i; ++j) {
        r.subtract(L.at(i, j), panel_row(U, kChunk, j, panel));
      }
      r.store(1.0, R + out);
      r.store(static_cast<double>(b[i]), U + out);
    }
  }
}

// Back substitution with the transposed matrix, in place: on entry X holds dU, on return
//
//   X_i = dU_i - sum over j > i of b_j L_ji X_j.
static inline void solve_transposed(const float* b, const Overlaps& L, std::int64_t V, float* X) {
  for (std::int64_t panel = 0; panel < V / kPanel; ++panel) {
    for (std::int64_t i = kChunk - 1; i >= 0; --i) {
      float* out = panel_row(X, kChunk, i, panel);
      WideRow x(out);
      for (std::int64_t j = kChunk - 1; j > i; --j) {
        x.subtract(static_cast<double>(b[j]) * L.at(j, i), panel_row(X, kChunk, j, panel));
      }
      x.store(1.0, out);
    }
  }
}

}  // namespace deltaworks::cpu::HWY_NAMESPACE
