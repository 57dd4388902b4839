// The backward's scratch, and from the gradients of a chunk's rows to those of the inputs.
#pragma once

#include <type_traits>

#include "engines/cpu/kernels/decay_number-inl.h"
#include "engines/cpu/kernels/decay_row-inl.h"

namespace deltaworks::cpu::HWY_NAMESPACE {
namespace {  // members of classes would be weak symbols

// Steps a chunk. Across a chunk the gradient of a state is formed as a difference; with few keys
// that difference may be what dozens of projections in a row have left of the whole space, next to
// nothing. Shorter chunks then keep its digits.
static inline std::int64_t chunk_steps(const Dims& dims) { return dims.K < 8 ? dims.K : kChunk; }

// Heads that go through the chunks side by side: their rows of one token share pages and lie next
// to each other. Four were faster than two and one (docs/design/cpu.md); each books its states.
inline constexpr std::int64_t kBackwardHeads = 4;

// What a head keeps from chunk to chunk.
template <class Variant>
struct BackwardHead {
  BackwardHead() = default;
  BackwardHead(const Dims& dims, std::int64_t padded_k, std::int64_t padded_v, Carver& carver)
      : K(padded_k), V(padded_v) {
    const std::int64_t chunks = round_up(dims.T * dims.n, chunk_steps(dims)) / chunk_steps(dims);
    kept = carver.take(chunks * kept_floats());
    dS = carver.take(K * V);
    bias = carver.take(K);
  }
  // What is kept of a chunk: the state [K, V] that enters it, R [kChunk, V], and L where keys
  // erase.
  std::int64_t kept_floats() const {
    return K * V + kChunk * V + (Variant::erase == Erase::kNone ? 0 : kOverlapFloats);
  }
  float* state(std::int64_t c) const { return kept + c * kept_floats(); }
  float* residual(std::int64_t c) const { return state(c) + K * V; }
  Overlaps& overlap(std::int64_t c) const {
    return *reinterpret_cast<Overlaps*>(residual(c) + kChunk * V);
  }

  std::int64_t K, V;
  float* kept;  // [chunks]
  float* dS;    // [K, V]
  float* bias;  // of the gates, by channel
};

// Matrices in panels: [kChunk, K] are named like the rows they hold, a trailing t is a transpose.
template <class Variant>
struct BackwardScratch {
  using Decay = std::conditional_t<kHasGateRow<Variant>, DecayRow, DecayNumber>;

  // For `count` heads, as many of them side by side as there is room for.
  BackwardScratch(const Args& args, std::int64_t count, float* base)
      : K(round_up(args.dims.K, kPanel)),
        V(round_up(args.dims.V, kPanel)),
        carver(base),
        decay(K, V, carver) {
    const Dims& dims = args.dims;
    const std::int64_t rows_of_all = dims.T * dims.n;
    batch = count < kBackwardHeads ? count : kBackwardHeads;
    for (std::int64_t i = 0; i < batch; ++i) {
      heads[i] = BackwardHead<Variant>(dims, K, V, carver);
    }
    for (float** m : {&q, &k, &rows, &dq, &dk}) *m = carver.take(kChunk * K);
    x = k;
    if constexpr (kHasBetaRow<Variant>) x = carver.take(kChunk * K);
    if constexpr (kHasBetaRow<Variant>) beta = carver.take(kChunk * K);
    if constexpr (Variant::erase != Erase::kNone) dx = carver.take(kChunk * K);
    for (float** m : {&t, &u, &ut, &dO, &dOt, &dX}) *m = carver.take(kChunk * V);
    if (args[Port::kZ].present()) o = carver.take(kChunk * V);
    reads = carver.take(kChunk * kChunk);
    for (float** m : {&flat, &row, &wide, &target, &skip, &value}) {
      *m = carver.take(K > V ? K : V);
    }
    if constexpr (kHasGateRow<Variant>) gate = carver.take(K);
    dq_sum = carver.take(dims.H < dims.HO ? dims.T * K : 0);
    dk_sum = carver.take(dims.HK < dims.HO ? rows_of_all * K : 0);
    dv_sum = carver.take(dims.HV < dims.HO ? rows_of_all * V : 0);
    size = carver.used();
  }

  std::int64_t K, V;  // padded
  Carver carver;
  Decay decay;
  std::int64_t batch;
  BackwardHead<Variant> heads[kBackwardHeads];
  float *q, *k, *x, *beta = nullptr, *rows, *dq, *dk, *dx = nullptr;
  float *t, *u, *ut, *dO, *dOt, *dX, *o = nullptr;
  float* reads;                                      // P, [kChunk, kChunk]
  float *flat, *row, *wide, *target, *skip, *value;  // a row each
  float* gate = nullptr;                             // a row
  float *dq_sum, *dk_sum, *dv_sum;  // flat rows, summed over the heads of the group so far
  float b[kChunk], q_norm[kChunk], k_norm[kChunk];
  Overlaps P, dP, dL;
  std::size_t size;
};

// A [N, HO, V, K] state in memory to and from panels [K, V].
template <class Scratch>
static inline void load_state(const Args& args, Port port, std::int64_t n, std::int64_t head,
                              Scratch& x, float* S) {
  clear(S, x.K * x.V);
  if (!args[port].present()) return;
  for (std::int64_t v = 0; v < args.dims.V; ++v) {
    load_row(state_row(args, port, n, head, v), args.dims.K, x.K, x.flat);
    float* to = panel_row(S, x.K, 0, v / kPanel) + v % kPanel;
    for (std::int64_t i = 0; i < args.dims.K; ++i) to[i * kPanel] = x.flat[i];
  }
}
template <class Scratch>
static inline void store_state(const Args& args, Port port, std::int64_t n, std::int64_t head,
                               const float* S, Scratch& x) {
  if (!args[port].present()) return;
  for (std::int64_t v = 0; v < args.dims.V; ++v) {
    const float* from = panel_row(S, x.K, 0, v / kPanel) + v % kPanel;
    for (std::int64_t i = 0; i < args.dims.K; ++i) x.flat[i] = from[i * kPanel];
    store_row(x.flat, args.dims.K, state_row(args, port, n, head, v));
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

// What a head of a sequence adds to the gradients of its parameters, in this order: a_log or A (1),
// dt_bias (1, or K by channel), D (V).
inline constexpr std::int64_t kBiasSum = 1;
template <class Variant>
static inline std::int64_t skip_sum(const Args& args) {
  return kBiasSum + BackwardScratch<Variant>::Decay::gates(args.dims.K);
}

// Row of a step and a head of a gradient.
static inline void store_gradient(const Args& args, Port port, Step step, std::int64_t head,
                                  const float* from, std::int64_t count) {
  write_row(args[port], from, count, row(args, port, step, head));
}

// dg of a step by channel, from the gradients of the logs of its decays in `d`; adds to the sums.
static inline void store_gate_row(const Args& args, Step step, std::int64_t head,
                                  std::int64_t padded, const float* bias, const float* d,
                                  float* flat, double* sums) {
  if (!is_first(step)) return;
  load_row(row(args, Port::kG, step, head), args.dims.K, padded, flat);
  const Lanes a{static_cast<double>(parameter(args, Port::kALog, head))};
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    const GateSlope<Lanes> slope =
        gate_slope(args.gate, Lanes::load(flat + i), a, Lanes::load(bias + i));
    const Lanes dg = Lanes::load(d + i);
    (dg * slope.g).store(flat + i);
    if (args.gate.form != GateForm::kSoftplus && args.gate.form != GateForm::kSigmoid) continue;
    float of_a[kLanes], of_bias[kLanes];
    (dg * slope.a).store(of_a);
    (dg * slope.dt_bias).store(of_bias);
    for (std::int64_t c = 0; c < kLanes && i + c < args.dims.K; ++c) {
      sums[0] += static_cast<double>(of_a[c]);
      sums[kBiasSum + i + c] += static_cast<double>(of_bias[c]);
    }
  }
  if (args[Port::kDG].present()) store_gradient(args, Port::kDG, step, head, flat, args.dims.K);
}

// The same where the gate is a number; `write` is the gradient of b, for a time step.
template <class Variant>
static inline void store_gate(const Args& args, Step step, std::int64_t head, double dg,
                              float write, double* sums) {
  if (!is_first(step)) return;
  const Lanes g{static_cast<double>(scalar(args, Port::kG, step, head))};
  const Lanes a{static_cast<double>(parameter(args, Port::kALog, head))};
  const Lanes bias{static_cast<double>(parameter(args, Port::kDtBias, head))};
  const auto first = [](Lanes x) { return hn::GetLane(x.x); };
  const GateSlope<Lanes> slope = gate_slope(args.gate, g, a, bias);
  float of_write = 0.0f;
  if constexpr (Variant::gate == Gate::kTimeStep) {
    of_write = write * first(step_slope(args.gate, g, bias));
  }
  if (args[Port::kDG].present()) {
    store_scalar(args, Port::kDG, step, head, static_cast<float>(dg) * first(slope.g) + of_write);
  }
  sums[0] += dg * static_cast<double>(first(slope.a));
  sums[kBiasSum] += dg * static_cast<double>(first(slope.dt_bias)) + static_cast<double>(of_write);
}

// What D and z get from row i, in place: `dt` holds the gradient of the row of v so far. The row of
// the output before its gate is o + D v.
template <class Scratch>
static inline void store_output_gradients(const Args& args, Step step, const Rows& reads,
                                          std::int64_t head, std::int64_t i, float* dt,
                                          double* sums, Scratch& x) {
  const bool skips = args[Port::kD].present(), gated = args[Port::kZ].present();
  float *dO = x.flat, *z = x.wide, *v = x.row;
  clear(dO, x.V);
  if (args[Port::kDO].present()) {
    load_row(row(args, Port::kDO, step, head), args.dims.V, x.V, dO);
  }
  if (skips) {
    load_row(row(args, Port::kD, {0, 0}, head), args.dims.V, x.V, x.skip);
    load_row(row(args, Port::kV, step, head), args.dims.V, x.V, x.value);
  }
  if (gated) {
    load_row(row(args, Port::kZ, step, head), args.dims.V, x.V, z);
    get_row(x.o, reads.padded, reads.index(i), x.V, v);
    if (args.scale != 1.0f) scale_row(args.scale, v, x.V, v);
    for (std::int64_t c = 0; c < x.V; c += kLanes) {
      Lanes y = Lanes::load(v + c);
      if (skips) y = y + Lanes::load(x.skip + c) * Lanes::load(x.value + c);
      // (z sigmoid(z))' = sigmoid(z) (1 + z sigmoid(-z))
      const Lanes each = Lanes::load(z + c), gradient = Lanes::load(dO + c);
      const Lanes slope = sigmoid(each) * (Lanes(1.0) + each * sigmoid(-each));
      (gradient * y * slope).store(v + c);
      (gradient * silu(each)).store(dO + c);
    }
    if (args[Port::kDZ].present()) store_gradient(args, Port::kDZ, step, head, v, args.dims.V);
  }
  if (!skips) return;
  for (std::int64_t c = 0; c < args.dims.V; ++c) {
    sums[c] += static_cast<double>(dO[c]) * static_cast<double>(x.value[c]);
  }
  multiply_row(x.skip, dO, x.V, dO);
  add_scaled_row(1.0f, dO, x.V, dt);
}

// Gradients of v, w, b and the gate of row i, and of D and z.
template <class Variant>
static inline void store_write_gradients(const Args& args, Step step, const Rows& reads, Head head,
                                         std::int64_t begin, std::int64_t i, const float* R,
                                         const float* bias, double* sums,
                                         BackwardScratch<Variant>& x) {
  const Dims& dims = args.dims;
  float* dt = x.target;
  get_row(x.dX, kChunk, i, x.V, dt);
  float db = 0.0f;
  if constexpr (!kUnitWrite<Variant>) {
    get_row(R, kChunk, i, x.V, x.flat);
    db = static_cast<float>(exact_dot(dt, x.flat, x.V));
    scale_row(x.b[i], dt, x.V, dt);
    if (Variant::gate == Gate::kDecay && args[Port::kDBeta].present()) {
      const Lanes beta{static_cast<double>(scalar(args, Port::kBeta, step, head.head))};
      const Lanes slope = beta_slope(args.beta, beta);
      store_scalar(args, Port::kDBeta, step, head.head, hn::GetLane(slope.x) * db);
    }
  } else {
    const float* v = view_row(row(args, Port::kV, step, head.head), dims.V, x.V, x.flat);
    const float* w = view_row(row(args, Port::kW, step, head.head), dims.V, x.V, x.wide);
    if (args[Port::kDW].present()) {
      multiply_row(v, dt, x.V, x.flat);
      store_gradient(args, Port::kDW, step, head.head, x.flat, dims.V);
    }
    multiply_row(w, dt, x.V, dt);
  }
  if ((args[Port::kD].present() || args[Port::kZ].present()) && is_last(args, step)) {
    store_output_gradients(args, step, reads, head.head, i, dt, sums + skip_sum<Variant>(args), x);
  }
  if (args[Port::kDV].present() &&
      sum_over_group(x.dv_sum, step.t * dims.n + step.sub - begin, dims.HV < dims.HO, head.first,
                     head.last, x.V, dt)) {
    store_gradient(args, Port::kDV, step, head.head, dt, dims.V);
  }
  if constexpr (kHasGateRow<Variant>) {
    x.decay.gradient_row(i, x.wide);
    store_gate_row(args, step, head.head, x.K, bias, x.wide, x.flat, sums);
  } else {
    store_gate<Variant>(args, step, head.head, x.decay.gradient(i), db, sums);
  }
}

// Writes the gradients of a chunk's inputs: x.dq, x.dk and x.dx hold those of the rows, x.dX that
// of U's right-hand side.
template <class Variant>
static inline void store_gradients(const Args& args, Place place, const Rows& reads, Head head,
                                   std::int64_t begin, const float* R, const float* bias,
                                   double* sums, BackwardScratch<Variant>& x) {
  const Dims& dims = args.dims;
  for (std::int64_t i = 0; i < place.count; ++i) {
    const std::int64_t r = place.r + i;
    const Step step = step_of(args, r);
    if (args[Port::kDQ].present() && is_last(args, step)) {
      const std::int64_t m = reads.index(i);
      get_row(x.dq, reads.padded, m, x.K, x.flat);
      if (sum_over_group(x.dq_sum, step.t - begin / dims.n, dims.H < dims.HO, head.first, head.last,
                         x.K, x.flat)) {
        if (args.l2norm) {
          get_row(x.q, reads.padded, m, x.K, x.row);
          through_norm(x.q_norm[m], x.row, x.K, x.flat);
        }
        store_gradient(args, Port::kDQ, step, head.head, x.flat, dims.K);
      }
    }
    if (args.l2norm) get_row(x.k, kChunk, i, x.K, x.row);
    get_row(x.dk, kChunk, i, x.K, x.flat);
    if constexpr (Variant::erase == Erase::kScalar) {
      get_row(x.dx, kChunk, i, x.K, x.wide);
      add_scaled_row(1.0f, x.wide, x.K, x.flat);
    } else if constexpr (kHasBetaRow<Variant>) {
      float *dx = x.wide, *beta = x.gate;
      for (std::int64_t c = 0; c < x.K; c += kLanes) {
        const std::int64_t at = panel_element(i, c);
        const Vec erased = hn::LoadU(f32, x.dx + at);
        const Vec dk = hn::LoadU(f32, x.flat + c);
        hn::StoreU(hn::MulAdd(hn::LoadU(f32, x.beta + at), erased, dk), f32, x.flat + c);
        hn::StoreU(hn::Mul(hn::LoadU(f32, x.k + at), erased), f32, dx + c);
      }
      if (args[Port::kDBeta].present()) {
        if (args.beta.sigmoid) {
          load_row(row(args, Port::kBeta, step, head.head), dims.K, x.K, beta);
          map_lanes(x.K, beta, [&](Lanes logit) { return beta_slope(args.beta, logit); });
          multiply_row(beta, dx, x.K, dx);
        }
        store_gradient(args, Port::kDBeta, step, head.head, dx, dims.K);
      }
    }
    if (args[Port::kDK].present() && sum_over_group(x.dk_sum, r - begin, dims.HK < dims.HO,
                                                    head.first, head.last, x.K, x.flat)) {
      if (args.l2norm) through_norm(x.k_norm[i], x.row, x.K, x.flat);
      store_gradient(args, Port::kDK, step, head.head, x.flat, dims.K);
    }
    store_write_gradients<Variant>(args, step, reads, head, begin, i, R, bias, sums, x);
  }
}

}  // namespace
}  // namespace deltaworks::cpu::HWY_NAMESPACE
