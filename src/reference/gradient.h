// The exact reverse sweep of recurrent.h. With dS the gradient of the state after a row and
// r = scale dO, or 0 where the row is not read, going back over the row:
//
//   dS += r q^T,  dq += S^T r,  dk += dS^T u,  du = dS k,  dw = du,  de = -S'^T du,
//   dS' = dS - du e^T,  d(log D)_i = sum_j dS'_ji S'_ji,  dS of the row before = dS' D
//
// The states are kept at the start of every segment of 64 rows and formed again inside one.
#pragma once

#include <algorithm>

#include "reference/recurrent.h"

namespace deltaworks::reference {

inline constexpr std::int64_t kSegment = 64;

// S is the state before the row; dS holds the gradient after it, then before it. Adds to dq and
// dk, overwrites d and o, the row that is read.
inline void step_gradient(const double* q, const double* k, const Rows& rows, const double* S,
                          double scale, const double* dO, std::int64_t K, std::int64_t V,
                          double* dS, double* o, double* dq, double* dk, const Rows& d) {
  std::fill_n(d.decay, K, 0.0);
  std::fill_n(d.erase, K, 0.0);
  for (std::int64_t j = 0; j < V; ++j) {
    const double* s = S + j * K;
    double* ds = dS + j * K;
    double u = rows.write[j];
    for (std::int64_t i = 0; i < K; ++i) u -= rows.erase[i] * (rows.decay[i] * s[i]);
    const double r = scale * dO[j];
    double du = 0, read = 0;
    for (std::int64_t i = 0; i < K; ++i) {
      const double after = rows.decay[i] * s[i] + k[i] * u;
      read += q[i] * after;
      dq[i] += r * after;
      ds[i] += r * q[i];
      dk[i] += u * ds[i];
      du += k[i] * ds[i];
    }
    o[j] = scale * read;
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

// Gradient rows of a tensor whose heads serve several heads of the recurrence each. Heads come one
// after another, in order; the sum over a group is kept in fp64 and stored by its last head.
class SharedGradient {
 public:
  SharedGradient(const Problem& problem, const Dims& dims, const Pack& pack, Port gradient,
                 Port primal, std::int64_t width)
      : gradient_(problem, dims, pack, gradient, primal), width_(width) {}

  void add(std::int64_t row, std::int64_t head, const double* x, double* sum) const {
    const std::int64_t group = gradient_.group();
    const bool first = head % group == 0, last = (head + 1) % group == 0;
    for (std::int64_t i = 0; i < width_; ++i) {
      sum[i] = first ? x[i] : sum[i] + x[i];
      if (last) gradient_.set(sum[i], row, head, i);
    }
  }

  void clear_row(std::int64_t row, std::int64_t heads) const {
    for (std::int64_t head = 0; head < heads; head += gradient_.group()) {
      for (std::int64_t i = 0; i < width_; ++i) gradient_.set(0, row, head, i);
    }
  }

 private:
  RowView gradient_;
  std::int64_t width_;
};

// Sums over the tokens of a sequence, at one head, of the gradients of parameters.
struct ParameterSums {
  double* a;        // [1]
  double* dt_bias;  // [gates]
  double* D;        // [V], if there is a D
};

// Those of every sequence and head.
template <class Variant>
class Parameters {
 public:
  Parameters(const Problem& problem, const Dims& dims, Arena& arena)
      : dims_(dims),
        gates_(gates<Variant>(dims.K)),
        width_(1 + gates_ + (problem.has(Port::kD) ? dims.V : 0)),
        lanes_(arena.take(dims.N * dims.HO * width_)) {}

  ParameterSums at(std::int64_t n, std::int64_t head) const {
    double* lane = lanes_ + (n * dims_.HO + head) * width_;
    return {lane, lane + 1, lane + 1 + gates_};
  }
  void clear(std::int64_t n, std::int64_t head) const { std::fill_n(at(n, head).a, width_, 0.0); }

  void store(const Problem& problem, const Pack& pack) const {
    const View a(problem, pack, Port::kDALog), dt_bias(problem, pack, Port::kDDtBias);
    const View D(problem, pack, Port::kDD);
    const bool per_value = problem[Port::kD].rank == 2;
    for (std::int64_t head = 0; head < dims_.HO; ++head) {
      a.set(total(head, 0), head);
      for (std::int64_t c = 0; c < gates_; ++c) dt_bias.set(total(head, 1 + c), head, c);
      double sum = 0;
      for (std::int64_t i = 1 + gates_; i < width_; ++i) {
        if (per_value) D.set(total(head, i), head, i - 1 - gates_);
        sum += total(head, i);
      }
      if (!per_value) D.set(sum, head);
    }
  }

 private:
  double total(std::int64_t head, std::int64_t i) const {
    double sum = 0;
    for (std::int64_t n = 0; n < dims_.N; ++n) sum += lanes_[(n * dims_.HO + head) * width_ + i];
    return sum;
  }

  Dims dims_;
  std::int64_t gates_, width_;
  double* lanes_;  // [N, HO, width]
};

template <class Variant>
class Backward {
 public:
  struct Scratch {
    double *checkpoints, *states;      // [T n / 64, V, K], [64, V, K]
    double* dS;                        // [V, K]
    double *dq_sum, *dk_sum, *dv_sum;  // [T, K], [T n, K], [T n, V], of a group's heads so far
    double *o, *dO;                    // [V]
    Token<Variant> token, grad;
    Rows rows, rows_grad;

    Scratch(const Dims& dims, Arena& arena)
        : checkpoints(arena.take((dims.T * dims.n + kSegment - 1) / kSegment * dims.V * dims.K)),
          states(arena.take(std::min(kSegment, dims.T * dims.n) * dims.V * dims.K)),
          dS(arena.take(dims.V * dims.K)),
          dq_sum(arena.take(dims.T * dims.K)),
          dk_sum(arena.take(dims.T * dims.n * dims.K)),
          dv_sum(arena.take(dims.T * dims.n * dims.V)),
          o(arena.take(dims.V)),
          dO(arena.take(dims.V)),
          token(dims.K, dims.V, arena),
          grad(dims.K, dims.V, arena),
          rows(dims.K, dims.V, arena),
          rows_grad(dims.K, dims.V, arena) {}
  };

  Backward(const Problem& problem, const Dims& dims, const Pack& pack,
           const Parameters<Variant>& parameters)
      : dims_(dims),
        inputs_(problem, dims, pack),
        output_(problem, pack),
        parameters_(parameters),
        initial_state_(problem, pack, Port::kInitialState),
        dO_(problem, pack, Port::kDO),
        d_final_state_(problem, pack, Port::kDFinalState),
        dq_(problem, dims, pack, Port::kDQ, Port::kQ, dims.K),
        dk_(problem, dims, pack, Port::kDK, Port::kK, dims.K),
        dv_(problem, dims, pack, Port::kDV, Port::kV, dims.V),
        dbeta_(problem, dims, pack, Port::kDBeta, Port::kBeta),
        dg_(problem, pack, Port::kDG),
        dw_(problem, pack, Port::kDW),
        d_initial_state_(problem, pack, Port::kDInitialState) {}

  // The heads of a group must be given one after another, in order, with the same scratch.
  void head(const Sequence& sequence, std::int64_t head, const Scratch& scratch) const {
    parameters_.clear(sequence.n, head);
    if (sequence.length() == 0) {
      return copy_state(d_initial_state_, d_final_state_, sequence.n, head, dims_);
    }
    keep_checkpoints(sequence, head, scratch);
    load_state(d_final_state_, sequence.n, head, dims_, scratch.dS);
    const std::int64_t first = sequence.begin * dims_.n, last = sequence.end * dims_.n;
    const std::int64_t segments = (last - first + kSegment - 1) / kSegment;
    for (std::int64_t segment = segments - 1; segment >= 0; --segment) {
      const std::int64_t begin = first + segment * kSegment;
      const std::int64_t end = std::min(begin + kSegment, last);
      std::copy_n(scratch.checkpoints + segment * state_size(), state_size(), scratch.states);
      for (std::int64_t row = begin; row + 1 < end; ++row) {
        double* S = scratch.states + (row - begin) * state_size();
        std::copy_n(S, state_size(), S + state_size());
        advance(row, head, scratch, S + state_size());
      }
      for (std::int64_t row = end - 1; row >= begin; --row) {
        retreat(sequence, row, head, scratch, scratch.states + (row - begin) * state_size());
      }
    }
    store_state(d_initial_state_, sequence.n, head, dims_, scratch.dS);
  }

  // Token t belongs to no sequence.
  void clear_token(std::int64_t t) const {
    dq_.clear_row(t, dims_.HO);
    for (std::int64_t row = t * dims_.n; row < (t + 1) * dims_.n; ++row) {
      dk_.clear_row(row, dims_.HO);
      dv_.clear_row(row, dims_.HO);
      for (std::int64_t head = 0; head < dims_.HO; ++head) {
        for (std::int64_t c = 0; c < beta_count(); ++c) dbeta_.set(0, row, head, c);
      }
    }
    for (std::int64_t head = 0; head < dims_.HO; ++head) {
      for (std::int64_t c = 0; c < gate_count(); ++c) dg_.set(0, t, head, c);
      for (std::int64_t j = 0; j < dims_.V; ++j) dw_.set(0, t, head, j);
    }
    output_.clear_row(t, dims_.HO, dims_.V);
  }

 private:
  std::int64_t state_size() const { return dims_.V * dims_.K; }
  std::int64_t gate_count() const { return gates<Variant>(dims_.K); }
  std::int64_t beta_count() const { return betas<Variant>(dims_.K); }

  void advance(std::int64_t row, std::int64_t head, const Scratch& scratch, double* S) const {
    inputs_.load(row, head, scratch.token);
    form_rows(scratch.token, dims_.K, dims_.V, scratch.rows);
    step(scratch.token.k, scratch.rows, dims_.K, dims_.V, S);
  }

  void keep_checkpoints(const Sequence& sequence, std::int64_t head, const Scratch& scratch) const {
    double* S = scratch.states;
    load_state(initial_state_, sequence.n, head, dims_, S);
    const std::int64_t first = sequence.begin * dims_.n, rows = sequence.length() * dims_.n;
    for (std::int64_t local = 0; local < rows; ++local) {
      if (local % kSegment == 0) {
        std::copy_n(S, state_size(), scratch.checkpoints + local / kSegment * state_size());
      }
      advance(first + local, head, scratch, S);
    }
  }

  void retreat(const Sequence& sequence, std::int64_t row, std::int64_t head,
               const Scratch& scratch, const double* S) const {
    const std::int64_t K = dims_.K, V = dims_.V, t = inputs_.token(row);
    const Token<Variant>&token = scratch.token, &grad = scratch.grad;
    const ParameterSums sums = parameters_.at(sequence.n, head);
    inputs_.load(row, head, token);
    form_rows(token, K, V, scratch.rows);
    clear(grad);
    for (std::int64_t j = 0; j < V; ++j) {
      scratch.dO[j] = inputs_.is_read(row) ? dO_.at(t, head, j) : 0.0;
    }
    if (inputs_.is_read(row)) output_.ungate(t, head, V, scratch.dO);
    step_gradient(token.q, token.k, scratch.rows, S, inputs_.scale(), scratch.dO, K, V, scratch.dS,
                  scratch.o, grad.q, grad.k, scratch.rows_grad);
    rows_gradient(token, scratch.rows_grad, K, V, grad);
    if (inputs_.is_read(row)) {
      output_.gradient(t, head, token.v, V, scratch.o, dO_, scratch.dO, grad.v, sums.D);
    }
    inputs_.norm_gradient(row, head, token, grad);

    const std::int64_t local = row - sequence.begin * dims_.n;
    if (inputs_.is_read(row)) dq_.add(t, head, grad.q, scratch.dq_sum + (t - sequence.begin) * K);
    dk_.add(row, head, grad.k, scratch.dk_sum + local * K);
    dv_.add(row, head, grad.v, scratch.dv_sum + local * V);
    if (inputs_.decays(row)) gate_gradient(t, head, grad, sums);
    if constexpr (Variant::write == Write::kPerValue) {
      for (std::int64_t j = 0; j < V; ++j) dw_.set(grad.write[j], t, head, j);
    }
    if constexpr (Variant::gate != Gate::kTimeStep) {
      for (std::int64_t c = 0; c < beta_count(); ++c) {
        dbeta_.set(inputs_.beta_slope(row, head, c) * grad.beta[c], row, head, c);
      }
    }
  }

  void clear(const Token<Variant>& grad) const {
    std::fill_n(grad.q, dims_.K, 0.0);
    std::fill_n(grad.k, dims_.K, 0.0);
    std::fill_n(grad.v, dims_.V, 0.0);
    std::fill_n(grad.gate, gate_count(), 0.0);
    std::fill_n(grad.beta, beta_count(), 0.0);
    if constexpr (Variant::write == Write::kPerValue) std::fill_n(grad.write, dims_.V, 0.0);
  }

  // From the log of the decay, and from the step where the gate is one.
  void gate_gradient(std::int64_t t, std::int64_t head, const Token<Variant>& grad,
                     const ParameterSums& sums) const {
    for (std::int64_t c = 0; c < gate_count(); ++c) {
      const GateSlopes slopes = inputs_.gate_slopes(t, head, c);
      const double step = Variant::gate == Gate::kTimeStep ? slopes.step * grad.beta[c] : 0.0;
      dg_.set(slopes.decay.g * grad.gate[c] + step, t, head, c);
      sums.a[0] += slopes.decay.a * grad.gate[c];
      sums.dt_bias[c] += slopes.decay.dt_bias * grad.gate[c] + step;
    }
  }

  Dims dims_;
  Inputs<Variant> inputs_;
  OutputMap output_;
  Parameters<Variant> parameters_;
  View initial_state_, dO_, d_final_state_;
  SharedGradient dq_, dk_, dv_;
  RowView dbeta_;
  View dg_, dw_, d_initial_state_;
};

}  // namespace deltaworks::reference
