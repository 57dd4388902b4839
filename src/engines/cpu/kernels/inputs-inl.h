// The inputs of a step as the recurrence takes them. For every variant
//
//   u = b (t - x^T S'),   S = S' + k u^T,
//
// where the row x reads what is erased: k, beta * k, or nothing; the target t is v, or w * v; and
// the number b is beta, the time step, or 1.
#pragma once

#include <iterator>

#include "engines/cpu/kernels/lanes-inl.h"
#include "variants/beta_guard.h"

namespace deltaworks::cpu::HWY_NAMESPACE {

// Whether b is 1.
template <class Variant>
inline constexpr bool kUnitWrite = Variant::write == Write::kPerValue;
template <class Variant>
inline constexpr bool kHasBetaRow = Variant::erase == Erase::kPerKey;
template <class Variant>
inline constexpr bool kHasGateRow = Variant::decay == Decay::kPerKey;

// x[i] = f(Lanes) of x[i], over a padded buffer.
template <class F>
static inline void map_lanes(std::int64_t padded, float* x, const F& f) {
  for (std::int64_t i = 0; i < padded; i += kLanes) f(Lanes::load(x + i)).store(x + i);
}

// Numbers of the steps [r, r + count) of a head: the log of the decay, where it is one number a
// head (it is 0 after a token's first sub-step), and b. The buffers hold `count` rounded up to
// lanes.
template <class Variant>
static inline void load_scalars(const Args& args, std::int64_t r, std::int64_t count,
                                std::int64_t head, float* gate, float* b) {
  const std::int64_t padded = round_up(count, kLanes);
  const Lanes a{static_cast<double>(parameter(args, Port::kALog, head))};
  if constexpr (!kHasGateRow<Variant>) {
    const Lanes bias{static_cast<double>(parameter(args, Port::kDtBias, head))};
    for (std::int64_t i = 0; i < padded; ++i) {
      gate[i] = i < count ? scalar(args, Port::kG, step_of(args, r + i), head) : 0.0f;
    }
    if constexpr (Variant::gate == Gate::kTimeStep) {
      copy(gate, padded, b);
      map_lanes(padded, b, [&](Lanes dt) { return effective_step(args.gate, dt, bias); });
    }
    map_lanes(padded, gate, [&](Lanes g) { return effective_gate(args.gate, g, a, bias); });
    for (std::int64_t i = 0; args.dims.n > 1 && i < count; ++i) {
      if (!is_first(step_of(args, r + i))) gate[i] = 0.0f;
    }
  }
  if constexpr (kUnitWrite<Variant>) {
    for (std::int64_t i = 0; i < padded; ++i) b[i] = 1.0f;
  } else if constexpr (Variant::gate == Gate::kDecay) {
    for (std::int64_t i = 0; i < padded; ++i) {
      b[i] = i < count ? scalar(args, Port::kBeta, step_of(args, r + i), head) : 0.0f;
    }
    if (args.beta.sigmoid) {
      map_lanes(padded, b, [&](Lanes beta) { return effective_beta(args.beta, beta); });
    }
  }
}

// A step's row of `port`, the query or the key, normalised if the call asks for it. Returns the
// factor.
static inline float load_qk(const Args& args, Port port, Step step, std::int64_t head,
                            std::int64_t padded, float* to) {
  load_row(row(args, port, step, head), args.dims.K, padded, to);
  return args.l2norm ? normalise(padded, to) : 1.0f;
}

// The same where it lies, if the call has it as it is taken; else in the buffer.
static inline const float* view_qk(const Args& args, Port port, Step step, std::int64_t head,
                                   std::int64_t padded, float* buffer, float* factor = nullptr) {
  if (!args.l2norm) return view_row(row(args, port, step, head), args.dims.K, padded, buffer);
  const float norm = load_qk(args, port, step, head, padded, buffer);
  if (factor != nullptr) *factor = norm;
  return buffer;
}

// The bias of a head's gates by channel, zeros where there is none.
static inline void load_bias(const Args& args, std::int64_t head, std::int64_t padded, float* to) {
  if (args[Port::kDtBias].present()) {
    load_row(row(args, Port::kDtBias, {0, 0}, head), args.dims.K, padded, to);
  } else {
    clear(to, padded);
  }
}

// The logs of a step's decays by channel.
static inline void load_gate_row(const Args& args, Step step, std::int64_t head,
                                 std::int64_t padded, const float* bias, float* to) {
  if (!is_first(step)) return clear(to, padded);
  load_row(row(args, Port::kG, step, head), args.dims.K, padded, to);
  if (args.gate.form == GateForm::kLog) return map_lanes(padded, to, clamp_gate<Lanes>);
  const Lanes a{static_cast<double>(parameter(args, Port::kALog, head))};
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    effective_gate(args.gate, Lanes::load(to + i), a, Lanes::load(bias + i)).store(to + i);
  }
}

// The same where they lie, and then not clamped, or in the buffer.
static inline const float* view_gate_row(const Args& args, Step step, std::int64_t head,
                                         std::int64_t padded, const float* bias, float* buffer) {
  if (is_first(step) && args.gate.form == GateForm::kLog && !args.beta_guard) {
    return view_row(row(args, Port::kG, step, head), args.dims.K, padded, buffer);
  }
  load_gate_row(args, step, head, padded, bias, buffer);
  return buffer;
}

// The betas of a step by channel; `k` is the step's key row, `gate` the logs of its decays.
static inline void load_beta_row(const Args& args, Step step, std::int64_t head,
                                 std::int64_t padded, const float* k, const float* gate,
                                 float* to) {
  load_row(row(args, Port::kBeta, step, head), args.dims.K, padded, to);
  if (args.beta.sigmoid) {
    map_lanes(padded, to, [&](Lanes beta) { return effective_beta(args.beta, beta); });
  }
  if (args.beta_guard) beta_guard(args.dims.K, to, k, gate, args[Port::kK].dtype);
}

// The same where they lie, or in the buffer.
static inline const float* view_beta_row(const Args& args, Step step, std::int64_t head,
                                         std::int64_t padded, const float* k, const float* gate,
                                         float* buffer) {
  if (!args.beta.sigmoid && !args.beta_guard) {
    return view_row(row(args, Port::kBeta, step, head), args.dims.K, padded, buffer);
  }
  load_beta_row(args, step, head, padded, k, gate, buffer);
  return buffer;
}

static inline void multiply_row(const float* x, const float* y, std::int64_t padded, float* to) {
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(f32, x + i), hn::LoadU(f32, y + i)), f32, to + i);
  }
}

// The target of a step, values from v_begin on; `flat` is a buffer of as many.
template <class Variant>
static inline void load_target(const Args& args, Step step, std::int64_t head, std::int64_t v_begin,
                               std::int64_t values, std::int64_t padded, float* flat, float* to) {
  const Run v = row(args, Port::kV, step, head).after(v_begin);
  if constexpr (Variant::write != Write::kPerValue) return load_row(v, values, padded, to);
  const float* w = view_row(row(args, Port::kW, step, head).after(v_begin), values, padded, flat);
  multiply_row(w, view_row(v, values, padded, to), padded, to);
}

// Asks for part `part` of `parts` of a step's rows ahead of their use.
[[gnu::always_inline]] static inline void prefetch_step(const Args& args, Step step,
                                                        std::int64_t head, std::int64_t v_begin,
                                                        std::int64_t values, int part, int parts) {
  constexpr struct {
    Port port;
    bool has_values;
  } kRows[] = {{Port::kQ, false}, {Port::kK, false}, {Port::kV, true},     {Port::kO, true},
               {Port::kG, false}, {Port::kW, true},  {Port::kBeta, false}, {Port::kZ, true}};
  for (int i = part; i < std::ssize(kRows); i += parts) {
    const auto [port, has_values] = kRows[i];
    if (!args[port].present() || args[port].streams) continue;
    const Run run = row(args, port, step, head);
    if (has_values) {
      prefetch_row(run.after(v_begin), values);
    } else if (run.stride == 1) {
      prefetch_row(run, args.dims.K);
    }
  }
}

// x = z sigmoid(z).
static inline Lanes silu(Lanes z) { return z * sigmoid(z); }

}  // namespace deltaworks::cpu::HWY_NAMESPACE
