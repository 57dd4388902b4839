// Gradients of the pairs of a chunk's rows where each key channel has its own decay
// (decay_row-inl.h): those of queries, keys and rows that erase, and of the gates. Everything runs
// a panel of channels at a time.
#pragma once

#include <type_traits>
#include <utility>

#include "engines/cpu/kernels/chunk-inl.h"

namespace deltaworks::cpu::HWY_NAMESPACE {
namespace {  // members of classes would be weak symbols

// Rows of the blocks on the diagonal, within which pairs are walked one by one.
inline constexpr std::int64_t kWalked = 8;

// A row's channels of one panel.
struct Part {
  [[gnu::always_inline]] static Part all(float x) { return {hn::Set(f32, x), hn::Set(f32, x)}; }
  [[gnu::always_inline]] static Part load(const float* from) {
    return {hn::LoadU(f32, from), hn::LoadU(f32, from + kLanes)};
  }
  [[gnu::always_inline]] void store(float* to) const {
    hn::StoreU(low, f32, to);
    hn::StoreU(high, f32, to + kLanes);
  }
  [[gnu::always_inline]] void add_to(float* sum) const { (load(sum) + *this).store(sum); }

  [[gnu::always_inline]] friend Part operator*(Part a, Part b) {
    return {hn::Mul(a.low, b.low), hn::Mul(a.high, b.high)};
  }
  [[gnu::always_inline]] friend Part operator+(Part a, Part b) {
    return {hn::Add(a.low, b.low), hn::Add(a.high, b.high)};
  }
  // a b + c
  [[gnu::always_inline]] friend Part sum(Part a, Part b, Part c) {
    return {hn::MulAdd(a.low, b.low, c.low), hn::MulAdd(a.high, b.high, c.high)};
  }
  [[gnu::always_inline]] friend Part sum(float a, Part b, Part c) { return sum(all(a), b, c); }

  Vec low, high;
};

// The rows are [kChunk, K] in panels. On entry dq, dk and dx hold what they get through the states.
template <bool kErase>
struct RowPairs {
  const float *dP, *dL;        // element (i, j) at i kChunk + j, j <= i, j < i for dL
  const float *a, *q, *k, *x;  // decays, queries, keys, rows that erase
  float *dq, *dk, *dx, *dg;
  bool fades;  // whether no decay is above 1

  // Adds to the gradients of channels [c, c + kPanel) and forms those of their gates, of which
  // `through` is what they get from the state that passes through the chunk. Where no decay is
  // above 1, pairs from two halves meet in between, as in DecayRow::scores.
  void run(std::int64_t c, const float* through) const {
    gates_of_states(c, through);
    if (!fades) return walk<kChunk>(c, 0);
    for (std::int64_t size = kChunk / 2; size >= kWalked; size /= 2) {
      for (std::int64_t middle = size; middle < kChunk; middle += 2 * size) meet(c, size, middle);
    }
    for (std::int64_t first = 0; first < kChunk; first += kWalked) walk<kWalked>(c, first);
  }

 private:
  // Gate t lies in what passes through, in what every row before t leaves, and in what every row
  // from t on reads.
  void gates_of_states(std::int64_t c, const float* through) const {
    Part gate = Part::load(through);
    for (std::int64_t i = 0; i < kChunk; ++i) {
      const std::int64_t at = panel_element(i, c);
      gate.store(dg + at);
      gate = gate + Part::load(k + at) * Part::load(dk + at);
    }
    gate = Part::all(0.0f);
    for (std::int64_t i = kChunk - 1; i >= 0; --i) {
      const std::int64_t at = panel_element(i, c);
      Part of_row = Part::load(q + at) * Part::load(dq + at);
      if (kErase) of_row = sum(Part::load(x + at), Part::load(dx + at), of_row);
      gate = gate + of_row;
      gate.add_to(dg + at);
    }
  }

  // Rows [middle, middle + size) and keys [middle - size, middle).
  void meet(std::int64_t c, std::int64_t size, std::int64_t middle) const {
    constexpr std::int64_t kMost = kChunk / 2 * kPanel;
    alignas(64) float keys[kMost], queries[kMost], erased[kMost];  // faded until the middle
    alignas(64) float before[kMost], after[kMost];                 // the factors
    Part fade = Part::all(1.0f);
    for (std::int64_t j = size - 1; j >= 0; --j) {
      const std::int64_t at = panel_element(middle - size + j, c);
      fade.store(before + j * kPanel);
      (fade * Part::load(k + at)).store(keys + j * kPanel);
      fade = fade * Part::load(a + at);
    }
    fade = Part::all(1.0f);
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t at = panel_element(middle + i, c);
      fade = fade * Part::load(a + at);
      fade.store(after + i * kPanel);
      (fade * Part::load(q + at)).store(queries + i * kPanel);
      if (kErase) (fade * Part::load(x + at)).store(erased + i * kPanel);
    }

    // Gate t of the rows lies in all pairs of the rows from t on, gate t of the keys in all pairs
    // of the keys before t.
    Part gate = Part::all(0.0f);
    for (std::int64_t i = size - kRows; i >= 0; i -= kRows) {
      const std::int64_t first = (middle + i) * kChunk + middle - size;
      Block of_rows;
      const auto add = [&](const float* pairs, const float* faded, float* to) {
        Block sums;
        sums.add(pairs + first, kChunk, 1, keys, size);
        for (int m = 0; m < kRows; ++m) {
          const std::int64_t row = (i + m) * kPanel;
          (Part::load(after + row) * sums.x[m]).add_to(to + panel_element(middle + i + m, c));
          of_rows.x[m] = sum(Part::load(faded + row), sums.x[m], of_rows.x[m]);
        }
      };
      add(dP, queries, dq);
      if (kErase) add(dL, erased, dx);
      for (int m = kRows - 1; m >= 0; --m) {
        gate = gate + of_rows.x[m];
        gate.add_to(dg + panel_element(middle + i + m, c));
      }
    }
    gate = Part::all(0.0f);
    for (std::int64_t j = 0; j < size; j += kRows) {
      const std::int64_t first = middle * kChunk + middle - size + j;
      Block sums;
      sums.add(dP + first, 1, kChunk, queries, size);
      if (kErase) sums.add(dL + first, 1, kChunk, erased, size);
      for (int m = 0; m < kRows; ++m) {
        const std::int64_t row = (j + m) * kPanel, at = panel_element(middle - size + j + m, c);
        gate.add_to(dg + at);
        (Part::load(before + row) * sums.x[m]).add_to(dk + at);
        gate = sum(Part::load(keys + row), sums.x[m], gate);
      }
    }
  }

  // Rows of a product that are kept in registers.
  struct Block {
    Block() {
      for (Part& row : x) row = Part::all(0.0f);
    }
    // x[m] += sum over s < depth of left[m step + s depth_step] right[s].
    [[gnu::always_inline]] void add(const float* left, std::int64_t step, std::int64_t depth_step,
                                    const float* right, std::int64_t depth) {
      for (std::int64_t s = 0; s < depth; ++s) {
        const Part row = Part::load(right + s * kPanel);
        for (int m = 0; m < kRows; ++m) {
          x[m] = sum(left[m * step + s * depth_step], row, x[m]);
        }
      }
    }
    Part x[kRows];
  };

  // Calls f with 0 .. kCount - 1, as constants if they are few.
  template <std::int64_t kCount, class F>
  [[gnu::always_inline]] static void each_row(const F& f) {
    if constexpr (kCount == kWalked) {
      const auto call = [&]<std::int64_t... i>(std::integer_sequence<std::int64_t, i...>) {
        (f(std::integral_constant<std::int64_t, i>()), ...);
      };
      call(std::make_integer_sequence<std::int64_t, kCount>());
    } else {
      for (std::int64_t i = 0; i < kCount; ++i) f(i);
    }
  }

  // The pairs among rows [first, first + kCount), row by row: forward, where w_ij becomes w_(i+1)j,
  // and then backward, where z_ij becomes z_(i-1)j.
  template <std::int64_t kCount>
  void walk(std::int64_t c, std::int64_t first) const {
    alignas(64) float faded[kCount * (kCount + 1) / 2 * kPanel];  // w, j <= i
    alignas(64) float keys[kCount * kPanel];                      // z of the row
    const std::int64_t corner = first * kChunk + first;
    each_row<kCount>([&](auto i) {
      float* w = faded + i * (i + 1) / 2 * kPanel;
      const float *before = w - i * kPanel, *of_p = dP + corner + i * kChunk,
                  *of_l = dL + corner + i * kChunk;
      const std::int64_t at = panel_element(first + i, c);
      const Part decay = Part::load(a + at), own = Part::load(k + at);
      Part of_q = Part::load(dq + at), of_x = kErase ? Part::load(dx + at) : Part::all(0.0f);
      for (std::int64_t j = 0; j < i; ++j) {
        const Part wij = decay * Part::load(before + j * kPanel);
        wij.store(w + j * kPanel);
        of_q = sum(of_p[j], wij, of_q);
        if (kErase) of_x = sum(of_l[j], wij, of_x);
      }
      own.store(w + i * kPanel);
      sum(of_p[i], own, of_q).store(dq + at);
      if (kErase) of_x.store(dx + at);
      Part::all(0.0f).store(keys + i * kPanel);
    });
    each_row<kCount>([&](auto row) {
      const auto i = kCount - 1 - row;
      const float *w = faded + i * (i + 1) / 2 * kPanel, *of_p = dP + corner + i * kChunk,
                  *of_l = dL + corner + i * kChunk;
      const std::int64_t at = panel_element(first + i, c);
      const Part decay = Part::load(a + at), query = Part::load(q + at);
      const Part erased = kErase ? Part::load(x + at) : Part::all(0.0f);
      Part of_gate = Part::load(dg + at);
      for (std::int64_t j = 0; j < i; ++j) {
        Part z = sum(of_p[j], query, Part::load(keys + j * kPanel));
        if (kErase) z = sum(of_l[j], erased, z);
        of_gate = sum(Part::load(w + j * kPanel), z, of_gate);
        (decay * z).store(keys + j * kPanel);
      }
      of_gate.store(dg + at);
      sum(of_p[i], query, Part::load(keys + i * kPanel)).add_to(dk + at);
    });
  }
};

}  // namespace
}  // namespace deltaworks::cpu::HWY_NAMESPACE
