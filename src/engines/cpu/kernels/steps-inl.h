// The steps of a run as the sweeps of the forward take them: rows in fp32, numbers, and the scale C
// that the state is kept without (forward-inl.h).
#pragma once

#include "engines/cpu/kernels/inputs-inl.h"
#include "engines/cpu/kernels/sweep-inl.h"
#include "variants/traits.h"

namespace deltaworks::cpu::HWY_NAMESPACE {
namespace {  // members of classes would be weak symbols

// Steps whose rows are converted and normalised at a time, for all blocks of values.
inline constexpr std::int64_t kSteps = 16;
static_assert(kSteps % kLanes == 0);
// Of C: 11 of a gate's logs between two steps that fold it in, and no more than 16 bits lost of
// what is close to the least float.
inline constexpr float kMostScale = 65536.0f;

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
    for (float** x : {&gate, &flat, &seen}) *x = carver.take(K);
    for (float** x : {&k, &q_read, &x_read, &decay}) *x = carver.take((kSteps + 1) * K);
    t = carver.take(kSteps * V);
    wide = carver.take(V);
    size = carver.used();
  }

  std::int64_t K, V;  // padded
  float* gate;        // logs of a step's decays
  float* flat;        // one row of a state
  float* seen;        // C by channel, as a step reads
  float* k;           // rows of the run and, last, the first of the next: k, or C^-1 k by channel,
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

// C by channel after one more decay of the logs in `gate`, in x.seen. Whether all are in [1,
// kMostScale].
static inline bool advance_scales(const ForwardHead& head, Steps& x) {
  const Vec least = hn::Set(f32, 1.0f), most = hn::Set(f32, kMostScale);
  auto inside = hn::Eq(least, least);
  for (std::int64_t i = 0; i < x.K; i += kLanes) {
    const Vec d = exp_of(Lanes::load(x.gate + i)).x,
              c = hn::Mul(hn::LoadU(f32, head.scales + i), d);
    inside = hn::And(inside, hn::And(hn::Ge(c, least), hn::Le(c, most)));
    hn::StoreU(c, f32, x.seen + i);
  }
  return hn::AllTrue(f32, inside);
}

// Whether C times a row may overflow where the row times the decay alone does not.
static inline bool is_large(std::int64_t padded, const float* row, const float* gate) {
  const Vec large = hn::Set(f32, 0x1p60f), growing = hn::Set(f32, 30.0f);
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

// Numbers and rows of the step in `slot`, whose gate is in x.gate and, with kBetaRow, beta in its
// x_read.
template <bool kBetaRow>
static inline void scale_step(std::int64_t slot, ForwardHead& head, Steps& x) {
  float *k = x.k + slot * x.K, *x_read = x.x_read + slot * x.K, *q_read = x.q_read + slot * x.K;
  if (slot > 0 && (is_large(x.K, k, x.gate) || is_large(x.K, q_read, x.gate))) {
    fold_whole(slot - 1, head, x);
  }
  Numbers& numbers = x.numbers[slot];
  numbers.folds = !advance_scales(head, x);
  numbers.read_scale = numbers.write_scale = 1.0f;
  if (numbers.folds) {
    scale_row(1.0f / kMostScale, x.seen, x.K, x.decay + slot * x.K);
    fill(head.scales, x.K, kMostScale);
  } else {
    copy(x.seen, x.K, head.scales);
  }
  Vec overlap = zero();
  for (std::int64_t i = 0; i < x.K; i += kLanes) {
    const Vec read = hn::LoadU(f32, x.seen + i);
    const Vec ki = hn::LoadU(f32, k + i), qi = hn::LoadU(f32, q_read + i);
    Vec xi = hn::Mul(read, ki);
    if constexpr (kBetaRow) xi = hn::Mul(xi, hn::LoadU(f32, x_read + i));
    overlap = hn::MulAdd(qi, ki, overlap);
    hn::StoreU(xi, f32, x_read + i);
    hn::StoreU(hn::Mul(read, qi), f32, q_read + i);
    hn::StoreU(hn::Div(ki, hn::LoadU(f32, head.scales + i)), f32, k + i);
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
  float gates[kSteps], b[kSteps];
  load_scalars<Variant>(args, r, count, h, gates, b);
  if constexpr (!kHasGateRow<Variant>)
    map_lanes(round_up(count, kLanes), gates, [](Lanes g) { return exp_of(g); });
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = slot + i;
    const Step step = step_of(args, r + i);
    float *k = x.k + at * x.K, *x_read = x.x_read + at * x.K, *q_read = x.q_read + at * x.K;
    Numbers& numbers = x.numbers[at];
    load_row(row(args, Port::kK, step, h), args.dims.K, x.K, k);
    if (args.l2norm) normalise(x.K, k);
    if (is_last(args, step)) {
      load_row(row(args, Port::kQ, step, h), args.dims.K, x.K, q_read);
      if (args.l2norm) normalise(x.K, q_read);
    } else {
      clear(q_read, x.K);
    }
    numbers.b = b[i];
    if constexpr (kHasGateRow<Variant>) {
      load_gate_row(args, step, h, x.K, head.bias, x.gate);
      if constexpr (kHasBetaRow<Variant>) load_beta_row(args, step, h, x.K, k, x.gate, x_read);
      scale_step<kHasBetaRow<Variant>>(at, head, x);
    } else {
      static_assert(!kHasBetaRow<Variant>, "rows of one scale erase by their key");
      numbers.overlap = dot(q_read, k, x.K);
      advance_scale(gates[i], head, numbers);
      if (!numbers.folds) continue;
      scale_row(gates[i], k, x.K, x_read);
      scale_row(gates[i], q_read, x.K, q_read);
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
