// The steps of a run as the sweeps of the forward take them: rows in fp32, numbers, and the scale C
// that the state is kept without (forward-inl.h).
#pragma once

#include <utility>

#include "engines/cpu/kernels/inputs-inl.h"
#include "engines/cpu/kernels/sweep-inl.h"
#include "variants/traits.h"

namespace deltaworks::cpu::HWY_NAMESPACE {
namespace {  // members of classes would be weak symbols

// Steps whose rows are converted and normalised at a time, for all blocks of values.
inline constexpr std::int64_t kSteps = 8;
// Of C: 11 of a gate's logs between two steps that fold it in, and no more than 16 bits lost of
// what is close to the least float.
inline constexpr float kMostScale = 65536.0f;

// A step's rows before C; `gate`: logs of its decays, where they are by channel, as `beta`.
struct StepRows {
  const float *key, *query, *gate, *beta;
};

struct Numbers {
  float b, overlap;               // b, q.k
  float read_scale, write_scale;  // what is read and what is written times them
  bool folds;                     // whether the step folds C in,
  float decay;                    // where C is a number by this
};

// What a head keeps from run to run.
struct ForwardHead {
  ForwardHead() = default;
  ForwardHead(const Args& args, float* base) {
    const std::int64_t K = round_up(args.dims.K, kLanes), V = round_up(args.dims.V, kValueBlock);
    Carver carver(base);
    state = carver.take(V * args.dims.K);
    for (float** x : {&bias, &scales, &k, &x_read, &q_read, &decay}) *x = carver.take(K);
    for (float** x : {&erased, &read, &skip}) *x = carver.take(V);
    size = carver.used();
  }

  float* state;                        // C^-1 S: [V / kValueBlock, K, kValueBlock]
  float* bias;                         // of the gates, by channel
  float* scales;                       // C by channel, after the last step that was loaded
  double scale = 1;                    // C as one number
  float *k, *x_read, *q_read, *decay;  // rows of the next step
  Numbers next;                        // and its numbers
  float *erased, *read;                // what it reads of the state with x and q, by value
  float* skip;                         // D
  std::size_t size;
};

// A run of steps, for one head at a time.
struct Steps {
  Steps(const Args& args, float* base)
      : K(round_up(args.dims.K, kLanes)), V(round_up(args.dims.V, kValueBlock)) {
    Carver carver(base);
    for (float** x : {&key, &query, &beta, &gate, &flat, &seen}) *x = carver.take(K);
    for (float** x : {&k, &q_read, &x_read, &decay}) *x = carver.take((kSteps + 1) * K);
    t = carver.take(kSteps * V);
    wide = carver.take(V);
    size = carver.used();
  }

  std::int64_t K, V;          // padded
  float *key, *query, *beta;  // a step's rows before C, by channel
  float* gate;                // logs of its decays
  float* flat;                // one row of a state
  float* seen;                // C by channel, as a step reads
  float* k;  // rows of the run and, last, the first of the next: k, or C^-1 k by channel,
  float *x_read, *q_read;  // C x and C q where C is a row, or the step folds it in; else x and q,
  float* decay;            // what the state is multiplied by where C is a row and folded in
  Numbers numbers[kSteps + 1];
  float* t;     // targets of the run, then its outputs
  float* wide;  // one row of values
  std::size_t size;
};

// C of a step as a number, whose decay is d. Where the step folds, its rows that read are
// multiplied by d, and by the C before it only what they have read: neither product is larger than
// what the recurrence forms.
static inline void advance_scale(float d, ForwardHead& head, Numbers& numbers) {
  const double seen = head.scale * d;
  numbers.folds = !(seen >= 1 && seen <= kMostScale);
  numbers.read_scale = static_cast<float>(numbers.folds ? head.scale : seen);
  head.scale = numbers.folds ? kMostScale : seen;
  numbers.decay = static_cast<float>(seen / head.scale);
  numbers.write_scale = static_cast<float>(1 / head.scale);
}

// C by channel after one more decay of the logs `gate`, in x.seen. Whether all are in [1,
// kMostScale].
static inline bool advance_scales(const float* gate, const ForwardHead& head, Steps& x) {
  const Vec least = hn::Set(f32, 1.0f), most = hn::Set(f32, kMostScale);
  auto inside = hn::Eq(least, least);
  for (std::int64_t i = 0; i < x.K; i += kLanes) {
    const Vec d = exp_of(clamp_gate(Lanes::load(gate + i))).x,
              c = hn::Mul(hn::LoadU(f32, head.scales + i), d);
    inside = hn::And(inside, hn::And(hn::Ge(c, least), hn::Le(c, most)));
    hn::StoreU(c, f32, x.seen + i);
  }
  return hn::AllTrue(f32, inside);
}

// Whether C times a row may overflow where the row times the decay alone does not.
inline constexpr float kLarge = 0x1p60f;
static inline bool is_large(std::int64_t padded, const float* row, const float* gate) {
  const Vec large = hn::Set(f32, kLarge), growing = hn::Set(f32, 30.0f);
  auto any = hn::Lt(large, zero());
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    any = hn::Or(any, hn::Gt(hn::Abs(hn::LoadU(f32, row + i)), large));
    any = hn::Or(any, hn::Gt(hn::LoadU(f32, gate + i), growing));
  }
  return !hn::AllFalse(f32, any);
}

// Makes the step in `slot` fold C in altogether, so that it is 1 after it.
static inline void fold_whole(std::int64_t slot, ForwardHead& head, Steps& x) {
  float *k = x.k + slot * x.K, *decay = x.decay + slot * x.K;
  if (x.numbers[slot].folds) {
    scale_row(kMostScale, decay, x.K, decay);
  } else {
    copy(head.scales, x.K, decay);
  }
  multiply_row(head.scales, k, x.K, k);
  fill(head.scales, x.K, 1.0f);
  x.numbers[slot].folds = true;
}

// The rows in `slot` of a step, channels [i, i + kLanes): it reads
// the state times `seen` and leaves it times 1 / `scale`. Returns q k.
template <bool kBetaRow>
[[gnu::always_inline]] static inline Vec put_rows(const StepRows& step, std::int64_t slot,
                                                  std::int64_t i, Vec seen, Vec scale, Vec overlap,
                                                  Steps& x) {
  const Vec key = hn::LoadU(f32, step.key + i), query = hn::LoadU(f32, step.query + i);
  Vec erase = hn::Mul(seen, key);
  if constexpr (kBetaRow) erase = hn::Mul(erase, hn::LoadU(f32, step.beta + i));
  hn::StoreU(erase, f32, x.x_read + slot * x.K + i);
  hn::StoreU(hn::Mul(seen, query), f32, x.q_read + slot * x.K + i);
  hn::StoreU(hn::Div(key, scale), f32, x.k + slot * x.K + i);
  return hn::MulAdd(query, key, overlap);
}

// One pass over the channels where C stays in range and no number is out of the common: then the
// step does not fold. Otherwise false, and nothing has happened.
template <bool kBetaRow>
static inline bool scale_plain_step(const StepRows& step, std::int64_t slot, ForwardHead& head,
                                    Steps& x) {
  const Vec least = hn::Set(f32, 1.0f), most = hn::Set(f32, kMostScale);
  const Vec near = hn::Set(f32, kNear), large = hn::Set(f32, kLarge);
  auto plain = hn::Eq(least, least);
  Vec overlap = zero();
  for (std::int64_t i = 0; i < x.K; i += kLanes) {
    const Vec gate = hn::LoadU(f32, step.gate + i);
    const Vec seen = hn::Mul(hn::LoadU(f32, head.scales + i), exp_near(gate));
    plain = hn::And(plain, hn::Le(hn::Abs(gate), near));
    plain = hn::And(plain, hn::And(hn::Ge(seen, least), hn::Le(seen, most)));
    plain = hn::And(plain, hn::Le(hn::Max(hn::Abs(hn::LoadU(f32, step.key + i)),
                                          hn::Abs(hn::LoadU(f32, step.query + i))),
                                  large));
    overlap = put_rows<kBetaRow>(step, slot, i, seen, seen, overlap, x);
    hn::StoreU(seen, f32, x.seen + i);
  }
  if (!hn::AllTrue(f32, plain)) return false;
  std::swap(head.scales, x.seen);
  x.numbers[slot].folds = false;
  x.numbers[slot].overlap = hn::GetLane(hn::SumOfLanes(f32, overlap));
  return true;
}

// The same for any step.
template <bool kBetaRow>
static inline void scale_any_step(const StepRows& step, std::int64_t slot, ForwardHead& head,
                                  Steps& x) {
  if (slot > 0 && (is_large(x.K, step.key, step.gate) || is_large(x.K, step.query, step.gate))) {
    fold_whole(slot - 1, head, x);
  }
  Numbers& numbers = x.numbers[slot];
  numbers.folds = !advance_scales(step.gate, head, x);
  if (numbers.folds) {
    scale_row(1.0f / kMostScale, x.seen, x.K, x.decay + slot * x.K);
    fill(head.scales, x.K, kMostScale);
  } else {
    copy(x.seen, x.K, head.scales);
  }
  Vec overlap = zero();
  for (std::int64_t i = 0; i < x.K; i += kLanes) {
    overlap = put_rows<kBetaRow>(step, slot, i, hn::LoadU(f32, x.seen + i),
                                 hn::LoadU(f32, head.scales + i), overlap, x);
  }
  numbers.overlap = hn::GetLane(hn::SumOfLanes(f32, overlap));
}

// The row that reads what a step erases: its key itself, or one made for it.
template <class Variant>
static inline const float* erase_row(const Steps& x, std::int64_t slot) {
  const bool key =
      Variant::erase == Erase::kScalar && !kHasGateRow<Variant> && !x.numbers[slot].folds;
  return (key ? x.k : x.x_read) + slot * x.K;
}

// Fills slots [slot, slot + count) with steps [r, r + count) of head h: their rows, normalised if
// the call asks for it, and their numbers.
template <class Variant>
static inline void load_steps(const Args& args, std::int64_t r, std::int64_t count, std::int64_t h,
                              std::int64_t slot, ForwardHead& head, Steps& x) {
  float gates[round_up(kSteps, kLanes)], b[round_up(kSteps, kLanes)];
  load_scalars<Variant>(args, r, count, h, gates, b);
  if constexpr (!kHasGateRow<Variant>)
    map_lanes(round_up(count, kLanes), gates, [](Lanes g) { return exp_of(g); });
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = slot + i;
    const Step step = step_of(args, r + i);
    Numbers& numbers = x.numbers[at];
    numbers.b = b[i];
    if constexpr (kHasGateRow<Variant>) {
      StepRows rows;
      rows.key = view_qk(args, Port::kK, step, h, x.K, x.key);
      rows.query = view_qk(args, Port::kQ, step, h, x.K, x.query);
      rows.gate = view_gate_row(args, step, h, x.K, head.bias, x.gate);
      if constexpr (kHasBetaRow<Variant>) {
        rows.beta = view_beta_row(args, step, h, x.K, rows.key, rows.gate, x.beta);
      }
      numbers.read_scale = numbers.write_scale = 1.0f;
      if (!scale_plain_step<kHasBetaRow<Variant>>(rows, at, head, x)) {
        scale_any_step<kHasBetaRow<Variant>>(rows, at, head, x);
      }
    } else {
      static_assert(!kHasBetaRow<Variant>, "rows of one scale erase by their key");
      float *k = x.k + at * x.K, *q = x.q_read + at * x.K;
      load_qk(args, Port::kK, step, h, x.K, k);
      if (is_last(args, step)) {
        load_qk(args, Port::kQ, step, h, x.K, q);
      } else {
        clear(q, x.K);
      }
      numbers.overlap = dot(q, k, x.K);
      advance_scale(gates[i], head, numbers);
      if (!numbers.folds) continue;
      scale_row(gates[i], k, x.K, x.x_read + at * x.K);
      scale_row(gates[i], q, x.K, q);
    }
  }
}

// The step in `slot` to or from the head that keeps it until its next run.
static inline void keep_step(const Steps& x, std::int64_t slot, ForwardHead& head) {
  copy(x.k + slot * x.K, x.K, head.k);
  copy(x.x_read + slot * x.K, x.K, head.x_read);
  copy(x.q_read + slot * x.K, x.K, head.q_read);
  copy(x.decay + slot * x.K, x.K, head.decay);
  head.next = x.numbers[slot];
}
static inline void first_step(const ForwardHead& head, Steps& x) {
  copy(head.k, x.K, x.k);
  copy(head.x_read, x.K, x.x_read);
  copy(head.q_read, x.K, x.q_read);
  copy(head.decay, x.K, x.decay);
  x.numbers[0] = head.next;
}

}  // namespace
}  // namespace deltaworks::cpu::HWY_NAMESPACE
