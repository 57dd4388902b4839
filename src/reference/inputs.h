// The inputs of a problem as the recurrence sees them: loaded as they are, gates and beta
// activated, q and k rows normalised where the options say so, x * rsqrt(sum x^2 + 1e-6).
#pragma once

#include <cmath>

#include "reference/rows.h"
#include "variants/activation.h"

namespace deltaworks::reference {

inline constexpr double kNormEpsilon = 1e-6;

// Heads of the recurrence that share one head of the tensor: head i reads head i / group.
inline std::int64_t group(const Dims& dims, const TensorDesc& tensor) {
  return dims.HO / tensor.shape[1];
}

template <class Variant>
class Inputs {
  static_assert(Variant::write == Write::kScalar, "a per-value write needs a port of its own");

 public:
  Inputs(const Problem& problem, const Dims& dims, const Pack& pack)
      : dims_(dims),
        l2norm_(problem.options.use_qk_l2norm),
        scale_(problem.options.scale.value_or(1 / std::sqrt(static_cast<double>(dims.K)))),
        gate_form_(gate_form(problem.options)),
        beta_form_(beta_form(problem)),
        q_(problem, pack, Port::kQ),
        k_(problem, pack, Port::kK),
        v_(problem, pack, Port::kV),
        g_(problem, pack, Port::kG),
        beta_(problem, pack, Port::kBeta),
        a_log_(problem, pack, Port::kALog),
        dt_bias_(problem, pack, Port::kDtBias),
        q_group_(group(dims, problem[Port::kQ])),
        k_group_(group(dims, problem[Port::kK])),
        v_group_(group(dims, problem[Port::kV])) {}

  double scale() const { return scale_; }

  void load(std::int64_t t, std::int64_t head, const Token<Variant>& token) const {
    load_key(q_, t, head / q_group_, token.q);
    load_key(k_, t, head / k_group_, token.k);
    for (std::int64_t j = 0; j < dims_.V; ++j) token.v[j] = v_.at(t, head / v_group_, j);
    for (std::int64_t c = 0; c < gates<Variant>(dims_.K); ++c) {
      token.gate[c] =
          effective_gate(gate_form_, g_.at(t, head, c), a_log_.at(head), dt_bias_.at(head, c));
    }
    for (std::int64_t c = 0; c < betas<Variant>(dims_.K); ++c) {
      token.beta[c] = effective_beta(beta_form_, beta_.at(t, head, c));
    }
  }

  GateSlope<double> gate_slope(std::int64_t t, std::int64_t head, std::int64_t c) const {
    return deltaworks::gate_slope(gate_form_, g_.at(t, head, c), a_log_.at(head),
                                  dt_bias_.at(head, c));
  }
  double beta_slope(std::int64_t t, std::int64_t head, std::int64_t c) const {
    return deltaworks::beta_slope(beta_form_, beta_.at(t, head, c));
  }

  // Gradients with respect to the q and k rows that load() gave become those of the stored rows.
  void norm_gradient(std::int64_t t, std::int64_t head, const Token<Variant>& token,
                     const Token<Variant>& grad) const {
    if (!l2norm_) return;
    norm_gradient(q_, t, head / q_group_, token.q, grad.q);
    norm_gradient(k_, t, head / k_group_, token.k, grad.k);
  }

 private:
  double inverse_norm(const View& x, std::int64_t t, std::int64_t head) const {
    double sum = 0;
    for (std::int64_t i = 0; i < dims_.K; ++i) sum += x.at(t, head, i) * x.at(t, head, i);
    return 1 / std::sqrt(sum + kNormEpsilon);
  }

  void load_key(const View& x, std::int64_t t, std::int64_t head, double* row) const {
    const double r = l2norm_ ? inverse_norm(x, t, head) : 1.0;
    for (std::int64_t i = 0; i < dims_.K; ++i) row[i] = x.at(t, head, i) * r;
  }

  // y = r x with r = (x.x + eps)^-1/2, so dx = r (dy - y (y.dy)).
  void norm_gradient(const View& x, std::int64_t t, std::int64_t head, const double* y,
                     double* dy) const {
    const double r = inverse_norm(x, t, head);
    double along = 0;
    for (std::int64_t i = 0; i < dims_.K; ++i) along += y[i] * dy[i];
    for (std::int64_t i = 0; i < dims_.K; ++i) dy[i] = r * (dy[i] - y[i] * along);
  }

  Dims dims_;
  bool l2norm_;
  double scale_;
  GateForm gate_form_;
  BetaForm beta_form_;
  View q_, k_, v_, g_, beta_, a_log_, dt_bias_;
  std::int64_t q_group_, k_group_, v_group_;
};

}  // namespace deltaworks::reference
