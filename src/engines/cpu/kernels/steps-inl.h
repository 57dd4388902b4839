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

// C of the step in `slot` as a number, whose decay is d. Returns what the rows that read are
// multiplied by.
static inline float advance_scale(float d, ForwardHead& head, Numbers& numbers) {
  const double seen = head.scale * d;
  numbers.folds = !(seen >= 1 && seen <= kMostScale);
  head.scale = numbers.folds ? kMostScale : seen;
  numbers.decay = static_cast<float>(seen / head.scale);
  numbers.write_scale = static_cast<float>(1 / head.scale);
  numbers.read_scale = numbers.folds ? 1.0f : static_cast<float>(seen);
  return numbers.folds ? static_cast<float>(seen) : 1.0f;
}

// The same by channel, from the logs of a step's decays, and what it makes of the step's rows: on
// entry x_read holds beta or, without kBetaRow, nothing. Returns q.k.
template <bool kBetaRow>
static inline float advance_scales(std::int64_t padded, const float* gate, float* seen,
                                   float* scales, float* k, float* x_read, float* q_read,
                                   float* decay, Numbers& numbers) {
  const Vec least = hn::Set(f32, 1.0f), most = hn::Set(f32, kMostScale);
  auto inside = hn::Eq(least, least);
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    const Vec c = hn::Mul(hn::LoadU(f32, scales + i), exp_of(Lanes::load(gate + i)).x);
    inside = hn::And(inside, hn::And(hn::Ge(c, least), hn::Le(c, most)));
    hn::StoreU(c, f32, seen + i);
  }
  numbers.folds = !hn::AllTrue(f32, inside);
  numbers.read_scale = numbers.write_scale = 1.0f;
  if (numbers.folds) scale_row(1.0f / kMostScale, seen, padded, decay);
  const auto folds = hn::Ne(hn::Set(f32, numbers.folds ? 1.0f : 0.0f), zero());
  Vec overlap = zero();
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    const Vec read = hn::LoadU(f32, seen + i), written = hn::IfThenElse(folds, most, read);
    const Vec ki = hn::LoadU(f32, k + i), qi = hn::LoadU(f32, q_read + i);
    Vec xi = hn::Mul(read, ki);
    if constexpr (kBetaRow) xi = hn::Mul(xi, hn::LoadU(f32, x_read + i));
    overlap = hn::MulAdd(qi, ki, overlap);
    hn::StoreU(written, f32, scales + i);
    hn::StoreU(xi, f32, x_read + i);
    hn::StoreU(hn::Mul(read, qi), f32, q_read + i);
    hn::StoreU(hn::Div(ki, written), f32, k + i);
  }
  return hn::GetLane(hn::SumOfLanes(f32, overlap));
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
      numbers.overlap = advance_scales<kHasBetaRow<Variant>>(
          x.K, x.gate, x.seen, head.scales, k, x_read, q_read, x.decay + at * x.K, numbers);
    } else {
      static_assert(!kHasBetaRow<Variant>, "rows of one scale erase by their key");
      numbers.overlap = dot(q_read, k, x.K);
      const float seen = advance_scale(gates[i], head, numbers);
      if (!numbers.folds) continue;
      scale_row(seen, k, x.K, x_read);
      scale_row(seen, q_read, x.K, q_read);
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
