// From the gate and beta that a caller passes to the effective ones of the recurrence, and the
// derivatives of those maps:
//
//   gate   g | log(g + 1e-10) | -exp(a) softplus(g + b) | lower_bound sigmoid(exp(a) (g + b))
//          | A step                                                         decay = exp(gate)
//   step   clamp(softplus(g + b)) | clamp(g + b)
//   beta   beta | round(sigmoid(beta)) | 2 round(sigmoid(beta))
//
// with a = a_log and b = dt_bias. Real is double, or a type of vectors that has exp_of, log_of,
// log1p_of, where, lowest_gate and round_to of its own. Everything is `static inline` and calls no
// inline function of the standard library, so that files compiled for different instruction sets
// never share a copy.
#pragma once

#include <math.h>

#include "core/convert.h"
#include "deltaworks/problem.h"
#include "variants/traits.h"

namespace deltaworks {

enum class GateForm { kLog, kLinear, kSoftplus, kSigmoid, kStep };

struct GateMap {
  GateForm form = GateForm::kLog;
  double lower_bound = -5;  // of kSigmoid
  bool softplus = true;     // of a step
  double dt_min = 0, dt_max = __builtin_inf();
};

template <class Variant>
static inline GateMap gate_map(const Options& o) {
  GateMap map{.lower_bound = o.gate_lower_bound ? *o.gate_lower_bound : -5,
              .softplus = o.dt_softplus,
              .dt_min = o.dt_min,
              .dt_max = o.dt_max ? *o.dt_max : __builtin_inf()};
  if (Variant::gate == Gate::kTimeStep) {
    map.form = GateForm::kStep;
  } else if (o.safe_gate) {
    const bool sigmoid = Variant::decay == Decay::kPerKey && o.gate == GateKind::kSigmoid;
    map.form = sigmoid ? GateForm::kSigmoid : GateForm::kSoftplus;
  } else if (o.gate_domain == GateDomain::kLinear) {
    map.form = GateForm::kLinear;
  }
  return map;
}

static inline double exp_of(double x) { return ::exp(x); }
static inline double log_of(double x) { return ::log(x); }
static inline double log1p_of(double x) { return ::log1p(x); }
static inline double where(bool condition, double yes, double no) { return condition ? yes : no; }
static inline double lowest_gate(double) { return -800; }

// exp of the lowest gate is exactly 0, so the bound changes no decay; it keeps -inf out of sums.
template <class Real>
static inline Real clamp_gate(Real g) {
  const Real lowest = lowest_gate(g);
  return where(g < lowest, lowest, g);
}

template <class Real>
static inline Real sigmoid(Real x) {
  return Real(1) / (Real(1) + exp_of(-x));
}

template <class Real>
static inline Real softplus(Real x) {
  return where(x >= Real(20), x, log1p_of(exp_of(x)));
}
template <class Real>
static inline Real softplus_slope(Real x) {
  return where(x >= Real(20), Real(1), sigmoid(x));
}

// The time step, where the gate is one.
template <class Real>
static inline Real effective_step(const GateMap& map, Real dt, Real dt_bias) {
  const Real x = dt + dt_bias;
  const Real step = map.softplus ? softplus(x) : x;
  const Real low = Real(map.dt_min), high = Real(map.dt_max);
  return where(step < low, low, where(high < step, high, step));
}

// Its derivative: 0 strictly outside the clamp.
template <class Real>
static inline Real step_slope(const GateMap& map, Real dt, Real dt_bias) {
  const Real x = dt + dt_bias;
  const Real step = map.softplus ? softplus(x) : x;
  const Real slope = map.softplus ? softplus_slope(x) : Real(1);
  return where(step < Real(map.dt_min), Real(0), where(Real(map.dt_max) < step, Real(0), slope));
}

// The log of the decay, clamped. `a` is a_log, or A of a time step. An absent a_log or dt_bias is
// passed as 0; kLog and kLinear read neither.
template <class Real>
static inline Real effective_gate(const GateMap& map, Real g, Real a, Real dt_bias) {
  switch (map.form) {
    case GateForm::kLog:
      return clamp_gate(g);
    case GateForm::kLinear:
      return clamp_gate(log_of(g + Real(1e-10)));
    case GateForm::kSoftplus:
      return clamp_gate(-exp_of(a) * softplus(g + dt_bias));
    case GateForm::kSigmoid:
      return clamp_gate(Real(map.lower_bound) * sigmoid(exp_of(a) * (g + dt_bias)));
    case GateForm::kStep:
      return clamp_gate(a * effective_step(map, g, dt_bias));
  }
  __builtin_unreachable();
}

// Derivatives of the effective gate. The clamp counts as the identity: under it the decay, and with
// it whatever these factors are multiplied by, is 0. They are finite for every legal input.
template <class Real>
struct GateSlope {
  Real g, a, dt_bias;
};

template <class Real>
static inline GateSlope<Real> gate_slope(const GateMap& map, Real g, Real a, Real dt_bias) {
  switch (map.form) {
    case GateForm::kLog:
      return {Real(1), Real(0), Real(0)};
    case GateForm::kLinear:
      return {Real(1) / (g + Real(1e-10)), Real(0), Real(0)};
    case GateForm::kSoftplus: {
      const Real slope = -exp_of(a) * softplus_slope(g + dt_bias);
      return {slope, effective_gate(map, g, a, dt_bias), slope};
    }
    case GateForm::kSigmoid: {
      const Real amplitude = exp_of(a), x = amplitude * (g + dt_bias);
      const Real bend = Real(map.lower_bound) * sigmoid(x) * sigmoid(-x);
      // Where the sigmoid is flat x may be infinite.
      const Real along = where(bend < Real(0), bend * x, Real(0));
      return {bend * amplitude, along, bend * amplitude};
    }
    case GateForm::kStep: {
      const Real slope = a * step_slope(map, g, dt_bias);
      return {slope, effective_step(map, g, dt_bias), slope};
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
  return form.doubled ? Real(2) * rounded : rounded;
}

// Derivative of the effective beta; the rounding counts as the identity.
template <class Real>
static inline Real beta_slope(const BetaForm& form, Real beta) {
  if (!form.sigmoid) return Real(1);
  const Real slope = sigmoid(beta) * sigmoid(-beta);
  return form.doubled ? Real(2) * slope : slope;
}

}  // namespace deltaworks
