// Backward, chunk by chunk. For each head a forward sweep keeps the state that enters every chunk
// and the residual rows R; then a reverse sweep carries dS, the gradient of the state. The heads of
// a group run one after the other, so the sums over shared heads have one order. Formulas and
// their derivation: docs/design/gated-delta-rule.md.
#pragma once

#include "engines/cpu/kernels/chunk-inl.h"
#include "variants/traits.h"

namespace deltaworks::cpu::HWY_NAMESPACE {

// Tokens a chunk. Across a chunk the gradient of a state is formed as a difference; with few keys
// that difference may be what dozens of projections in a row have left of the whole space, next to
// nothing. Shorter chunks then keep its digits.
static inline std::int64_t chunk_tokens(const Dims& dims) { return dims.K < 8 ? dims.K : kChunk; }

// Matrices in panels: [kChunk, K] are named like the rows they hold, a trailing t is a transpose.
struct BackwardScratch {
  BackwardScratch(const Args& args, float* base)
      : K(round_up(args.dims.K, kPanel)), V(round_up(args.dims.V, kPanel)) {
    const Dims& dims = args.dims;
    const std::int64_t tokens = chunk_tokens(dims);
    const std::int64_t chunks = round_up(dims.T, tokens) / tokens;
    Carver carver(base);
    states = carver.take(chunks * K * V);
    residuals = carver.take(chunks * kChunk * V);
    dS = carver.take(K * V);
    for (float** x : {&q, &k, &rows_k, &dq, &dk}) *x = carver.take(kChunk * K);
    for (float** x : {&qt, &kt, &dqt, &dkt, &leave_kt}) *x = carver.take(kChunk * K);
    for (float** x : {&v, &u, &ut, &dO, &dOt, &dX, &dXt}) *x = carver.take(kChunk * V);
    for (float** x : {&P, &W, &Y, &Yt}) *x = carver.take(kChunk * kChunk);
    flat = carver.take(K > V ? K : V);
    dq_sum = carver.take(dims.H < dims.HO ? dims.T * K : 0);
    dk_sum = carver.take(dims.HK < dims.HO ? dims.T * K : 0);
    dv_sum = carver.take(dims.HV < dims.HO ? dims.T * V : 0);
    size = carver.used();
  }

  std::int64_t K, V;  // padded
  float* states;      // [chunks][K, V], entering each chunk
  float* residuals;   // [chunks][kChunk, V]
  float* dS;          // [K, V]
  float *q, *k, *rows_k, *dq, *dk;
  float *qt, *kt, *dqt, *dkt, *leave_kt;
  float *v, *u, *ut, *dO, *dOt, *dX, *dXt;
  float *P, *W, *Y, *Yt;
  float* flat;                      // one row
  float *dq_sum, *dk_sum, *dv_sum;  // flat rows, summed over the heads of the group so far
  Gates gates;
  Overlaps kk, L, qk, dOU, dXU;
  float q_norm[kChunk], k_norm[kChunk];
  std::size_t size;
};

// A sequence in chunks.
struct Chunks {
  Chunks(const Args& args, std::int64_t n)
      : begin(args.offset(n)), end(args.offset(n + 1)), tokens(chunk_tokens(args.dims)) {
    count = round_up(end - begin, tokens) / tokens;
  }
  Place operator[](std::int64_t c) const {
    const std::int64_t t = begin + c * tokens;
    return {t, end - t < tokens ? end - t : tokens};
  }

  std::int64_t begin, end, tokens, count;
};

// A [N, HO, V, K] state in memory to and from panels [K, V].
static inline void load_state(const Args& args, Port port, std::int64_t n, std::int64_t head,
                              BackwardScratch& x, float* S) {
  clear(S, x.K * x.V);
  if (!args[port].present()) return;
  for (std::int64_t v = 0; v < args.dims.V; ++v) {
    load_row(state_row(args, port, n, head, v), args.dims.K, x.K, x.flat);
    float* to = panel_row(S, x.K, 0, v / kPanel) + v % kPanel;
    for (std::int64_t i = 0; i < args.dims.K; ++i) to[i * kPanel] = x.flat[i];
  }
}
static inline void store_state(const Args& args, Port port, std::int64_t n, std::int64_t head,
                               const float* S, BackwardScratch& x) {
  if (!args[port].present()) return;
  for (std::int64_t v = 0; v < args.dims.V; ++v) {
    const float* from = panel_row(S, x.K, 0, v / kPanel) + v % kPanel;
    for (std::int64_t i = 0; i < args.dims.K; ++i) x.flat[i] = from[i * kPanel];
    store_row(x.flat, args.dims.K, state_row(args, port, n, head, v));
  }
}

// What both sweeps need of a chunk: keys, gates and L = D * (K K^T) below the diagonal.
static inline void load_chunk(const Args& args, Place place, std::int64_t head,
                              BackwardScratch& x) {
  load_rows(args, Port::kK, place, head, args.dims.K, x.K, 1.0f, x.flat,
            args.l2norm ? x.k_norm : nullptr, x.k);
  load_gates(args, place, head, x.gates);
  transpose(x.k, kChunk, x.K, x.kt);
  exact_lower_product(kChunk, x.K, Plain{x.k, kChunk}, x.kt, x.kk.x);
  for (std::int64_t i = 0; i < kChunk; ++i) {
    for (std::int64_t j = 0; j < i; ++j) {
      x.L.x[i * kChunk + j] = x.gates.fade(i, j, x.kk.at(i, j));
    }
  }
}

// S1 = through S0 + (leave * K)^T U for every chunk, keeping S0 and R.
static inline void keep_states(const Args& args, std::int64_t n, std::int64_t head,
                               BackwardScratch& x) {
  const Chunks chunks(args, n);
  if (chunks.count == 0) return;
  load_state(args, Port::kInitialState, n, head, x, x.states);
  for (std::int64_t c = 0; c < chunks.count; ++c) {
    const Place place = chunks[c];
    const float* S = x.states + c * x.K * x.V;
    float* R = x.residuals + c * kChunk * x.V;
    load_chunk(args, place, head, x);
    load_rows(args, Port::kV, place, head, args.dims.V, x.V, 1.0f, x.flat, nullptr, x.v);
    scale_rows(x.gates.enter, x.k, kChunk, x.K, x.rows_k);
    product<false>(kChunk, x.V, x.K, Plain{x.rows_k, kChunk}, S, x.dX);
    solve_residuals(x.gates, x.L, x.dX, x.v, x.V, R, x.u);
    if (c + 1 == chunks.count) break;
    float* next = x.states + (c + 1) * x.K * x.V;
    scale_row(x.gates.through, S, x.K * x.V, next);
    scale_rows(x.gates.leave, x.k, kChunk, x.K, x.rows_k);
    product<true>(x.K, x.V, kChunk, Transposed{x.rows_k, kChunk}, x.u, next);
  }
}

// Adds a head's gradient row to the group's sum and, after the last head, hands it on. Returns
// whether `flat` now holds the whole gradient.
static inline bool sum_over_group(float* sum, std::int64_t token, bool shared, bool first,
                                  bool last, std::int64_t padded, float* flat) {
  if (!shared) return true;
  float* kept = sum + token * padded;
  if (!first) add_scaled_row(1.0f, kept, padded, flat);
  if (!last) copy(flat, padded, kept);
  return last;
}

// The gradient of a row before its normalisation: x = r y, so dy = r (dx - x (x.dx)).
static inline void through_norm(float inverse_norm, const float* x, std::int64_t padded,
                                float* dx) {
  add_scaled_row(-dot(x, dx, padded), x, padded, dx);
  scale_row(inverse_norm, dx, padded, dx);
}

struct Head {
  std::int64_t head;
  bool first, last;  // of its group
};

// Writes dq, dk, dv, dg and dbeta of a chunk; x.dq and x.dk hold the rows' gradients, x.dX that of
// U's right-hand side. `row` is a buffer for one row of keys.
static inline void store_gradients(const Args& args, Place place, Head head, std::int64_t begin,
                                   const float* R, const double* dg, double* sums,
                                   BackwardScratch& x) {
  const Dims& dims = args.dims;
  const float a_log = parameter(args, Port::kALog, head.head);
  const float dt_bias = parameter(args, Port::kDtBias, head.head);
  float* normalised = x.rows_k;  // one flat row
  float* residual = x.v;         // one flat row
  for (std::int64_t i = 0; i < place.count; ++i) {
    const std::int64_t t = place.t + i;
    struct Keys {
      Port port;
      const float *rows, *gradient, *inverse_norms;
      float* sum;
      bool shared;
    };
    for (const Keys& y : {Keys{Port::kDQ, x.q, x.dq, x.q_norm, x.dq_sum, dims.H < dims.HO},
                          Keys{Port::kDK, x.k, x.dk, x.k_norm, x.dk_sum, dims.HK < dims.HO}}) {
      if (!args[y.port].present()) continue;
      get_row(y.gradient, kChunk, i, x.K, x.flat);
      if (!sum_over_group(y.sum, t - begin, y.shared, head.first, head.last, x.K, x.flat)) continue;
      if (args.l2norm) {
        get_row(y.rows, kChunk, i, x.K, normalised);
        through_norm(y.inverse_norms[i], normalised, x.K, x.flat);
      }
      store_row(x.flat, dims.K, row(args, y.port, t, head.head));
    }
    get_row(x.dX, kChunk, i, x.V, x.flat);
    if (args[Port::kDBeta].present()) {
      get_row(R, kChunk, i, x.V, residual);
      const float slope = beta_slope(args.beta, scalar(args, Port::kBeta, t, head.head));
      store_scalar(args, Port::kDBeta, t, head.head,
                   slope * static_cast<float>(exact_dot(x.flat, residual, x.V)));
    }
    if (args[Port::kDV].present()) {
      scale_row(x.gates.beta[i], x.flat, x.V, x.flat);
      if (sum_over_group(x.dv_sum, t - begin, dims.HV < dims.HO, head.first, head.last, x.V,
                         x.flat)) {
        store_row(x.flat, dims.V, row(args, Port::kDV, t, head.head));
      }
    }
    const auto slope = gate_slope(args.gate, scalar(args, Port::kG, t, head.head), a_log, dt_bias);
    if (args[Port::kDG].present()) {
      store_scalar(args, Port::kDG, t, head.head, static_cast<float>(dg[i]) * slope.g);
    }
    sums[0] += dg[i] * static_cast<double>(slope.a_log);
    sums[1] += dg[i] * static_cast<double>(slope.dt_bias);
  }
}

// One chunk of the reverse sweep: from dS after it to dS before it.
static inline void reverse_chunk(const Args& args, Place place, Head head, std::int64_t begin,
                                 const float* S, const float* R, double* sums, BackwardScratch& x) {
  const std::int64_t K = x.K, V = x.V;
  load_chunk(args, place, head.head, x);
  load_rows(args, Port::kQ, place, head.head, args.dims.K, K, 1.0f, x.flat,
            args.l2norm ? x.q_norm : nullptr, x.q);
  if (args[Port::kDO].present()) {
    load_rows(args, Port::kDO, place, head.head, args.dims.V, V, args.scale, x.flat, nullptr, x.dO);
  } else {
    clear(x.dO, kChunk * V);
  }
  const Gates& gates = x.gates;
  scale_rows(gates.beta, R, kChunk, V, x.u);
  transpose(x.q, kChunk, K, x.qt);
  transpose(x.dO, kChunk, V, x.dOt);
  transpose(x.u, kChunk, V, x.ut);

  // dU = P^T dO + (leave * K) dS; the solve turns it into dX, the gradient of U's right-hand side.
  exact_lower_product(kChunk, K, Plain{x.q, kChunk}, x.kt, x.qk.x);
  const auto read = [&](std::int64_t i, std::int64_t j) {
    return static_cast<float>(gates.fade(i, j, x.qk.at(i, j)));
  };
  lower<true>(read, x.P);
  product<false>(kChunk, V, kChunk, Transposed{x.P, kChunk}, x.dO, x.dX);
  scale_rows(gates.leave, x.k, kChunk, K, x.rows_k);
  product<true>(kChunk, V, K, Plain{x.rows_k, kChunk}, x.dS, x.dX);
  solve_transposed(gates, x.L, V, x.dX);
  transpose(x.dX, kChunk, V, x.dXt);

  // W = D * (dO U^T) is the gradient of Q K^T, Y = -beta D * (dX U^T) that of K K^T.
  exact_lower_product(kChunk, V, Plain{x.dO, kChunk}, x.ut, x.dOU.x);
  exact_lower_product(kChunk, V, Plain{x.dX, kChunk}, x.ut, x.dXU.x);
  const auto d_qk = [&](std::int64_t i, std::int64_t j) {
    return static_cast<float>(gates.fade(i, j, x.dOU.at(i, j)));
  };
  const auto d_kk = [&](std::int64_t i, std::int64_t j) {
    return -gates.beta[i] * static_cast<float>(gates.fade(i, j, x.dXU.at(i, j)));
  };
  lower<true>(d_qk, x.W);
  lower<false>(d_kk, x.Y);

  // Through the states, with tokens along the lanes; their dots are the gates' share.
  float minus_beta_enter[kChunk];
  for (std::int64_t i = 0; i < kChunk; ++i) {
    minus_beta_enter[i] = -gates.beta[i] * gates.enter[i];
  }
  scale_columns(gates.enter, x.dOt, V, kChunk, x.dOt);
  scale_columns(minus_beta_enter, x.dXt, V, kChunk, x.dXt);
  scale_columns(gates.leave, x.ut, V, kChunk, x.ut);
  product<false>(K, kChunk, V, Plain{S, K}, x.dOt, x.dqt);
  product<false>(K, kChunk, V, Plain{S, K}, x.dXt, x.dkt);
  product<false>(K, kChunk, V, Plain{x.dS, K}, x.ut, x.leave_kt);
  double entering[kChunk] = {}, leaving[kChunk] = {}, dg[kChunk];
  add_column_dots(x.qt, x.dqt, K, kChunk, entering);
  add_column_dots(x.kt, x.dkt, K, kChunk, entering);
  add_column_dots(x.kt, x.leave_kt, K, kChunk, leaving);
  const double through = static_cast<double>(gates.through) * exact_dot(S, x.dS, K * V);
  const auto pair = [&](std::int64_t i, std::int64_t j) {
    const double beta = static_cast<double>(gates.beta[i]);
    return gates.fade(i, j, x.dOU.at(i, j) * x.qk.at(i, j) - beta * x.dXU.at(i, j) * x.kk.at(i, j));
  };
  gate_gradient(pair, entering, leaving, through, dg);

  // dQ = (enter * dO S0^T) + W K,  dK likewise + W^T Q + (Y + Y^T) K.
  add_scaled_row(1.0f, x.leave_kt, K * kChunk, x.dkt);
  transpose(x.dqt, K, kChunk, x.dq);
  transpose(x.dkt, K, kChunk, x.dk);
  product<true>(kChunk, K, kChunk, Plain{x.W, kChunk}, x.k, x.dq);
  product<true>(kChunk, K, kChunk, Transposed{x.W, kChunk}, x.q, x.dk);
  transpose(x.Y, kChunk, kChunk, x.Yt);
  add_scaled_row(1.0f, x.Y, kChunk * kChunk, x.Yt);
  product<true>(kChunk, K, kChunk, Plain{x.Yt, kChunk}, x.k, x.dk);

  // dS0 = through dS + (enter * Q)^T dO - (beta enter * K)^T dX.
  scale_row(gates.through, x.dS, K * V, x.dS);
  scale_rows(gates.enter, x.q, kChunk, K, x.rows_k);
  product<true>(K, V, kChunk, Transposed{x.rows_k, kChunk}, x.dO, x.dS);
  scale_rows(minus_beta_enter, x.k, kChunk, K, x.rows_k);
  product<true>(K, V, kChunk, Transposed{x.rows_k, kChunk}, x.dX, x.dS);
  store_gradients(args, place, head, begin, R, dg, sums, x);
}

template <class Variant>
static void backward(const Args& args, std::int64_t n, std::int64_t group, double* sums,
                     float* scratch) {
  static_assert(Variant::decay == Decay::kScalar && Variant::erase == Erase::kScalar &&
                    Variant::write == Write::kScalar,
                "the chunks know one decay and one beta a head");
  BackwardScratch x(args, scratch);
  const Chunks chunks(args, n);
  const std::int64_t size = args.group_size();
  for (std::int64_t i = 0; i < size; ++i) {
    const Head head{group * size + i, i == 0, i + 1 == size};
    keep_states(args, n, head.head, x);
    load_state(args, Port::kDFinalState, n, head.head, x, x.dS);
    for (std::int64_t c = chunks.count - 1; c >= 0; --c) {
      reverse_chunk(args, chunks[c], head, chunks.begin, x.states + c * x.K * x.V,
                    x.residuals + c * kChunk * x.V, sums + 2 * i, x);
    }
    store_state(args, Port::kDInitialState, n, head.head, x.dS, x);
  }
}

}  // namespace deltaworks::cpu::HWY_NAMESPACE
