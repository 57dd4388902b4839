// Matrices in panels and the products among them. A panel holds kPanel columns of all rows, one
// row after the other: element (r, c) of a matrix with R rows lies at
//
//   (c / kPanel) R kPanel + r kPanel + c % kPanel.
//
// So the right operand and the result of a product are read and written in order, and the left one
// is broadcast from a cache line or two whether it is transposed or not. Columns are padded to a
// multiple of kPanel, rows to a multiple of kRows; what is padded holds zeros.
#pragma once

#include "engines/cpu/kernels/rows-inl.h"

namespace deltaworks::cpu::HWY_NAMESPACE {

// Rows of a product that are kept in registers, times two vectors each: 8 accumulators hide the
// latency of the multiply-add, 16 fit where there are 32 registers.
#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_AVX2
inline constexpr std::int64_t kRows = 4;
#else
inline constexpr std::int64_t kRows = 8;
#endif
// And where they leave room for it, as AVX2's 16: a panel's 16 rows are then blocks of 6, 6 and 4.
inline constexpr std::int64_t kTallRows = HWY_TARGET == HWY_AVX2 ? 6 : kRows;
static_assert(kPanel % kTallRows % kRows == 0);
static_assert(kPanel % kRows == 0, "a transposed left operand reads kRows columns of one panel");

static inline float* panel_row(float* x, std::int64_t rows, std::int64_t row, std::int64_t panel) {
  return x + (panel * rows + row) * kPanel;
}
static inline const float* panel_row(const float* x, std::int64_t rows, std::int64_t row,
                                     std::int64_t panel) {
  return x + (panel * rows + row) * kPanel;
}

// Where a left operand's elements lie: row i, depth p.
struct Plain {
  const float* a;
  std::int64_t rows;  // of the matrix
  const float* at(std::int64_t i, std::int64_t p) const {
    return a + (p / kPanel * rows + i) * kPanel + p % kPanel;
  }
  static constexpr std::int64_t kRowStep = kPanel;
  static constexpr std::int64_t kDepthStep = 1;  // inside a panel
};
struct Transposed {
  const float* a;
  std::int64_t rows;  // of the matrix as it is stored: the depth
  const float* at(std::int64_t i, std::int64_t p) const {
    return a + (i / kPanel * rows + p) * kPanel + i % kPanel;
  }
  static constexpr std::int64_t kRowStep = 1;
  static constexpr std::int64_t kDepthStep = kPanel;
};

// Terms that are summed before they are added to the result: shorter sums round less.
inline constexpr std::int64_t kRun = 32;
static_assert(kRun % kPanel == 0);

struct Nothing {
  void operator()() const {}
};

// Asks for a block of a product, at most kTallRows rows of one panel.
[[gnu::always_inline]] static inline void prefetch_block(const float* x) {
  constexpr std::int64_t kLine = 64 / sizeof(float);
  for (std::int64_t i = 0; i < kTallRows * kPanel; i += kLine) __builtin_prefetch(x + i);
}

// What a product is added to: nothing, what its result holds, or a matrix of its shape whose row r
// is multiplied by factors[r * step]; that may be the result. `prefetch` asks for a block from `at`
// on.
struct Alone {
  [[gnu::always_inline]] void prefetch(const float*, std::int64_t) const {}
  [[gnu::always_inline]] Vec before(const float*, std::int64_t, std::int64_t) const {
    return zero();
  }
};
struct Sum {
  [[gnu::always_inline]] void prefetch(const float* c, std::int64_t at) const {
    prefetch_block(c + at);
  }
  [[gnu::always_inline]] Vec before(const float* c, std::int64_t, std::int64_t at) const {
    return hn::LoadU(f32, c + at);
  }
};
struct Faded {
  [[gnu::always_inline]] void prefetch(const float* c, std::int64_t at) const {
    prefetch_block(x + at);
    if (c != x) prefetch_block(c + at);
  }
  [[gnu::always_inline]] Vec before(const float*, std::int64_t row, std::int64_t at) const {
    return hn::Mul(hn::Set(f32, factors[row * step]), hn::LoadU(f32, x + at));
  }
  const float *x, *factors;
  std::int64_t step;
};

// The operands of a product C = (what it is added to) + A B with A [rows, depth], B [depth, cols],
// C [rows, cols]; C must not overlap A or B.
template <class To, class Left>
struct Operands {
  std::int64_t rows, depth;
  Left a;
  const float* b;
  float* c;
  const To& to;
};

// Rows [i, i + kBlock) of a panel of C.
template <int kBlock, class To, class Left, class Meanwhile>
[[gnu::always_inline]] static inline void product_block(const Operands<To, Left> x,
                                                        std::int64_t panel, std::int64_t i,
                                                        Meanwhile&& meanwhile) {
  const float* right = panel_row(x.b, x.depth, 0, panel);
  x.to.prefetch(x.c, (panel * x.rows + i + kBlock) * kPanel);
  for (std::int64_t run = 0; run < x.depth; run += kRun) {
    const std::int64_t end = x.depth - run < kRun ? x.depth : run + kRun;
    meanwhile();
    Vec sum[kBlock][2];
    for (auto& row : sum) row[0] = row[1] = hn::Zero(f32);
    for (std::int64_t p = run; p < end; p += kPanel) {
      const float* left = x.a.at(i, p);
      const std::int64_t steps = end - p < kPanel ? end - p : kPanel;
      for (std::int64_t s = 0; s < steps; ++s) {
        const Vec b0 = hn::LoadU(f32, right);
        const Vec b1 = hn::LoadU(f32, right + kLanes);
        for (int m = 0; m < kBlock; ++m) {
          const Vec y = hn::Set(f32, left[m * Left::kRowStep]);
          sum[m][0] = hn::MulAdd(y, b0, sum[m][0]);
          sum[m][1] = hn::MulAdd(y, b1, sum[m][1]);
        }
        left += Left::kDepthStep;
        right += kPanel;
      }
    }
    for (int m = 0; m < kBlock; ++m) {
      for (int half = 0; half < 2; ++half) {
        const std::int64_t at = (panel * x.rows + i + m) * kPanel + half * kLanes;
        const Vec before = run > 0 ? hn::LoadU(f32, x.c + at) : x.to.before(x.c, i + m, at);
        hn::StoreU(hn::Add(before, sum[m][half]), f32, x.c + at);
      }
    }
  }
}

// Such a product of `rows` a multiple of kPanel; `meanwhile` is called once for every kRun terms of
// a block of C.
template <class To, class Left, class Meanwhile = Nothing>
static inline void product(std::int64_t rows, std::int64_t cols, std::int64_t depth, Left a,
                           const float* b, float* c, Meanwhile&& meanwhile = {},
                           const To& to = {}) {
  [[maybe_unused]] const Operands<To, Left> x{rows, depth, a, b, c, to};
  for (std::int64_t panel = 0; panel < cols / kPanel; ++panel) {
    for (std::int64_t first = 0; first < rows; first += kPanel) {
      std::int64_t i = first;
      for (; i + kTallRows <= first + kPanel; i += kTallRows) {
        product_block<kTallRows>(x, panel, i, meanwhile);
      }
      if constexpr (kPanel % kTallRows != 0) product_block<kRows>(x, panel, i, meanwhile);
    }
  }
}

// Rows of a product in double that are kept in registers, times two vectors of half the lanes.
inline constexpr std::int64_t kExactRows = 4;

// Rows [i, i + kExactRows) and columns [j, j + kLanes) of A B in double, for sums whose terms
// cancel: A [size, depth] and B [depth, size] in panels, `out` in rows of `size`.
static inline void exact_block(std::int64_t i, std::int64_t j, std::int64_t size,
                               std::int64_t depth, Plain a, const float* b, double* out) {
  const hn::Half<F32> half;
  const hn::RepartitionToWide<F32> f64;
  constexpr std::int64_t kHalf = kLanes / 2;
  double left[kPanel * kExactRows];
  hn::Vec<decltype(f64)> acc[kExactRows][2];
  for (auto& row : acc) row[0] = row[1] = hn::Zero(f64);
  const float* right = b + j / kPanel * depth * kPanel + j % kPanel;
  for (std::int64_t p = 0; p < depth; p += kPanel) {
    for (std::int64_t m = 0; m < kExactRows; ++m) {
      for (std::int64_t s = 0; s < kPanel; s += kHalf) {
        const auto x = hn::LoadU(half, a.at(i + m, p) + s);
        hn::StoreU(hn::PromoteTo(f64, x), f64, left + m * kPanel + s);
      }
    }
    for (std::int64_t s = 0; s < kPanel; ++s, right += kPanel) {
      const auto b0 = hn::PromoteTo(f64, hn::LoadU(half, right));
      const auto b1 = hn::PromoteTo(f64, hn::LoadU(half, right + kHalf));
      for (std::int64_t m = 0; m < kExactRows; ++m) {
        const auto x = hn::Set(f64, left[m * kPanel + s]);
        acc[m][0] = hn::MulAdd(x, b0, acc[m][0]);
        acc[m][1] = hn::MulAdd(x, b1, acc[m][1]);
      }
    }
  }
  for (std::int64_t m = 0; m < kExactRows; ++m) {
    hn::StoreU(acc[m][0], f64, out + (i + m) * size + j);
    hn::StoreU(acc[m][1], f64, out + (i + m) * size + j + kHalf);
  }
}

// Row `row` of a panel matrix from a padded flat row, and back.
static inline void put_row(const float* flat, std::int64_t rows, std::int64_t row,
                           std::int64_t cols, float* x) {
  for (std::int64_t panel = 0; panel < cols / kPanel; ++panel) {
    float* to = panel_row(x, rows, row, panel);
    for (int half = 0; half < 2; ++half) {
      hn::StoreU(hn::LoadU(f32, flat + panel * kPanel + half * kLanes), f32, to + half * kLanes);
    }
  }
}
static inline void get_row(const float* x, std::int64_t rows, std::int64_t row, std::int64_t cols,
                           float* flat) {
  for (std::int64_t panel = 0; panel < cols / kPanel; ++panel) {
    const float* from = panel_row(x, rows, row, panel);
    for (int half = 0; half < 2; ++half) {
      hn::StoreU(hn::LoadU(f32, from + half * kLanes), f32, flat + panel * kPanel + half * kLanes);
    }
  }
}

// Blocks of 4 lanes, `step` apart in memory, as one vector.
template <class D>
[[gnu::always_inline]] static inline hn::Vec<D> load_blocks(D lanes, const float* from,
                                                            std::int64_t step) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    return hn::LoadU(lanes, from);
  } else {
    const hn::Half<D> half;
    constexpr std::int64_t blocks = hn::MaxLanes(D()) / 8;
    return hn::Combine(lanes, load_blocks(half, from + blocks * step, step),
                       load_blocks(half, from, step));
  }
}

struct Same {
  [[gnu::always_inline]] Vec operator()(Vec x, std::int64_t) const { return x; }
};

// y = f(x^T) by element: x [rows, cols], y [cols, rows], both multiples of kPanel. f gets a vector
// of the transpose and where it lies in y. Four columns of kLanes rows at a time, each block of
// 4 x 4 in its lanes.
template <class F = Same>
static inline void transpose(const float* x, std::int64_t rows, std::int64_t cols, float* y,
                             const F& f = {}) {
  using U64 = hn::RepartitionToWide<hn::RebindToUnsigned<F32>>;
  const U64 u64;
  for (std::int64_t r = 0; r < rows; r += kLanes) {
    for (std::int64_t c = 0; c < cols; c += 4) {
      const float* from = panel_row(x, rows, r, c / kPanel) + c % kPanel;
      constexpr std::int64_t kBlock = 4 * kPanel;
      const Vec a0 = load_blocks(f32, from, kBlock);
      const Vec a1 = load_blocks(f32, from + kPanel, kBlock);
      const Vec a2 = load_blocks(f32, from + 2 * kPanel, kBlock);
      const Vec a3 = load_blocks(f32, from + 3 * kPanel, kBlock);
      const auto lo01 = hn::BitCast(u64, hn::InterleaveLower(f32, a0, a1));
      const auto hi01 = hn::BitCast(u64, hn::InterleaveUpper(f32, a0, a1));
      const auto lo23 = hn::BitCast(u64, hn::InterleaveLower(f32, a2, a3));
      const auto hi23 = hn::BitCast(u64, hn::InterleaveUpper(f32, a2, a3));
      const Vec out[] = {hn::BitCast(f32, hn::InterleaveLower(u64, lo01, lo23)),
                         hn::BitCast(f32, hn::InterleaveUpper(u64, lo01, lo23)),
                         hn::BitCast(f32, hn::InterleaveLower(u64, hi01, hi23)),
                         hn::BitCast(f32, hn::InterleaveUpper(u64, hi01, hi23))};
      const std::int64_t to = ((r / kPanel) * cols + c) * kPanel + r % kPanel;
      for (int i = 0; i < 4; ++i) {
        const std::int64_t at = to + i * kPanel;
        hn::StoreU(f(out[i], at), f32, y + at);
      }
    }
  }
}

// y = diag(factors) x; y may be x.
static inline void scale_rows(const float* factors, const float* x, std::int64_t rows,
                              std::int64_t cols, float* y) {
  for (std::int64_t panel = 0; panel < cols / kPanel; ++panel) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const Vec factor = hn::Set(f32, factors[r]);
      const std::int64_t at = (panel * rows + r) * kPanel;
      for (int half = 0; half < 2; ++half) {
        const std::int64_t i = at + half * kLanes;
        hn::StoreU(hn::Mul(factor, hn::LoadU(f32, x + i)), f32, y + i);
      }
    }
  }
}

// y = x diag(factors); y may be x.
static inline void scale_columns(const float* factors, const float* x, std::int64_t rows,
                                 std::int64_t cols, float* y) {
  for (std::int64_t panel = 0; panel < cols / kPanel; ++panel) {
    for (int half = 0; half < 2; ++half) {
      const Vec factor = hn::LoadU(f32, factors + panel * kPanel + half * kLanes);
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t i = (panel * rows + r) * kPanel + half * kLanes;
        hn::StoreU(hn::Mul(factor, hn::LoadU(f32, x + i)), f32, y + i);
      }
    }
  }
}

// sums[r] += sum over c of x[r, c] y[r, c], in double.
static inline void add_row_dots(const float* x, const float* y, std::int64_t rows,
                                std::int64_t cols, double* sums) {
  const hn::Half<F32> half;
  const hn::RepartitionToWide<F32> f64;
  constexpr std::int64_t kHalf = kLanes / 2;
  for (std::int64_t r = 0; r < rows; ++r) {
    auto even = hn::Zero(f64), odd = hn::Zero(f64);
    for (std::int64_t panel = 0; panel < cols / kPanel; ++panel) {
      for (std::int64_t c = 0; c < kPanel; c += kLanes) {
        const std::int64_t i = (panel * rows + r) * kPanel + c;
        even = hn::MulAdd(hn::PromoteTo(f64, hn::LoadU(half, x + i)),
                          hn::PromoteTo(f64, hn::LoadU(half, y + i)), even);
        odd = hn::MulAdd(hn::PromoteTo(f64, hn::LoadU(half, x + i + kHalf)),
                         hn::PromoteTo(f64, hn::LoadU(half, y + i + kHalf)), odd);
      }
    }
    sums[r] += hn::GetLane(hn::SumOfLanes(f64, hn::Add(even, odd)));
  }
}

}  // namespace deltaworks::cpu::HWY_NAMESPACE
