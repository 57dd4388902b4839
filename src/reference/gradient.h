// The exact reverse sweep of recurrent.h. With dS the gradient of the state after a token and
// r = scale dO, going back over the token:
//
//   dS += r q^T,  dq += S^T r,  dk += dS^T u,  du = dS k,  dw = du,  de = -S'^T du,
//   dS' = dS - du e^T,  d(log D)_i = sum_j dS'_ji S'_ji,  dS of the token before = dS' D
//
// The states are kept at the start of every segment of 64 tokens and formed again inside one.
#pragma once

#include <algorithm>

#include "reference/recurrent.h"

namespace deltaworks::reference {

inline constexpr std::int64_t kSegment = 64;

// S is the state before the token; dS holds the gradient after it, then before it. Adds to dq and
// dk, overwrites d.
inline void step_gradient(const double* q, const double* k, const Rows& rows, const double* S,
                          double scale, const double* dO, std::int64_t K, std::int64_t V,
                          double* dS, double* dq, double* dk, const Rows& d) {
  std::fill_n(d.decay, K, 0.0);
  std::fill_n(d.erase, K, 0.0);
  for (std::int64_t j = 0; j < V; ++j) {
    const double* s = S + j * K;
    double* ds = dS + j * K;
    double u = rows.write[j];
    for (std::int64_t i = 0; i < K; ++i) u -= rows.erase[i] * (rows.decay[i] * s[i]);
    const double r = scale * dO[j];
    double du = 0;
    for (std::int64_t i = 0; i < K; ++i) {
      dq[i] += r * (rows.decay[i] * s[i] + k[i] * u);
      ds[i] += r * q[i];
      dk[i] += u * ds[i];
      du += k[i] * ds[i];
    }
    d.write[j] = du;
    for (std::int64_t i = 0; i < K; ++i) {
      const double decayed = rows.decay[i] * s[i];
      const double ddecayed = ds[i] - du * rows.erase[i];
      d.erase[i] -= du * decayed;
      d.decay[i] += ddecayed * decayed;
      ds[i] = ddecayed * rows.decay[i];
    }
  }
}

// Gradient rows of a tensor whose heads serve `group` heads of the recurrence each. Heads come one
// after another, in order; the sum over a group is kept in fp64 and stored by its last head.
class SharedGradient {
 public:
  SharedGradient(const Problem& problem, const Dims& dims, const Pack& pack, Port port,
                 Port gradient)
      : gradient_(problem, pack, gradient),
        group_(group(dims, problem[port])),
        width_(problem[port].shape[2]) {}

  void add(std::int64_t t, std::int64_t head, const double* row, double* sum) const {
    const bool first = head % group_ == 0, last = (head + 1) % group_ == 0;
    for (std::int64_t i = 0; i < width_; ++i) {
      sum[i] = first ? row[i] : sum[i] + row[i];
      if (last) gradient_.set(sum[i], t, head / group_, i);
    }
  }

  void clear_row(std::int64_t t, std::int64_t heads) const {
    for (std::int64_t head = 0; head < heads / group_; ++head) {
      for (std::int64_t i = 0; i < width_; ++i) gradient_.set(0, t, head, i);
    }
  }

 private:
  View gradient_;
  std::int64_t group_, width_;
};

template <class Variant>
class Backward {
 public:
  struct Scratch {
    double *checkpoints, *states;      // [T / 64, V, K], [64, V, K]
    double* dS;                        // [V, K]
    double *dq_sum, *dk_sum, *dv_sum;  // [T, K], [T, K], [T, V], of a group's heads so far
    double* dO;                        // [V]
    Token<Variant> token, grad;
    Rows rows, rows_grad;

    Scratch(const Dims& dims, Arena& arena)
        : checkpoints(arena.take((dims.T + kSegment - 1) / kSegment * dims.V * dims.K)),
          states(arena.take(std::min(kSegment, dims.T) * dims.V * dims.K)),
          dS(arena.take(dims.V * dims.K)),
          dq_sum(arena.take(dims.T * dims.K)),
          dk_sum(arena.take(dims.T * dims.K)),
          dv_sum(arena.take(dims.T * dims.V)),
          dO(arena.take(dims.V)),
          token(dims.K, dims.V, arena),
          grad(dims.K, dims.V, arena),
          rows(dims.K, dims.V, arena),
          rows_grad(dims.K, dims.V, arena) {}
  };

  // Sums over a sequence's tokens of the gradients of the gate's parameters.
  struct ParameterSums {
    double *a_log, *dt_bias;  // [N, HO], [N, HO, gates]

    ParameterSums(const Dims& dims, Arena& arena)
        : a_log(arena.take(dims.N * dims.HO)),
          dt_bias(arena.take(dims.N * dims.HO * gates<Variant>(dims.K))) {}
  };

  Backward(const Problem& problem, const Dims& dims, const Pack& pack, const ParameterSums& sums)
      : dims_(dims),
        inputs_(problem, dims, pack),
        sums_(sums),
        initial_state_(problem, pack, Port::kInitialState),
        dO_(problem, pack, Port::kDO),
        d_final_state_(problem, pack, Port::kDFinalState),
        dq_(problem, dims, pack, Port::kQ, Port::kDQ),
        dk_(problem, dims, pack, Port::kK, Port::kDK),
        dv_(problem, dims, pack, Port::kV, Port::kDV),
        dg_(problem, pack, Port::kDG),
        dbeta_(problem, pack, Port::kDBeta),
        da_log_(problem, pack, Port::kDALog),
        ddt_bias_(problem, pack, Port::kDDtBias),
        d_initial_state_(problem, pack, Port::kDInitialState) {}

  // The heads of a group must be given one after another, in order, with the same scratch.
  void head(const Sequence& sequence, std::int64_t head, const Scratch& scratch) const {
    const std::int64_t lane = sequence.n * dims_.HO + head;
    sums_.a_log[lane] = 0;
    std::fill_n(sums_.dt_bias + lane * gate_count(), gate_count(), 0.0);
    if (sequence.length() == 0) {
      return copy_state(d_initial_state_, d_final_state_, sequence.n, head, dims_);
    }
    keep_checkpoints(sequence, head, scratch);
    load_state(d_final_state_, sequence.n, head, dims_, scratch.dS);
    const std::int64_t segments = (sequence.length() + kSegment - 1) / kSegment;
    for (std::int64_t segment = segments - 1; segment >= 0; --segment) {
      const std::int64_t begin = sequence.begin + segment * kSegment;
      const std::int64_t end = std::min(begin + kSegment, sequence.end);
      std::copy_n(scratch.checkpoints + segment * state_size(), state_size(), scratch.states);
      for (std::int64_t t = begin; t + 1 < end; ++t) {
        double* S = scratch.states + (t - begin) * state_size();
        std::copy_n(S, state_size(), S + state_size());
        advance(t, head, scratch, S + state_size());
      }
      for (std::int64_t t = end - 1; t >= begin; --t) {
        retreat(sequence, t, head, scratch, scratch.states + (t - begin) * state_size());
      }
    }
    store_state(d_initial_state_, sequence.n, head, dims_, scratch.dS);
  }

  // After every head of every sequence.
  void store_parameters() const {
    for (std::int64_t head = 0; head < dims_.HO; ++head) {
      double a_log = 0;
      for (std::int64_t n = 0; n < dims_.N; ++n) a_log += sums_.a_log[n * dims_.HO + head];
      da_log_.set(a_log, head);
      for (std::int64_t c = 0; c < gate_count(); ++c) {
        double dt_bias = 0;
        for (std::int64_t n = 0; n < dims_.N; ++n) {
          dt_bias += sums_.dt_bias[(n * dims_.HO + head) * gate_count() + c];
        }
        ddt_bias_.set(dt_bias, head, c);
      }
    }
  }

  // Row t belongs to no sequence.
  void clear_row(std::int64_t t) const {
    dq_.clear_row(t, dims_.HO);
    dk_.clear_row(t, dims_.HO);
    dv_.clear_row(t, dims_.HO);
    for (std::int64_t head = 0; head < dims_.HO; ++head) {
      for (std::int64_t c = 0; c < gate_count(); ++c) dg_.set(0, t, head, c);
      for (std::int64_t c = 0; c < beta_count(); ++c) dbeta_.set(0, t, head, c);
    }
  }

 private:
  std::int64_t state_size() const { return dims_.V * dims_.K; }
  std::int64_t gate_count() const { return gates<Variant>(dims_.K); }
  std::int64_t beta_count() const { return betas<Variant>(dims_.K); }

  void advance(std::int64_t t, std::int64_t head, const Scratch& scratch, double* S) const {
    inputs_.load(t, head, scratch.token);
    form_rows(scratch.token, dims_.K, dims_.V, scratch.rows);
    step(scratch.token.k, scratch.rows, dims_.K, dims_.V, S);
  }

  void keep_checkpoints(const Sequence& sequence, std::int64_t head, const Scratch& scratch) const {
    double* S = scratch.states;
    load_state(initial_state_, sequence.n, head, dims_, S);
    for (std::int64_t t = sequence.begin; t < sequence.end; ++t) {
      const std::int64_t local = t - sequence.begin;
      if (local % kSegment == 0) {
        std::copy_n(S, state_size(), scratch.checkpoints + local / kSegment * state_size());
      }
      advance(t, head, scratch, S);
    }
  }

  void retreat(const Sequence& sequence, std::int64_t t, std::int64_t head, const Scratch& scratch,
               const double* S) const {
    const std::int64_t K = dims_.K, V = dims_.V;
    const Token<Variant>&token = scratch.token, &grad = scratch.grad;
    inputs_.load(t, head, token);
    form_rows(token, K, V, scratch.rows);
    for (std::int64_t j = 0; j < V; ++j) scratch.dO[j] = dO_.at(t, head, j);
    std::fill_n(grad.q, K, 0.0);
    std::fill_n(grad.k, K, 0.0);
    std::fill_n(grad.v, V, 0.0);
    std::fill_n(grad.gate, gate_count(), 0.0);
    std::fill_n(grad.beta, beta_count(), 0.0);
    step_gradient(token.q, token.k, scratch.rows, S, inputs_.scale(), scratch.dO, K, V, scratch.dS,
                  grad.q, grad.k, scratch.rows_grad);
    rows_gradient(token, scratch.rows_grad, K, V, grad);
    inputs_.norm_gradient(t, head, token, grad);

    const std::int64_t local = t - sequence.begin;
    dq_.add(t, head, grad.q, scratch.dq_sum + local * K);
    dk_.add(t, head, grad.k, scratch.dk_sum + local * K);
    dv_.add(t, head, grad.v, scratch.dv_sum + local * V);
    const std::int64_t lane = sequence.n * dims_.HO + head;
    for (std::int64_t c = 0; c < gate_count(); ++c) {
      const GateSlope<double> slope = inputs_.gate_slope(t, head, c);
      dg_.set(slope.g * grad.gate[c], t, head, c);
      sums_.a_log[lane] += slope.a_log * grad.gate[c];
      sums_.dt_bias[lane * gate_count() + c] += slope.dt_bias * grad.gate[c];
    }
    for (std::int64_t c = 0; c < beta_count(); ++c) {
      dbeta_.set(inputs_.beta_slope(t, head, c) * grad.beta[c], t, head, c);
    }
  }

  Dims dims_;
  Inputs<Variant> inputs_;
  ParameterSums sums_;
  View initial_state_, dO_, d_final_state_;
  SharedGradient dq_, dk_, dv_;
  View dg_, dbeta_, da_log_, ddt_bias_, d_initial_state_;
};

}  // namespace deltaworks::reference
