// The decays of a chunk where each key channel has its own. Everything is a product of the decays
// a_t of single rows, as the recurrence forms it: no exponent is needed inside, none can be
// positive, and a reset is a factor 0. By channel,
//
//   enter_i = a_1 .. a_i    leave_i = a_(i+1) .. a_C    D_ij = a_(j+1) .. a_i,  i >= j
//
// and pairs are walked as the recurrence would walk them: forward with w_ij = D_ij * k_j, backward
// with z_ij = m_ij + a_(i+1) * z_(i+1)j, where m_ij = dP_ij q_i + dL_ij x_i. Then row j's key gets
// a_(j+1) * z_(j+1)j, and gate t the sum over j < t of w_tj * z_tj, in which nothing cancels that
// does not cancel in the recurrence (row_pairs-inl.h).
//
// A token has one step here, so all rows of a chunk are read: `Rows` are always kAllRows.
#pragma once

#include "engines/cpu/kernels/row_pairs-inl.h"

namespace deltaworks::cpu::HWY_NAMESPACE {
namespace {  // members of classes would be weak symbols

class DecayRow {
 public:
  static std::int64_t gates(std::int64_t K) { return K; }  // a row

  DecayRow(std::int64_t K, std::int64_t V, Carver& carver) : K_(K), V_(V) {
    for (float** m : {&a_, &enter_, &later_, &leave_, &dg_}) *m = carver.take(kChunk * K);
    dt_ = carver.take(kChunk * K);
    reads_ = carver.take(kChunk * K);
    first_ = carver.take(K * V);
    w_ = carver.take(K);
    through_ = carver.take(K);
    through_gradient_ = carver.take(K);
  }

  // The logs of the decays of row i, padded; every row is set before load(), those past the end to
  // 0.
  void set_row(std::int64_t i, const float* gates) {
    const Vec near = hn::Set(f32, kNear);
    each_vector([&](std::int64_t c) {
      const Vec g = hn::LoadU(f32, gates + c);
      const bool is_near = hn::AllTrue(f32, hn::Le(hn::Abs(g), near));
      put(is_near ? exp_near(g) : exp_of(clamp_gate(Lanes(g))).x, a_, c, i);
    });
  }
  void load(const float*) {
    Vec most = zero();
    each_vector([&](std::int64_t c) {
      Vec x = hn::Set(f32, 1.0f);
      for (std::int64_t i = 0; i < kChunk; ++i) {
        most = hn::Max(most, at(a_, c, i));
        x = hn::Mul(x, at(a_, c, i));
        put(x, enter_, c, i);
      }
      hn::StoreU(x, f32, through_ + c);
      x = hn::Set(f32, 1.0f);
      for (std::int64_t i = kChunk - 1; i >= 0; --i) {
        put(x, leave_, c, i);
        x = hn::Mul(x, at(a_, c, i));
      }
    });
    fades_ = hn::AllTrue(f32, hn::Le(most, hn::Set(f32, 1.0f)));
  }

  // The part j <= i of out_ij = sum over d of left_id D_ijd k_jd, in double. Where no decay is
  // above 1, pairs from two halves meet in between: D_ij is the product of what key j keeps until
  // there and of what is left for row i from there, neither less than D_ij, so all such pairs are
  // one product of matrices. What is left, small blocks on the diagonal, is walked key by key.
  void scores(const Rows&, const float* left, const float* k, Overlaps& out) {
    if (!fades_) return walk_all(left, k, out);
    for (std::int64_t size = kChunk / 2; size >= kWalked; size /= 2) meet(size, left, k, out);
    for (std::int64_t j = 0; j < kChunk; j += kWalked) walk_block<0>(j, left, k, out);
  }

  void enter(const Rows&, const float* rows, float* to) const {
    multiply_row(enter_, rows, kChunk * K_, to);
  }
  void leave(const float* rows, float* to) const { multiply_row(leave_, rows, kChunk * K_, to); }
  // What is left of S [K, V] after the chunk.
  Faded carry(const float* S) const { return {S, through_, 1}; }

  // Begins the gradients of the gates.
  void begin_gradient(const float* S, const float* dS) {
    for (std::int64_t i = 0; i < K_; ++i) dots_[i] = 0;
    add_row_dots(S, dS, K_, V_, dots_);
    for (std::int64_t i = 0; i < K_; ++i) w_[i] = static_cast<float>(dots_[i]);
    multiply_row(through_, w_, K_, through_gradient_);
    has_first_ = false;
  }

  // d = enter * (S f^T)^T, the gradient of `rows` that read S; f comes transposed, [V, kChunk].
  template <class Meanwhile>
  void entering_gradient(const Rows&, const float*, const float* S, const float* ft, float* d,
                         Meanwhile& meanwhile) {
    if (!through_states(S, ft, enter_, d, meanwhile)) {
      // Of a state near overflow, what the first row reads: all that may be multiplied.
      form_first(S);
      through_states(first_, ft, later_, d, meanwhile);
    }
  }
  // The same of `rows` that wrote what leaves.
  template <class Meanwhile>
  void leaving_gradient(const float*, const float* dS, const float* ft, float* d,
                        Meanwhile& meanwhile) {
    through_states(dS, ft, leave_, d, meanwhile);
  }

  // Adds what the pairs of rows give to dq, dk and dx, and forms the gradients of the gates.
  template <bool kErase>
  void pairs_gradient(const Rows&, const Pairs& p, const float* q, const float* k, const float* x,
                      float* dq, float* dk, float* dx) {
    alignas(64) float dP[kChunk * kChunk], dL[kChunk * kChunk];
    narrow_rows(*p.dP, dP);
    if (kErase) narrow_rows(*p.dL, dL);
    const RowPairs<kErase> pairs{dP, dL, a_, q, k, x, dq, dk, dx, dg_, fades_};
    for (std::int64_t c = 0; c < K_; c += kPanel) pairs.run(c, through_gradient_ + c);
  }

  // Gradients of row i's gates, padded.
  void gradient_row(std::int64_t i, float* to) const { get_row(dg_, kChunk, i, K_, to); }

 private:
  // A sum of products, in double.
  struct WideSum {
    using Wide = hn::RepartitionToWide<F32>;
    [[gnu::always_inline]] void add(Vec x, Vec y) {
      low = hn::MulAdd(promote(hn::LowerHalf(x)), promote(hn::LowerHalf(y)), low);
      high = hn::MulAdd(promote(hn::UpperHalf(hn::Half<F32>(), x)),
                        promote(hn::UpperHalf(hn::Half<F32>(), y)), high);
    }
    [[gnu::always_inline]] static hn::Vec<Wide> promote(hn::Vec<hn::Half<F32>> x) {
      return hn::PromoteTo(Wide(), x);
    }
    double total() const { return hn::GetLane(hn::SumOfLanes(Wide(), hn::Add(low, high))); }
    hn::Vec<Wide> low = hn::Zero(Wide()), high = hn::Zero(Wide());
  };

  static void narrow_rows(const Overlaps& from, float* to) {
    const hn::Half<F32> half;
    const hn::RepartitionToWide<F32> f64;
    for (std::int64_t i = 0; i < kChunk; ++i) {
      for (std::int64_t j = i * kChunk; j <= i * kChunk + i; j += kLanes / 2) {
        hn::StoreU(hn::DemoteTo(half, hn::LoadU(f64, from.x + j)), half, to + j);
      }
    }
  }

  // The scores of rows [middle, middle + size) and keys [middle - size, middle), for each odd
  // multiple `middle` of size. Writes whole vectors of scores.
  void meet(std::int64_t size, const float* left, const float* k, Overlaps& out) {
    float *keys = dg_, *keys_t = dt_;  // free until the gradients begin
    for (std::int64_t middle = size; middle < kChunk; middle += 2 * size) {
      each_vector([&](std::int64_t c) {
        Vec x = hn::Set(f32, 1.0f);
        for (std::int64_t j = middle - 1; j >= middle - size; --j) {
          put(hn::Mul(x, at(k, c, j)), keys, c, j);
          x = hn::Mul(x, at(a_, c, j));
        }
        x = hn::Set(f32, 1.0f);
        for (std::int64_t i = middle; i < middle + size; ++i) {
          x = hn::Mul(x, at(a_, c, i));
          put(hn::Mul(x, at(left, c, i)), reads_, c, i);
        }
      });
    }
    transpose(keys, kChunk, K_, keys_t);
    for (std::int64_t middle = size; middle < kChunk; middle += 2 * size) {
      for (std::int64_t i = middle; i < middle + size; i += kExactRows) {
        for (std::int64_t j = middle - size; j < middle; j += kLanes) {
          exact_block(i, j, kChunk, K_, Plain{reads_, kChunk}, keys_t, out.x);
        }
      }
    }
  }

  // Keys [j + kFirst, j + kWalked) and the rows of their block, the faded key in a register.
  template <int kFirst>
  void walk_block(std::int64_t j, const float* left, const float* k, Overlaps& out) {
    constexpr int kCount = kWalked - kFirst;
    WideSum sums[kCount];
    each_vector([&](std::int64_t c) {
      Vec w = at(k, c, j + kFirst);
      HWY_UNROLL(8)
      for (int i = 0; i < kCount; ++i) {
        if (i > 0) w = hn::Mul(w, at(a_, c, j + kFirst + i));
        sums[i].add(at(left, c, j + kFirst + i), w);
      }
    });
    for (int i = 0; i < kCount; ++i) {
      out.x[(j + kFirst + i) * kChunk + j + kFirst] = sums[i].total();
    }
    if constexpr (kFirst + 1 < kWalked) walk_block<kFirst + 1>(j, left, k, out);
  }
  // The same for all pairs of the chunk.
  void walk_all(const float* left, const float* k, Overlaps& out) {
    for (std::int64_t j = 0; j < kChunk; ++j) {
      get_row(k, kChunk, j, K_, w_);
      for (std::int64_t i = j; i < kChunk; ++i) {
        WideSum sum;
        each_vector([&](std::int64_t c) {
          Vec w = hn::LoadU(f32, w_ + c);
          if (i > j) {
            w = hn::Mul(w, at(a_, c, i));
            hn::StoreU(w, f32, w_ + c);
          }
          sum.add(at(left, c, i), w);
        });
        out.x[i * kChunk + j] = sum.total();
      }
    }
  }

  // Calls f(c) for the first channel c of every vector of channels.
  template <class F>
  [[gnu::always_inline]] void each_vector(const F& f) const {
    for (std::int64_t c = 0; c < K_; c += kLanes) f(c);
  }
  // Channels from c on of row i.
  [[gnu::always_inline]] static Vec at(const float* m, std::int64_t c, std::int64_t i) {
    return hn::LoadU(f32, m + panel_element(i, c));
  }
  [[gnu::always_inline]] static void put(Vec x, float* m, std::int64_t c, std::int64_t i) {
    hn::StoreU(x, f32, m + panel_element(i, c));
  }

  // S after the decay of the first row, and what enters without it.
  void form_first(const float* S) {
    if (has_first_) return;
    has_first_ = true;
    get_row(a_, kChunk, 0, K_, w_);
    scale_rows(w_, S, K_, V_, first_);
    each_vector([&](std::int64_t c) {
      Vec x = hn::Set(f32, 1.0f);
      for (std::int64_t i = 0; i < kChunk; ++i) {
        if (i > 0) x = hn::Mul(x, at(a_, c, i));
        put(x, later_, c, i);
      }
    });
  }

  // d = factors * (S f^T)^T; whether the product is finite.
  template <class Meanwhile>
  bool through_states(const float* S, const float* ft, const float* factors, float* d,
                      Meanwhile& meanwhile) {
    product<Alone>(K_, kChunk, V_, Plain{S, K_}, ft, dt_, meanwhile);
    const Vec most = hn::Set(f32, hwy::HighestValue<float>());
    auto finite = hn::Eq(most, most);
    transpose(dt_, K_, kChunk, d, [&](Vec x, std::int64_t at) {
      // Nothing is left where the factor is 0, also of a product that overflowed.
      const Vec factor = hn::LoadU(f32, factors + at);
      finite = hn::And(finite, hn::Le(hn::Abs(x), most));
      return hn::IfThenElse(hn::Eq(factor, zero()), zero(), hn::Mul(factor, x));
    });
    return hn::AllTrue(f32, finite);
  }

  std::int64_t K_, V_;                // padded
  float *a_, *enter_, *leave_, *dg_;  // [kChunk, K]
  float* later_;                      // enter without the decay of the first row
  float* first_;                      // [K, V], S after the decay of the first row, if need be
  float *dt_, *reads_, *w_, *through_, *through_gradient_;
  bool fades_ = true;          // whether no decay is above 1
  bool has_first_ = false;     // whether first_ and later_ are those of this chunk
  double dots_[512 + kPanel];  // by channel; no head has more (problem/validate.cc)
};

}  // namespace
}  // namespace deltaworks::cpu::HWY_NAMESPACE
