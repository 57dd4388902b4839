// From the gate and beta that a caller passes to the effective ones of the recurrence, for one
// (token, head), and the derivatives of those maps:
//
//   gate   g | log(g + 1e-10) | -exp(a_log) softplus(g + dt_bias),   decay = exp(gate)
//   beta   b | round(sigmoid(b)) | 2 round(sigmoid(b))
//
// Real is float or double. Everything is `static inline` and calls no inline function of the
// standard library, so that files compiled for different instruction sets never share a copy.
#pragma once

#include <math.h>

#include "core/convert.h"
#include "deltaworks/problem.h"

namespace deltaworks {

enum class GateForm { kLog, kLinear, kSoftplus };

static inline GateForm gate_form(const Options& options) {
  if (options.safe_gate) return GateForm::kSoftplus;
  return options.gate_domain == GateDomain::kLinear ? GateForm::kLinear : GateForm::kLog;
}

static inline float exp_of(float x) { return ::expf(x); }
static inline double exp_of(double x) { return ::exp(x); }
static inline float log_of(float x) { return ::logf(x); }
static inline double log_of(double x) { return ::log(x); }
static inline float log1p_of(float x) { return ::log1pf(x); }
static inline double log1p_of(double x) { return ::log1p(x); }

// exp of the lowest gate is exactly 0, so the bound changes no decay; it keeps -inf out of sums.
static inline float clamp_gate(float g) { return g < -110.0f ? -110.0f : g; }
static inline double clamp_gate(double g) { return g < -800.0 ? -800.0 : g; }

template <class Real>
static inline Real sigmoid(Real x) {
  return 1 / (1 + exp_of(-x));
}

template <class Real>
static inline Real softplus(Real x) {
  return x >= 20 ? x : log1p_of(exp_of(x));
}

// The log of the decay, clamped. An absent a_log or dt_bias is passed as 0; the other forms than
// kSoftplus read neither.
template <class Real>
static inline Real effective_gate(GateForm form, Real g, Real a_log, Real dt_bias) {
  switch (form) {
    case GateForm::kLog:
      return clamp_gate(g);
    case GateForm::kLinear:
      return clamp_gate(log_of(g + Real(1e-10)));
    case GateForm::kSoftplus:
      return clamp_gate(-exp_of(a_log) * softplus(g + dt_bias));
  }
  __builtin_unreachable();
}

// Derivatives of the effective gate. The clamp counts as the identity: under it the decay, and with
// it whatever these factors are multiplied by, is 0. They are finite for every legal input.
template <class Real>
struct GateSlope {
  Real g, a_log, dt_bias;
};

template <class Real>
static inline GateSlope<Real> gate_slope(GateForm form, Real g, Real a_log, Real dt_bias) {
  switch (form) {
    case GateForm::kLog:
      return {1, 0, 0};
    case GateForm::kLinear:
      return {1 / (g + Real(1e-10)), 0, 0};
    case GateForm::kSoftplus: {
      const Real x = g + dt_bias;
      const Real slope = -exp_of(a_log) * (x >= 20 ? Real(1) : sigmoid(x));
      return {slope, effective_gate(form, g, a_log, dt_bias), slope};
    }
  }
  __builtin_unreachable();
}

struct BetaForm {
  bool sigmoid;   // beta holds logits
  bool doubled;   // into (0, 2)
  DType rounded;  // the dtype that the sigmoid is rounded to: beta's own
};

static inline BetaForm beta_form(const Problem& problem) {
  return {problem.options.use_beta_sigmoid, problem.options.allow_neg_eigval,
          problem.tensors[index(Port::kBeta)].dtype};
}

template <class Real>
static inline Real effective_beta(const BetaForm& form, Real beta) {
  if (!form.sigmoid) return beta;
  const Real rounded = round_to(form.rounded, sigmoid(beta));
  return form.doubled ? 2 * rounded : rounded;
}

// Derivative of the effective beta; the rounding counts as the identity.
template <class Real>
static inline Real beta_slope(const BetaForm& form, Real beta) {
  if (!form.sigmoid) return 1;
  const Real slope = sigmoid(beta) * sigmoid(-beta);
  return form.doubled ? 2 * slope : slope;
}

}  // namespace deltaworks
