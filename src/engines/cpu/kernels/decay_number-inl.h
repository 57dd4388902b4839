// The decays of a chunk where a decay is one number a head. With G the cumulative gate inside the
// chunk, and for row i
//
//   enter_i = exp(G_i)         what is left of the entering state S0 when row i reads it
//   leave_i = exp(G_C - G_i)   what is left of row i's write in the leaving state
//   D_ij = exp(G_i - G_j)      what is left of row j's write when row i reads it, i >= j
//
// No exponent is ever positive for gates <= 0. The products of rows are formed before their decay.
#pragma once

#include "engines/cpu/kernels/chunk-inl.h"

namespace deltaworks::cpu::HWY_NAMESPACE {
namespace {  // members of classes would be weak symbols

// The gradient of each row's gate. Gate t lies in the decay of every pair i >= t > j, in what
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

class DecayNumber {
 public:
  static std::int64_t gates(std::int64_t) { return 1; }  // a row

  DecayNumber(std::int64_t K, std::int64_t V, Carver& carver) : K_(K), V_(V) {
    dt_ = carver.take(kChunk * K);
    faded_ = carver.take(kChunk * V);
    for (float** m : {&W_, &Y_, &Yt_}) *m = carver.take(kChunk * kChunk);
  }

  // `gates` are 0 in rows past the end.
  void load(const float* gates) {
    double sum[kChunk];  // in double: a prefix past a few resets has lost its small digits in fp32
    double running = 0;
    for (std::int64_t i = 0; i < kChunk; ++i) {
      running += static_cast<double>(gates[i]);
      sum[i] = running;
    }
    for (std::int64_t i = 0; i < kChunk; ++i) {
      enter_[i] = static_cast<float>(sum[i]);
      leave_[i] = static_cast<float>(running - sum[i]);
      for (std::int64_t j = 0; j < kChunk; ++j) {
        decay_[i * kChunk + j] = j <= i ? static_cast<float>(sum[i] - sum[j]) : 0.0f;
      }
    }
    const auto exponential = [](Lanes g) { return exp_of(g); };
    map_lanes(kChunk, enter_, exponential);
    map_lanes(kChunk, leave_, exponential);
    for (std::int64_t i = 0; i < kChunk; ++i) {
      map_lanes(round_up(i + 1, kLanes), decay_ + i * kChunk, exponential);
    }
  }

  // The part j <= i of out_ij = sum over d of left_id D_ij k_jd.
  void scores(const Rows& rows, const float* left, const float* k, Overlaps& out) {
    float* kt = dt_;
    transpose(k, kChunk, K_, kt);
    exact_lower_product(rows, K_, left, kt, out.x);
    for (std::int64_t m = 0; m < rows.count; ++m) {
      const std::int64_t i = rows.at(m);
      for (std::int64_t j = 0; j <= i; ++j) out.x[m * kChunk + j] *= fade(i, j);
    }
  }

  void enter(const Rows& rows, const float* x, float* to) const {
    scale_rows(entering(rows).factor, x, rows.padded, K_, to);
  }
  void leave(const float* rows, float* to) const { scale_rows(leave_, rows, kChunk, K_, to); }
  // What is left of S [K, V] after the chunk.
  Faded carry(const float* S) const { return {S, enter_ + kChunk - 1, 0}; }

  // Begins the gradients of the gates.
  void begin_gradient(const float* S, const float* dS) {
    through_gradient_ = static_cast<double>(through()) * exact_dot(S, dS, K_ * V_);
    for (std::int64_t i = 0; i < kChunk; ++i) entering_[i] = leaving_[i] = 0;
  }

  // d = enter * (S f^T)^T, the gradient of `rows` that read S; f comes transposed, [V, kChunk].
  template <class Meanwhile>
  void entering_gradient(const Rows& rows, const float* x, const float* S, const float* ft,
                         float* d, Meanwhile& meanwhile) {
    through_states(rows.padded, S, ft, entering(rows).factor, d, meanwhile);
    double sums[kChunk] = {};
    add_row_dots(x, d, rows.padded, K_, sums);
    for (std::int64_t m = 0; m < rows.count; ++m) entering_[rows.at(m)] += sums[m];
  }
  // The same of `rows` that wrote what leaves.
  template <class Meanwhile>
  void leaving_gradient(const float* rows, const float* dS, const float* ft, float* d,
                        Meanwhile& meanwhile) {
    through_states(kChunk, dS, ft, leave_, d, meanwhile);
    add_row_dots(rows, d, kChunk, K_, leaving_);
  }

  // Adds what the pairs of rows give to dq and dk, and ends the gradients of the gates. The rows
  // that erase are the keys: their share is in dk as well.
  template <bool kErase>
  void pairs_gradient(const Rows& reads, const Pairs& p, const float* q, const float* k,
                      const float*, float* dq, float* dk, float*) {
    lower<true>(
        reads,
        [&](std::int64_t m, std::int64_t j) {
          return static_cast<float>(fade(reads.at(m), j) * p.dP->at(m, j));
        },
        W_);
    product<Sum>(reads.padded, K_, kChunk, Plain{W_, reads.padded}, k, dq);
    product<Sum>(kChunk, K_, reads.padded, Transposed{W_, reads.padded}, q, dk);
    if constexpr (kErase) {
      lower<false>(
          kAllRows,
          [&](std::int64_t i, std::int64_t j) {
            return static_cast<float>(fade(i, j) * p.dL->at(i, j));
          },
          Y_);
      transpose(Y_, kChunk, kChunk, Yt_);
      add_scaled_row(1.0f, Y_, kChunk * kChunk, Yt_);
      product<Sum>(kChunk, K_, kChunk, Plain{Yt_, kChunk}, k, dk);
    }
    std::int64_t reader[kChunk];  // of the rows that are read, which one it is; of others -1
    for (std::int64_t& m : reader) m = -1;
    for (std::int64_t m = 0; m < reads.count; ++m) reader[reads.at(m)] = m;
    const auto pair = [&](std::int64_t i, std::int64_t j) {
      const std::int64_t m = reader[i];
      const double read = m < 0 ? 0.0 : p.dP->at(m, j) * p.P->at(m, j);
      return kErase ? read + p.dL->at(i, j) * p.L->at(i, j) : read;
    };
    gate_gradient(pair, entering_, leaving_, through_gradient_, dg_);
  }

  // Gradient of row i's gate.
  double gradient(std::int64_t i) const { return dg_[i]; }

 private:
  struct Factors {
    float factor[kChunk];
  };
  // What is left of the entering state at these rows.
  Factors entering(const Rows& rows) const {
    Factors x = {};
    for (std::int64_t m = 0; m < rows.count; ++m) x.factor[m] = enter_[rows.at(m)];
    return x;
  }
  float through() const { return enter_[kChunk - 1]; }
  double fade(std::int64_t i, std::int64_t j) const {
    return static_cast<double>(decay_[i * kChunk + j]);
  }

  template <class Meanwhile>
  void through_states(std::int64_t rows, const float* S, const float* ft, const float* factors,
                      float* d, Meanwhile& meanwhile) {
    // Before the product: a state near overflow is read as the recurrence reads it.
    scale_columns(factors, ft, V_, rows, faded_);
    product<Alone>(K_, rows, V_, Plain{S, K_}, faded_, dt_, meanwhile);
    transpose(dt_, K_, rows, d);
  }

  std::int64_t K_, V_;  // padded
  float *dt_, *faded_, *W_, *Y_, *Yt_;
  float enter_[kChunk], leave_[kChunk];
  float decay_[kChunk * kChunk];  // D, element (i, j) at i kChunk + j, for i >= j
  double entering_[kChunk], leaving_[kChunk], through_gradient_, dg_[kChunk];
};

}  // namespace
}  // namespace deltaworks::cpu::HWY_NAMESPACE
