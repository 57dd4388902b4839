// The five operations token by token in the number type Real, written from their definition alone
// and without the library's engines. For every row, n of which are a token:
//
//   S' = D S,   u = w - S'^T e,   S = S' + k u^T,   o = scale S^T q
//   e_i = b_i k_i,   w_j = m_j v_j,   y = (o + D x) silu(z)
//
// and its exact reverse; b and m are beta or 0, and beta, w or the time step. In double it is what
// engines are judged by; in float it is the plain loop whose error fp32 bounds are measured in.
// Only rounding that the operation itself asks for is done.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "kit.h"

namespace deltaworks::kit {

template <class Real>
class Oracle {
 public:
  Oracle(const Call& call, const Tensors& inputs)
      : call_(call),
        options_(call.options),
        in_(inputs),
        K_(call.dims.K),
        V_(call.dims.V),
        HO_(call.dims.HO),
        n_(call.dims.n),
        time_step_(call.op == Op::kMamba2),
        by_channel_(call.op == Op::kKimiDeltaAttention || call.op == Op::kGatedDeltaNetV2),
        beta_by_channel_(call.op == Op::kGatedDeltaNetV2),
        gates_(by_channel_ ? K_ : 1),
        betas_(beta_by_channel_ ? K_ : 1),
        scale_(time_step_ ? 1
                          : static_cast<Real>(
                                options_.scale.value_or(1 / std::sqrt(static_cast<double>(K_))))) {}

  // Outputs of a pass, in float64; rows of no sequence are 0.
  Tensors run(Pass pass) {
    for (Port port : outputs_of(pass, in_, call_.op)) {
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
  // One row: q is that of its token.
  struct Step {
    Row q, k, v, decay, b, m, u, o, S;  // S [V, K] is the state before the row
    Real q_factor = 1, k_factor = 1;
  };

  Real in(Port port, std::int64_t i) const {
    const auto found = in_.find(port);
    return found == in_.end() ? Real(0) : static_cast<Real>(found->second.get(i));
  }
  void add(Port port, std::int64_t i, Real x) {
    const auto found = out_.find(port);
    if (found != out_.end()) found->second.set(i, found->second.get(i) + static_cast<double>(x));
  }

  // First element of the row that head h reads; [T n, heads, width] and [T, n, heads, width] have
  // one order of elements.
  std::int64_t at(Port port, std::int64_t row, std::int64_t h) const {
    const TensorDesc desc = describe(call_, port);
    const std::int64_t heads = desc.shape[desc.rank - 2], width = desc.shape[desc.rank - 1];
    return (row * heads + h / (HO_ / heads)) * width;
  }
  std::int64_t gate_at(std::int64_t t, std::int64_t h, std::int64_t c) const {
    return (t * HO_ + h) * gates_ + c;
  }
  std::int64_t beta_at(std::int64_t row, std::int64_t h, std::int64_t c) const {
    return (row * HO_ + h) * betas_ + c;
  }
  std::int64_t D_at(std::int64_t h, std::int64_t j) const {
    return call_.D_rank == 2 ? h * V_ + j : h;
  }

  Row row(Port port, std::int64_t t, std::int64_t h, std::int64_t width) const {
    Row x(width);
    for (std::int64_t i = 0; i < width; ++i) x[i] = in(port, at(port, t, h) + i);
    return x;
  }

  Real normalise(Row& x) const {
    if (!options_.use_qk_l2norm) return 1;
    Real sum = Real(1e-6);
    for (Real value : x) sum += value * value;
    const Real factor = 1 / std::sqrt(sum);
    for (Real& value : x) value *= factor;
    return factor;
  }

  static Real logistic(Real x) { return 1 / (1 + std::exp(-x)); }
  static Real soft_plus(Real x) { return x >= 20 ? x : std::log1p(std::exp(x)); }

  // What the parameters make of a gate before the last map.
  Real shifted(std::int64_t t, std::int64_t h, std::int64_t c) const {
    return in(Port::kG, gate_at(t, h, c)) + in(Port::kDtBias, h * gates_ + c);
  }
  bool bounded() const { return by_channel_ && options_.gate == GateKind::kSigmoid; }
  Real lower_bound() const { return static_cast<Real>(options_.gate_lower_bound.value_or(-5)); }

  Real step_before_clamp(std::int64_t t, std::int64_t h) const {
    const Real x = shifted(t, h, 0);
    return options_.dt_softplus ? soft_plus(x) : x;
  }
  Real longest() const {
    return static_cast<Real>(options_.dt_max.value_or(std::numeric_limits<double>::infinity()));
  }
  Real time_step(std::int64_t t, std::int64_t h) const {
    return std::min(std::max(step_before_clamp(t, h), static_cast<Real>(options_.dt_min)),
                    longest());
  }

  Real log_decay(std::int64_t t, std::int64_t h, std::int64_t c) const {
    const Real g = in(Port::kG, gate_at(t, h, c)), a = in(Port::kALog, h);
    if (time_step_) return a * time_step(t, h);
    if (options_.safe_gate) {
      const Real x = shifted(t, h, c);
      return bounded() ? lower_bound() * logistic(std::exp(a) * x) : -std::exp(a) * soft_plus(x);
    }
    return options_.gate_domain == GateDomain::kLinear ? std::log(g + Real(1e-10)) : g;
  }

  // b, with beta as it takes effect.
  Row beta(std::int64_t row, std::int64_t h, const Row& k) const {
    if (time_step_) return Row(K_);
    Row b(K_);
    for (std::int64_t i = 0; i < K_; ++i) {
      b[i] = in(Port::kBeta, beta_at(row, h, beta_by_channel_ ? i : 0));
      if (!options_.use_beta_sigmoid) continue;
      b[i] = round_to(call_.types.beta, logistic(b[i]));
      if (options_.allow_neg_eigval) b[i] *= 2;
    }
    if (options_.beta_guard) guard(row, h, k, b);
    return b;
  }

  struct Guard {
    Real n, a, nu, r2, crit;
    bool unsafe(Real slack) const { return n > Real(1e-20) && r2 > crit + slack; }
  };
  Guard guard_of(const Row& k, const Row& b, Real c2) const {
    Guard x{};
    for (std::int64_t i = 0; i < K_; ++i) {
      x.n += k[i] * k[i];
      x.a += b[i] * k[i] * k[i];
      x.nu += b[i] * b[i] * k[i] * k[i];
    }
    x.r2 = std::max(x.n * x.nu - x.a * x.a, Real(0));
    x.crit = std::max((c2 - 1) * (1 - (1 - x.a) * (1 - x.a) / c2), Real(0));
    return x;
  }
  void guard(std::int64_t t, std::int64_t h, const Row& k, Row& b) const {
    Real slowest = -std::numeric_limits<Real>::infinity();
    for (std::int64_t i = 0; i < K_; ++i) slowest = std::max(slowest, log_decay(t, h, i));
    const Real c2 = std::exp(-2 * slowest);
    const DType io = call_.types.io;
    const Guard x = guard_of(k, b, c2);
    if (x.unsafe(0)) {
      const Real mu = x.a / std::max(x.n, Real(1e-20));
      const Real share = std::sqrt((1 - Real(1) / 32) * x.crit / std::max(x.r2, Real(1e-30)));
      for (Real& value : b) value = mu + std::min(share, Real(1)) * (value - mu);
    }
    for (Real& value : b) value = round_to(io, value);
    const Guard y = guard_of(k, b, c2);
    const double eps = io == DType::kBFloat16 ? 1.0 / 128 : io == DType::kFloat16 ? 1.0 / 1024 : 0;
    if (y.unsafe(4 * static_cast<Real>(eps) * (y.n * y.nu + y.a * y.a))) {
      std::fill(b.begin(), b.end(), round_to(io, y.a / y.n));
    }
  }

  // m
  Row write(std::int64_t r, std::int64_t h, const Row& b) const {
    if (beta_by_channel_) return row(Port::kW, r, h, V_);
    return Row(V_, time_step_ ? time_step(r, h) : b[0]);
  }

  Real dot(const Real* x, const Real* y, std::int64_t count) const {
    Real sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += x[i] * y[i];
    return sum;
  }
  static Real sum(const Row& x) { return std::accumulate(x.begin(), x.end(), Real(0)); }

  void head(Pass pass, std::int64_t n, std::int64_t h) {
    const std::int64_t begin = call_.offsets[n] * n_, end = call_.offsets[n + 1] * n_;
    const std::int64_t state = (n * HO_ + h) * V_ * K_;
    Row S(V_ * K_);
    for (std::int64_t i = 0; i < V_ * K_; ++i) S[i] = in(Port::kInitialState, state + i);
    std::vector<Step> steps;
    for (std::int64_t r = begin; r < end; ++r) {
      steps.push_back(step(r, h, S));
      if (pass == Pass::kBackward) continue;
      if (r % n_ == n_ - 1) output(r / n_, h, steps.back());
      steps.clear();
    }
    for (std::int64_t i = 0; i < V_ * K_; ++i) add(Port::kFinalState, state + i, S[i]);
    if (pass == Pass::kForward) return;

    Row dS(V_ * K_);
    for (std::int64_t i = 0; i < V_ * K_; ++i) dS[i] = in(Port::kDFinalState, state + i);
    for (std::int64_t r = end - 1; r >= begin; --r) {
      reverse(r, h, steps.back(), dS);
      steps.pop_back();
    }
    for (std::int64_t i = 0; i < V_ * K_; ++i) add(Port::kDInitialState, state + i, dS[i]);
  }

  Step step(std::int64_t r, std::int64_t h, Row& S) const {
    Step x{.q = row(Port::kQ, r / n_, h, K_),
           .k = row(Port::kK, r, h, K_),
           .v = row(Port::kV, r, h, V_),
           .decay = Row(K_, 1),
           .b = {},
           .m = {},
           .u = Row(V_),
           .o = Row(V_),
           .S = S};
    x.q_factor = normalise(x.q);
    x.k_factor = normalise(x.k);
    for (std::int64_t i = 0; i < K_ && r % n_ == 0; ++i) {
      x.decay[i] = std::exp(log_decay(r / n_, h, by_channel_ ? i : 0));
    }
    x.b = beta(r, h, x.k);
    x.m = write(r, h, x.b);
    for (std::int64_t j = 0; j < V_; ++j) {
      Real* s = &S[j * K_];
      Real erased = 0;
      for (std::int64_t i = 0; i < K_; ++i) {
        s[i] *= x.decay[i];
        erased += x.b[i] * x.k[i] * s[i];
      }
      x.u[j] = x.m[j] * x.v[j] - erased;
      for (std::int64_t i = 0; i < K_; ++i) s[i] += x.k[i] * x.u[j];
      x.o[j] = scale_ * dot(s, x.q.data(), K_);
    }
    return x;
  }

  void output(std::int64_t t, std::int64_t h, const Step& x) {
    for (std::int64_t j = 0; j < V_; ++j) {
      const std::int64_t i = at(Port::kO, t, h) + j;
      const Real y = x.o[j] + in(Port::kD, D_at(h, j)) * x.v[j], z = in(Port::kZ, i);
      add(Port::kO, i, call_.z ? y * z * logistic(z) : y);
    }
  }

  // The gradient of o_j at a token; those of D, z and, through D, of x are added.
  Real reverse_output(std::int64_t t, std::int64_t h, std::int64_t j, const Step& x) {
    const std::int64_t i = at(Port::kDO, t, h) + j;
    const Real D = in(Port::kD, D_at(h, j)), z = in(Port::kZ, i);
    Real dy = in(Port::kDO, i);
    if (call_.z) {
      const Real s = logistic(z);
      add(Port::kDZ, i, dy * (x.o[j] + D * x.v[j]) * s * (1 + z * (1 - s)));
      dy *= z * s;
    }
    add(Port::kDD, D_at(h, j), dy * x.v[j]);
    add(Port::kDV, at(Port::kV, t, h) + j, dy * D);
    return dy;
  }

  // On entry dS is the gradient of the state after the row, on return of the one before.
  void reverse(std::int64_t r, std::int64_t h, const Step& x, Row& dS) {
    Row dq(K_), dk(K_), dlog(K_), db(K_), dm(V_);
    const bool read = r % n_ == n_ - 1;
    for (std::int64_t j = 0; j < V_; ++j) {
      Real* ds = &dS[j * K_];
      const Real out = read ? scale_ * reverse_output(r / n_, h, j, x) : Real(0);
      for (std::int64_t i = 0; i < K_; ++i) {
        ds[i] += out * x.q[i];
        dq[i] += out * (x.decay[i] * x.S[j * K_ + i] + x.k[i] * x.u[j]);
        dk[i] += x.u[j] * ds[i];
      }
      const Real du = dot(ds, x.k.data(), K_);
      dm[j] = du * x.v[j];
      add(Port::kDV, at(Port::kV, r, h) + j, x.m[j] * du);
      for (std::int64_t i = 0; i < K_; ++i) {
        const Real decayed = x.decay[i] * x.S[j * K_ + i];
        db[i] -= du * x.k[i] * decayed;
        dk[i] -= du * x.b[i] * decayed;
        ds[i] -= du * x.b[i] * x.k[i];
        dlog[i] += ds[i] * decayed;
        ds[i] *= x.decay[i];
      }
    }
    store_key(Port::kDQ, at(Port::kQ, r / n_, h), x.q, x.q_factor, dq);
    store_key(Port::kDK, at(Port::kK, r, h), x.k, x.k_factor, dk);
    if (!by_channel_) dlog = {sum(dlog)};
    if (beta_by_channel_) {
      for (std::int64_t j = 0; j < V_; ++j) add(Port::kDW, at(Port::kW, r, h) + j, dm[j]);
    } else {
      db = {time_step_ ? sum(dm) : sum(db) + sum(dm)};  // no erase row depends on a step
    }
    for (std::int64_t c = 0; c < gates_ && r % n_ == 0; ++c) store_gate(r / n_, h, c, dlog[c], db);
    for (std::int64_t c = 0; c < betas_ && !time_step_; ++c) {
      Real slope = 1;
      if (options_.use_beta_sigmoid) {
        const Real s = logistic(in(Port::kBeta, beta_at(r, h, c)));
        slope = (options_.allow_neg_eigval ? 2 : 1) * s * (1 - s);
      }
      add(Port::kDBeta, beta_at(r, h, c), slope * db[c]);
    }
  }

  // y = factor x with factor = (x.x + 1e-6)^-1/2 under the l2 norm.
  void store_key(Port port, std::int64_t first, const Row& y, Real factor, const Row& dy) {
    const Real along = options_.use_qk_l2norm ? dot(y.data(), dy.data(), K_) : 0;
    for (std::int64_t i = 0; i < K_; ++i) add(port, first + i, factor * (dy[i] - y[i] * along));
  }

  // db[0] is the gradient of the time step where the gate is one.
  void store_gate(std::int64_t t, std::int64_t h, std::int64_t c, Real dlog, const Row& db) {
    const Real g = in(Port::kG, gate_at(t, h, c)), a = in(Port::kALog, h);
    const Real x = shifted(t, h, c), amplitude = std::exp(a);
    Real dx = dlog;
    if (time_step_) {
      const Real free = step_before_clamp(t, h);
      const bool clamped = free < static_cast<Real>(options_.dt_min) || free > longest();
      const Real slope = !options_.dt_softplus || x >= 20 ? Real(1) : logistic(x);
      dx = clamped ? Real(0) : slope * (a * dlog + db[0]);
      add(Port::kDA, h, time_step(t, h) * dlog);
    } else if (options_.safe_gate && bounded()) {
      const Real y = logistic(amplitude * x), bend = lower_bound() * y * (1 - y) * dlog;
      dx = bend * amplitude;
      add(Port::kDALog, h, bend * amplitude * x);
    } else if (options_.safe_gate) {
      dx = x >= 20 ? -amplitude * dlog : -amplitude * logistic(x) * dlog;
      add(Port::kDALog, h, log_decay(t, h, c) * dlog);
    } else if (options_.gate_domain == GateDomain::kLinear) {
      dx = dlog / (g + Real(1e-10));
    }
    add(Port::kDDtBias, h * gates_ + c, dx);
    add(Port::kDG, gate_at(t, h, c), dx);
  }

  const Call& call_;
  const Options& options_;
  const Tensors& in_;
  std::int64_t K_, V_, HO_, n_;
  bool time_step_, by_channel_, beta_by_channel_;
  std::int64_t gates_, betas_;
  Real scale_;
  Tensors out_;
};

template <class Real>
Tensors oracle(const Call& call, Pass pass, const Tensors& inputs) {
  return Oracle<Real>(call, inputs).run(pass);
}

}  // namespace deltaworks::kit
