// Forward: the recurrence in one sweep over the state per step. For a block of values whose
// state [K, values] stays in the first-level cache, one pass over the keys
//
//   S = D S + k u^T,   and with the new S   x'^T S and q'^T S   of the next step (x', q'),
//
// so the next step's erased value and output need no pass of their own (docs/design/cpu.md):
//
//   u' = b' (t' - x'^T S'),   o' = scale (q'^T S' + (q'.k') u'),   S' = D' S.
//
// The rows that read are multiplied by D' beforehand: a state near overflow is then read as the
// recurrence reads it, after its decay.
#pragma once

#include "engines/cpu/kernels/inputs-inl.h"
#include "variants/traits.h"

namespace deltaworks::cpu::HWY_NAMESPACE {
namespace {  // members of classes would be weak symbols

// Vectors of values in a block: the least that hides the loads of k, x' and q' behind arithmetic,
// and the most whose accumulators and operands fit 16 registers.
inline constexpr int kVectors = 4;
inline constexpr std::int64_t kValueBlock = kVectors * kLanes;
// Steps whose rows are converted and normalised at a time, for all blocks of values.
inline constexpr std::int64_t kSteps = 16;
static_assert(kSteps % kLanes == 0);
// Heads of an item at most: their states stay in the second-level cache.
inline constexpr std::int64_t kHeads = 4;

// `decay` is a row, or one number for all keys; without kErase there is no x', without kRead no q'.
template <bool kDecayRow, bool kErase, bool kRead>
static inline void sweep(std::int64_t keys, const float* k, const float* x_read,
                         const float* q_read, const float* decay, const float* u, float* state,
                         float* erased, float* read) {
  Vec write[kVectors], e[kVectors], r[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    write[j] = hn::LoadU(f32, u + j * kLanes);
    e[j] = r[j] = hn::Zero(f32);
  }
  Vec d = hn::Set(f32, decay[0]);
  for (std::int64_t i = 0; i < keys; ++i) {
    if constexpr (kDecayRow) d = hn::Set(f32, decay[i]);
    const Vec ki = hn::Set(f32, k[i]);
    const Vec xi = kErase ? hn::Set(f32, x_read[i]) : d;
    const Vec qi = kRead ? hn::Set(f32, q_read[i]) : d;
    for (int j = 0; j < kVectors; ++j) {
      float* s = state + i * kValueBlock + j * kLanes;
      const Vec updated = hn::MulAdd(ki, write[j], hn::Mul(d, hn::LoadU(f32, s)));
      hn::StoreU(updated, f32, s);
      if constexpr (kErase) e[j] = hn::MulAdd(xi, updated, e[j]);
      if constexpr (kRead) r[j] = hn::MulAdd(qi, updated, r[j]);
    }
  }
  for (int j = 0; j < kVectors; ++j) {
    if constexpr (kErase) hn::StoreU(e[j], f32, erased + j * kLanes);
    if constexpr (kRead) hn::StoreU(r[j], f32, read + j * kLanes);
  }
}

struct ForwardScratch {
  ForwardScratch() = default;
  ForwardScratch(const Args& args, float* base)
      : K(round_up(args.dims.K, kLanes)), V(round_up(args.dims.V, kValueBlock)) {
    Carver carver(base);
    state = carver.take(V * args.dims.K);
    for (float** x : {&q, &beta, &gate, &bias, &flat}) *x = carver.take(K);
    for (float** x : {&k, &q_read, &x_read, &decay}) *x = carver.take((kSteps + 1) * K);
    for (float** x : {&t, &o}) *x = carver.take(kSteps * V);
    for (float** x : {&erased, &read, &skip, &wide}) *x = carver.take(V);
    size = carver.used();
  }

  std::int64_t K, V;       // padded
  float* state;            // [V / kValueBlock, K, kValueBlock]
  float *q, *beta, *gate;  // a row each
  float* bias;             // of the gates, by channel
  float* flat;             // one row of a state
  float* k;                // rows of this run of steps and, last, the first of the next
  float *x_read, *q_read;  // the same for x and q, times their step's decay
  float* decay;            // the same, where a decay is a row
  float *t, *o;            // rows of this run
  float *erased, *read;    // what the next step reads of the state with x and q, by value
  float* skip;             // D
  float* wide;             // one row of values
  float decays[kSteps + 1], b[kSteps + 1], overlap[kSteps + 1];  // exp(g), b, q.k
  std::size_t size;
};

static inline void load_state(const Args& args, std::int64_t n, std::int64_t head,
                              std::int64_t v_begin, std::int64_t v_end, ForwardScratch& x) {
  const std::int64_t keys = args.dims.K;
  clear(x.state, round_up(v_end - v_begin, kValueBlock) * keys);
  if (!args[Port::kInitialState].present()) return;
  for (std::int64_t v = 0; v < v_end - v_begin; ++v) {
    load_row(state_row(args, Port::kInitialState, n, head, v_begin + v), keys, keys, x.flat);
    float* to = x.state + v / kValueBlock * keys * kValueBlock + v % kValueBlock;
    for (std::int64_t i = 0; i < keys; ++i) to[i * kValueBlock] = x.flat[i];
  }
}

static inline void store_state(const Args& args, std::int64_t n, std::int64_t head,
                               std::int64_t v_begin, std::int64_t v_end, ForwardScratch& x) {
  const std::int64_t keys = args.dims.K;
  if (!args[Port::kFinalState].present()) return;
  for (std::int64_t v = 0; v < v_end - v_begin; ++v) {
    const float* from = x.state + v / kValueBlock * keys * kValueBlock + v % kValueBlock;
    for (std::int64_t i = 0; i < keys; ++i) x.flat[i] = from[i * kValueBlock];
    store_row(x.flat, keys, state_row(args, Port::kFinalState, n, head, v_begin + v));
  }
}

// Fills slots [slot, slot + count) with steps [r, r + count): their rows, normalised if the call
// asks for it, and their numbers.
template <class Variant>
static inline void load_steps(const Args& args, std::int64_t r, std::int64_t count,
                              std::int64_t head, std::int64_t slot, ForwardScratch& x) {
  float gates[kSteps], b[kSteps];
  load_scalars<Variant>(args, r, count, head, gates, b);
  if constexpr (!kHasGateRow<Variant>)
    map_lanes(round_up(count, kLanes), gates, [](Lanes g) { return exp_of(g); });
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = slot + i;
    const Step step = step_of(args, r + i);
    float *k = x.k + at * x.K, *x_read = x.x_read + at * x.K, *q_read = x.q_read + at * x.K;
    load_row(row(args, Port::kK, step, head), args.dims.K, x.K, k);
    if (args.l2norm) normalise(x.K, k);
    x.b[at] = b[i];
    float* decay = x.decay + at * x.K;
    if constexpr (kHasGateRow<Variant>) {
      load_gate_row(args, step, head, x.K, x.bias, x.gate);
      copy(x.gate, x.K, decay);
      map_lanes(x.K, decay, [](Lanes g) { return exp_of(g); });
    } else {
      x.decays[at] = gates[i];
    }
    const auto after_decay = [&](const float* from, float* to) {
      if constexpr (kHasGateRow<Variant>) {
        multiply_row(decay, from, x.K, to);
      } else {
        scale_row(x.decays[at], from, x.K, to);
      }
    };
    if constexpr (Variant::erase == Erase::kScalar) after_decay(k, x_read);
    if constexpr (kHasBetaRow<Variant>) {
      load_beta_row(args, step, head, x.K, k, x.gate, x.beta);
      multiply_row(x.beta, k, x.K, x_read);
      after_decay(x_read, x_read);
    }
    x.overlap[at] = 0.0f;
    if (!is_last(args, step)) continue;
    load_row(row(args, Port::kQ, step, head), args.dims.K, x.K, x.q);
    if (args.l2norm) normalise(x.K, x.q);
    x.overlap[at] = dot(x.q, k, x.K);
    after_decay(x.q, q_read);
  }
}

// The last step of a run becomes the first of the next.
static inline void move_step(std::int64_t slot, ForwardScratch& x) {
  for (float* rows : {x.k, x.x_read, x.q_read, x.decay}) copy(rows + slot * x.K, x.K, rows);
  for (float* scalars : {x.decays, x.b, x.overlap}) scalars[0] = scalars[slot];
}

// Asks for the rows of a step ahead of their use.
[[gnu::always_inline]] static inline void prefetch_step(const Args& args, Step step,
                                                        std::int64_t head, std::int64_t v_begin,
                                                        std::int64_t values) {
  for (Port port : {Port::kQ, Port::kK}) {
    prefetch_row(row(args, port, step, head), args.dims.K);
  }
  prefetch_row(row(args, Port::kV, step, head).after(v_begin), values);
  for (Port port : {Port::kG, Port::kBeta, Port::kW}) {
    if (args[port].present() && args[port].stride[3] == 1) {
      prefetch_row(row(args, port, step, head), args.dims.K);
    }
  }
}

// A row of the output on its way to memory: the skipped input added, then gated by z.
static inline void store_output(const Args& args, Step step, std::int64_t head,
                                std::int64_t v_begin, std::int64_t values, std::int64_t padded,
                                float* o, ForwardScratch& x) {
  if (args[Port::kD].present()) {
    load_row(row(args, Port::kV, step, head).after(v_begin), values, padded, x.wide);
    for (std::int64_t v = 0; v < padded; v += kLanes) {
      const Vec skipped =
          hn::MulAdd(hn::LoadU(f32, x.skip + v), hn::LoadU(f32, x.wide + v), hn::LoadU(f32, o + v));
      hn::StoreU(skipped, f32, o + v);
    }
  }
  if (args[Port::kZ].present()) {
    load_row(row(args, Port::kZ, step, head).after(v_begin), values, padded, x.wide);
    for (std::int64_t v = 0; v < padded; v += kLanes) {
      (Lanes::load(o + v) * silu(Lanes::load(x.wide + v))).store(o + v);
    }
  }
  store_row(o, values, row(args, Port::kO, step, head).after(v_begin));
}

// Steps [begin, end) of a sequence, values [v_begin, v_end): what an item takes.
struct Span {
  std::int64_t n, begin, end, v_begin, v_end;
  std::int64_t values() const { return v_end - v_begin; }
  std::int64_t padded() const { return round_up(values(), kValueBlock); }
};

// Loads a head's state and reads it for the first step.
template <class Variant>
static void start_head(const Args& args, const Span& span, std::int64_t head, ForwardScratch& x) {
  load_state(args, span.n, head, span.v_begin, span.v_end, x);
  if constexpr (kHasGateRow<Variant>) load_bias(args, head, x.K, x.bias);
  if (args[Port::kD].present()) {
    load_row(row(args, Port::kD, {0, 0}, head).after(span.v_begin), span.values(), span.padded(),
             x.skip);
  }
  if (span.begin == span.end) return;
  load_steps<Variant>(args, span.begin, 1, head, 0, x);
  if (!is_last(args, step_of(args, span.begin))) clear(x.q_read, x.K);
  clear(x.o, kValueBlock);  // as a write row of zeros
  const float one = 1.0f;   // as a decay
  for (std::int64_t v = 0; v < span.padded(); v += kValueBlock) {
    sweep<false, Variant::erase != Erase::kNone, true>(args.dims.K, x.k, x.x_read, x.q_read, &one,
                                                       x.o, x.state + v * args.dims.K, x.erased + v,
                                                       x.read + v);
  }
}

// A run of at most kSteps steps of a head, from step r on.
template <class Variant>
static void advance_head(const Args& args, const Span& span, std::int64_t head, std::int64_t r,
                         ForwardScratch& x) {
  constexpr bool kErase = Variant::erase != Erase::kNone;
  constexpr bool kDecayRow = kHasGateRow<Variant>;
  const std::int64_t keys = args.dims.K, end = span.end;
  const std::int64_t values = span.values(), padded = span.padded();
  const std::int64_t count = end - r < kSteps ? end - r : kSteps;
  const std::int64_t ahead = end - (r + 1) < count ? end - (r + 1) : count;
  load_steps<Variant>(args, r + 1, ahead, head, 1, x);
  if (ahead < count) {  // nothing is read after the last step
    clear(x.q_read + count * x.K, x.K);
    clear(x.x_read + count * x.K, x.K);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    load_target<Variant>(args, step_of(args, r + i), head, span.v_begin, values, padded, x.wide,
                         x.t + i * x.V);
  }
  for (std::int64_t v = 0; v < padded; v += kValueBlock) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (const std::int64_t later = r + i + kSteps; v == 0 && later < end) {
        prefetch_step(args, step_of(args, later), head, span.v_begin, values);
      }
      float u[kValueBlock];
      const Vec b = hn::Set(f32, x.b[i]), qk = hn::Set(f32, x.overlap[i]);
      const Vec scale = hn::Set(f32, args.scale);
      for (std::int64_t j = v; j < v + kValueBlock; j += kLanes) {
        Vec delta = hn::LoadU(f32, x.t + i * x.V + j);
        if constexpr (kErase) delta = hn::Sub(delta, hn::LoadU(f32, x.erased + j));
        if constexpr (!kUnitWrite<Variant>) delta = hn::Mul(b, delta);
        const Vec kept = hn::LoadU(f32, x.read + j);
        hn::StoreU(delta, f32, u + (j - v));
        hn::StoreU(hn::Mul(scale, hn::MulAdd(qk, delta, kept)), f32, x.o + i * x.V + j);
      }
      const float* decay = kDecayRow ? x.decay + i * x.K : x.decays + i;
      const auto update = args.dims.n == 1 || is_last(args, step_of(args, r + i + 1))
                              ? sweep<kDecayRow, kErase, true>
                              : sweep<kDecayRow, kErase, false>;
      update(keys, x.k + i * x.K, x.x_read + (i + 1) * x.K, x.q_read + (i + 1) * x.K, decay, u,
             x.state + v * keys, x.erased + v, x.read + v);
    }
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const Step step = step_of(args, r + i);
    if (!is_last(args, step)) continue;
    store_output(args, step, head, span.v_begin, values, padded, x.o + i * x.V, x);
  }
  if (r + count < end) move_step(count, x);
}

// Heads [head, head + count) go through the tokens side by side: their rows of one token share
// pages, and each page costs a walk of the page table.
template <class Variant>
static void forward(const Args& args, std::int64_t n, std::int64_t head, std::int64_t count,
                    std::int64_t v_begin, std::int64_t v_end, float* scratch) {
  const Span span{n, args.offset(n) * args.dims.n, args.offset(n + 1) * args.dims.n, v_begin,
                  v_end};
  ForwardScratch heads[kHeads];
  for (std::int64_t i = 0; i < count; ++i) {
    heads[i] = ForwardScratch(args, scratch);
    scratch += heads[i].size;
    start_head<Variant>(args, span, head + i, heads[i]);
  }
  for (std::int64_t r = span.begin; r < span.end; r += kSteps) {
    for (std::int64_t i = 0; i < count; ++i) {
      advance_head<Variant>(args, span, head + i, r, heads[i]);
    }
  }
  for (std::int64_t i = 0; i < count; ++i) {
    store_state(args, n, head + i, v_begin, v_end, heads[i]);
  }
}

}  // namespace
}  // namespace deltaworks::cpu::HWY_NAMESPACE
