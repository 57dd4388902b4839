// The inputs of a problem as the recurrence sees them: loaded as they are, gates and beta
// activated, q and k rows normalised where the options say so, x * rsqrt(sum x^2 + 1e-6).
//
// The recurrence runs over n rows a token: row r is sub-step r % n of token r / n. The first
// sub-step decays, the last one is read.
#pragma once

#include <algorithm>
#include <cmath>

#include "reference/rows.h"
#include "variants/activation.h"
#include "variants/beta_guard.h"

namespace deltaworks::reference {

inline constexpr double kNormEpsilon = 1e-6;

inline double output_scale(const Problem& problem, const Dims& dims) {
  if (!spec_of(problem.op).takes(Taken::kScale)) return 1;
  return problem.options.scale.value_or(1 / std::sqrt(static_cast<double>(dims.K)));
}

// Derivatives of the effective inputs that come from a gate's element: of the log of the decay and,
// where the gate is a time step, of the step.
struct GateSlopes {
  GateSlope<double> decay;
  double step;
};

template <class Variant>
class Inputs {
  static constexpr bool kStep = Variant::gate == Gate::kTimeStep;
  static constexpr bool kOwnWrite = Variant::write == Write::kPerValue;

 public:
  Inputs(const Problem& problem, const Dims& dims, const Pack& pack)
      : dims_(dims),
        l2norm_(problem.options.use_qk_l2norm),
        guard_(problem.options.beta_guard),
        io_(problem[Port::kQ].dtype),
        scale_(output_scale(problem, dims)),
        gate_map_(gate_map<Variant>(problem.options)),
        beta_form_(beta_form(problem)),
        q_(problem, dims, pack, Port::kQ),
        k_(problem, dims, pack, Port::kK),
        v_(problem, dims, pack, Port::kV),
        beta_(problem, dims, pack, Port::kBeta),
        g_(problem, pack, Port::kG),
        a_(problem, pack, Port::kALog),
        dt_bias_(problem, pack, Port::kDtBias),
        w_(problem, pack, Port::kW) {}

  double scale() const { return scale_; }
  std::int64_t token(std::int64_t row) const { return row / dims_.n; }
  bool decays(std::int64_t row) const { return row % dims_.n == 0; }
  bool is_read(std::int64_t row) const { return row % dims_.n == dims_.n - 1; }

  void load(std::int64_t row, std::int64_t head, const Token<Variant>& to) const {
    const std::int64_t t = token(row);
    if (is_read(row)) {
      load_key(q_, t, head, to.q);
    } else {
      std::fill_n(to.q, dims_.K, 0.0);
    }
    load_key(k_, row, head, to.k);
    for (std::int64_t j = 0; j < dims_.V; ++j) {
      to.v[j] = v_.at(row, head, j);
      if constexpr (kOwnWrite) to.write[j] = w_.at(t, head, j);
    }
    for (std::int64_t c = 0; c < gates<Variant>(dims_.K); ++c) {
      to.gate[c] = decays(row) ? effective_gate(gate_map_, g_.at(t, head, c), a_.at(head),
                                                dt_bias_.at(head, c))
                               : 0.0;
    }
    load_beta(row, head, to);
  }

  GateSlopes gate_slopes(std::int64_t t, std::int64_t head, std::int64_t c) const {
    const double g = g_.at(t, head, c), bias = dt_bias_.at(head, c);
    return {gate_slope(gate_map_, g, a_.at(head), bias),
            kStep ? step_slope(gate_map_, g, bias) : 0.0};
  }
  // The guard counts as the identity.
  double beta_slope(std::int64_t row, std::int64_t head, std::int64_t c) const {
    return deltaworks::beta_slope(beta_form_, beta_.at(row, head, c));
  }

  // Gradients with respect to the q and k rows that load() gave become those of the stored rows.
  void norm_gradient(std::int64_t row, std::int64_t head, const Token<Variant>& of,
                     const Token<Variant>& grad) const {
    if (!l2norm_) return;
    if (is_read(row)) norm_gradient(q_, token(row), head, of.q, grad.q);
    norm_gradient(k_, row, head, of.k, grad.k);
  }

 private:
  void load_beta(std::int64_t row, std::int64_t head, const Token<Variant>& to) const {
    if constexpr (kStep) {
      to.beta[0] = effective_step(gate_map_, g_.at(token(row), head), dt_bias_.at(head));
    } else {
      const std::int64_t count = betas<Variant>(dims_.K);
      for (std::int64_t c = 0; c < count; ++c) {
        to.beta[c] = effective_beta(beta_form_, beta_.at(row, head, c));
      }
      if constexpr (Variant::erase == Erase::kPerKey && Variant::decay == Decay::kPerKey) {
        if (guard_) beta_guard(count, to.beta, to.k, to.gate, io_);
      }
    }
  }

  double inverse_norm(const RowView& x, std::int64_t row, std::int64_t head) const {
    double sum = 0;
    for (std::int64_t i = 0; i < dims_.K; ++i) sum += x.at(row, head, i) * x.at(row, head, i);
    return 1 / std::sqrt(sum + kNormEpsilon);
  }

  void load_key(const RowView& x, std::int64_t row, std::int64_t head, double* to) const {
    const double r = l2norm_ ? inverse_norm(x, row, head) : 1.0;
    for (std::int64_t i = 0; i < dims_.K; ++i) to[i] = x.at(row, head, i) * r;
  }

  // y = r x with r = (x.x + eps)^-1/2, so dx = r (dy - y (y.dy)).
  void norm_gradient(const RowView& x, std::int64_t row, std::int64_t head, const double* y,
                     double* dy) const {
    const double r = inverse_norm(x, row, head);
    double along = 0;
    for (std::int64_t i = 0; i < dims_.K; ++i) along += y[i] * dy[i];
    for (std::int64_t i = 0; i < dims_.K; ++i) dy[i] = r * (dy[i] - y[i] * along);
  }

  Dims dims_;
  bool l2norm_, guard_;
  DType io_;
  double scale_;
  GateMap gate_map_;
  BetaForm beta_form_;
  RowView q_, k_, v_, beta_;
  View g_, a_, dt_bias_, w_;
};

}  // namespace deltaworks::reference
