// The gated delta rule token by token in the number type Real, written from its definition alone
// and without the library's engines:
//
//   S' = exp(g) S,   u = beta (v - S'^T k),   S = S' + k u^T,   o = scale S^T q
//
// and its exact reverse. In double it is what engines are judged by; in float it is the plain loop
// whose error fp32 bounds are measured in. Only rounding that the operation itself asks for is
// done.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kit.h"

namespace deltaworks::kit {

template <class Real>
class Oracle {
 public:
  Oracle(const Call& call, const Tensors& inputs)
      : call_(call),
        in_(inputs),
        K_(call.dims.K),
        V_(call.dims.V),
        HO_(call.dims.HO),
        scale_(static_cast<Real>(
            call.options.scale.value_or(1 / std::sqrt(static_cast<double>(call.dims.K))))) {}

  // Outputs of a pass, in float64; rows of no sequence are 0.
  Tensors run(Pass pass) {
    for (Port port : outputs_of(pass, in_)) {
      TensorDesc desc = describe(call_, port);
      desc.dtype = DType::kFloat64;
      out_.emplace(port, Buffer(desc)).first->second.fill(0);
    }
    for (std::size_t n = 0; n + 1 < call_.offsets.size(); ++n) {
      for (std::int64_t h = 0; h < HO_; ++h) head(pass, static_cast<std::int64_t>(n), h);
    }
    return std::move(out_);
  }

 private:
  using Row = std::vector<Real>;
  struct Token {
    Row q, k, v, u, o, S;  // S [V, K] is the state before the token
    Real q_factor = 1, k_factor = 1, decay = 1, beta = 0;
  };

  Real in(Port port, std::int64_t i) const {
    const auto found = in_.find(port);
    return found == in_.end() ? Real(0) : static_cast<Real>(found->second.get(i));
  }
  void add(Port port, std::int64_t i, Real x) {
    const auto found = out_.find(port);
    if (found != out_.end()) found->second.set(i, found->second.get(i) + static_cast<double>(x));
  }

  // First element of the row that head h of HO reads at token t.
  std::int64_t at(Port port, std::int64_t t, std::int64_t h) const {
    const TensorDesc desc = describe(call_, port);
    const std::int64_t heads = desc.shape[1], width = desc.shape[2];
    return (t * heads + h / (HO_ / heads)) * width;
  }

  Row row(Port port, std::int64_t t, std::int64_t h, std::int64_t width) const {
    Row x(width);
    for (std::int64_t i = 0; i < width; ++i) x[i] = in(port, at(port, t, h) + i);
    return x;
  }

  Real normalise(Row& x) const {
    if (!call_.options.use_qk_l2norm) return 1;
    Real sum = Real(1e-6);
    for (Real value : x) sum += value * value;
    const Real factor = 1 / std::sqrt(sum);
    for (Real& value : x) value *= factor;
    return factor;
  }

  Real log_decay(std::int64_t t, std::int64_t h) const {
    const Real g = in(Port::kG, t * HO_ + h);
    if (call_.options.safe_gate) {
      const Real x = g + in(Port::kDtBias, h);
      return -std::exp(in(Port::kALog, h)) * (x >= 20 ? x : std::log1p(std::exp(x)));
    }
    return call_.options.gate_domain == GateDomain::kLinear ? std::log(g + Real(1e-10)) : g;
  }

  Real beta(std::int64_t t, std::int64_t h) const {
    const Real x = in(Port::kBeta, t * HO_ + h);
    if (!call_.options.use_beta_sigmoid) return x;
    const Real rounded = round_to(call_.types.beta, 1 / (1 + std::exp(-x)));
    return call_.options.allow_neg_eigval ? 2 * rounded : rounded;
  }

  Real dot(const Real* x, const Real* y, std::int64_t count) const {
    Real sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += x[i] * y[i];
    return sum;
  }

  void head(Pass pass, std::int64_t n, std::int64_t h) {
    const std::int64_t begin = call_.offsets[n], end = call_.offsets[n + 1];
    const std::int64_t state = (n * HO_ + h) * V_ * K_;
    Row S(V_ * K_);
    for (std::int64_t i = 0; i < V_ * K_; ++i) S[i] = in(Port::kInitialState, state + i);
    std::vector<Token> tokens;
    for (std::int64_t t = begin; t < end; ++t) {
      tokens.push_back(step(t, h, S));
      if (pass == Pass::kBackward) continue;
      const Token& x = tokens.back();
      for (std::int64_t j = 0; j < V_; ++j) add(Port::kO, at(Port::kO, t, h) + j, x.o[j]);
      tokens.clear();
    }
    for (std::int64_t i = 0; i < V_ * K_; ++i) add(Port::kFinalState, state + i, S[i]);
    if (pass == Pass::kForward) return;

    Row dS(V_ * K_);
    for (std::int64_t i = 0; i < V_ * K_; ++i) dS[i] = in(Port::kDFinalState, state + i);
    for (std::int64_t t = end - 1; t >= begin; --t) {
      reverse(t, h, tokens.back(), dS);
      tokens.pop_back();
    }
    for (std::int64_t i = 0; i < V_ * K_; ++i) add(Port::kDInitialState, state + i, dS[i]);
  }

  Token step(std::int64_t t, std::int64_t h, Row& S) const {
    Token x{.q = row(Port::kQ, t, h, K_),
            .k = row(Port::kK, t, h, K_),
            .v = row(Port::kV, t, h, V_),
            .u = Row(V_),
            .o = Row(V_),
            .S = S};
    x.q_factor = normalise(x.q);
    x.k_factor = normalise(x.k);
    x.decay = std::exp(log_decay(t, h));
    x.beta = beta(t, h);
    for (std::int64_t j = 0; j < V_; ++j) {
      Real* s = &S[j * K_];
      for (std::int64_t i = 0; i < K_; ++i) s[i] *= x.decay;
      x.u[j] = x.beta * (x.v[j] - dot(s, x.k.data(), K_));
      for (std::int64_t i = 0; i < K_; ++i) s[i] += x.k[i] * x.u[j];
      x.o[j] = scale_ * dot(s, x.q.data(), K_);
    }
    return x;
  }

  // On entry dS is the gradient of the state after the token, on return of the one before.
  void reverse(std::int64_t t, std::int64_t h, const Token& x, Row& dS) {
    Row dq(K_), dk(K_), decayed(K_);
    Real dgate = 0, dbeta = 0;
    for (std::int64_t j = 0; j < V_; ++j) {
      Real* ds = &dS[j * K_];
      const Real r = scale_ * in(Port::kDO, at(Port::kDO, t, h) + j);
      for (std::int64_t i = 0; i < K_; ++i) {
        decayed[i] = x.decay * x.S[j * K_ + i];
        ds[i] += r * x.q[i];
        dq[i] += r * (decayed[i] + x.k[i] * x.u[j]);
        dk[i] += x.u[j] * ds[i];
      }
      const Real du = dot(ds, x.k.data(), K_);
      dbeta += du * (x.v[j] - dot(decayed.data(), x.k.data(), K_));
      add(Port::kDV, at(Port::kV, t, h) + j, x.beta * du);
      for (std::int64_t i = 0; i < K_; ++i) {
        dk[i] -= x.beta * du * decayed[i];
        ds[i] -= x.beta * du * x.k[i];
        dgate += ds[i] * decayed[i];
        ds[i] *= x.decay;
      }
    }
    store_key(Port::kDQ, at(Port::kQ, t, h), x.q, x.q_factor, dq);
    store_key(Port::kDK, at(Port::kK, t, h), x.k, x.k_factor, dk);
    store_gate(t, h, dgate);
    Real slope = 1;
    if (call_.options.use_beta_sigmoid) {
      const Real s = 1 / (1 + std::exp(-in(Port::kBeta, t * HO_ + h)));
      slope = (call_.options.allow_neg_eigval ? 2 : 1) * s * (1 - s);
    }
    add(Port::kDBeta, t * HO_ + h, slope * dbeta);
  }

  // y = factor x with factor = (x.x + 1e-6)^-1/2 under the l2 norm.
  void store_key(Port port, std::int64_t first, const Row& y, Real factor, const Row& dy) {
    const Real along = call_.options.use_qk_l2norm ? dot(y.data(), dy.data(), K_) : 0;
    for (std::int64_t i = 0; i < K_; ++i) add(port, first + i, factor * (dy[i] - y[i] * along));
  }

  void store_gate(std::int64_t t, std::int64_t h, Real dgate) {
    const Real g = in(Port::kG, t * HO_ + h);
    Real slope = 1;
    if (call_.options.safe_gate) {
      const Real x = g + in(Port::kDtBias, h);
      slope = -std::exp(in(Port::kALog, h)) / (1 + std::exp(-x));
      add(Port::kDDtBias, h, slope * dgate);
      add(Port::kDALog, h, log_decay(t, h) * dgate);
    } else if (call_.options.gate_domain == GateDomain::kLinear) {
      slope = 1 / (g + Real(1e-10));
    }
    add(Port::kDG, t * HO_ + h, slope * dgate);
  }

  const Call& call_;
  const Tensors& in_;
  std::int64_t K_, V_, HO_;
  Real scale_;
  Tensors out_;
};

template <class Real>
Tensors oracle(const Call& call, Pass pass, const Tensors& inputs) {
  return Oracle<Real>(call, inputs).run(pass);
}

}  // namespace deltaworks::kit
