// Forward: the recurrence in one sweep over the state per step. For a block of values whose
// state [K, values] stays in the first-level cache, one pass over the keys
//
//   S = D S + k u^T,   and with the new S   x'^T S and q'^T S   of the next step (x', q'),
//
// so the next step's erased value and output need no pass of their own (docs/design/cpu.md):
//
//   u' = b' (t' - x'^T D' S),   o' = scale (q'^T D' S + (q'.k') u').
//
// Most steps do not multiply the state by its decay: the engine keeps C^-1 S, where the scale C is
// the product of the decays since it was last folded in, one number or one a key. Then a step only
// adds C^-1 k u^T, and what reads does so times C. A step whose C would leave [1, kMostScale] is
// swept in full and folds C in. As C >= 1 what is kept is never larger than the state itself: all
// stays finite where the recurrence does. C depends on nothing but the gates so far.
#pragma once

#include <hwy/cache_control.h>

#include "engines/cpu/kernels/steps-inl.h"

namespace deltaworks::cpu::HWY_NAMESPACE {
namespace {  // members of classes would be weak symbols

// Heads of an item at most: six and eight were as fast as four, which leave more items.
inline constexpr std::int64_t kHeads = 4;

// Steps [begin, end) of sequence n for heads [h, h + heads), values [v_begin, v_end).
struct Item {
  std::int64_t n, begin, end, h, heads, v_begin, v_end;
  std::int64_t values() const { return v_end - v_begin; }
  std::int64_t padded() const { return round_up(values(), kValueBlock); }
};

// Offset of (value v, key 0) in a head's state.
static inline std::int64_t state_offset(std::int64_t v, std::int64_t keys) {
  return v / kValueBlock * keys * kValueBlock + v % kValueBlock;
}

static inline void load_state(const Args& args, const Item& item, std::int64_t h, ForwardHead& head,
                              Steps& x) {
  const std::int64_t keys = args.dims.K;
  clear(head.state, item.padded() * keys);
  if (!args[Port::kInitialState].present()) return;
  for (std::int64_t v = 0; v < item.values(); ++v) {
    load_row(state_row(args, Port::kInitialState, item.n, h, item.v_begin + v), keys, keys, x.flat);
    float* to = head.state + state_offset(v, keys);
    for (std::int64_t i = 0; i < keys; ++i) to[i * kValueBlock] = x.flat[i];
  }
}

template <class Variant>
static inline void store_state(const Args& args, const Item& item, std::int64_t h,
                               ForwardHead& head, Steps& x) {
  const std::int64_t keys = args.dims.K;
  if (!args[Port::kFinalState].present()) return;
  if constexpr (!kHasGateRow<Variant>) fill(head.scales, x.K, static_cast<float>(head.scale));
  for (std::int64_t v = 0; v < item.values(); ++v) {
    const float* from = head.state + state_offset(v, keys);
    for (std::int64_t i = 0; i < keys; ++i) x.flat[i] = from[i * kValueBlock] * head.scales[i];
    store_row(x.flat, keys, state_row(args, Port::kFinalState, item.n, h, item.v_begin + v));
  }
}

// A row of the output on its way to memory: the skipped input added, then gated by z.
static inline void store_output(const Args& args, Step step, std::int64_t h, const Item& item,
                                const ForwardHead& head, float* o, float* wide) {
  const std::int64_t values = item.values(), padded = item.padded();
  if (args[Port::kD].present()) {
    load_row(row(args, Port::kV, step, h).after(item.v_begin), values, padded, wide);
    for (std::int64_t v = 0; v < padded; v += kLanes) {
      const Vec skipped = hn::MulAdd(hn::LoadU(f32, head.skip + v), hn::LoadU(f32, wide + v),
                                     hn::LoadU(f32, o + v));
      hn::StoreU(skipped, f32, o + v);
    }
  }
  if (args[Port::kZ].present()) {
    load_row(row(args, Port::kZ, step, h).after(item.v_begin), values, padded, wide);
    for (std::int64_t v = 0; v < padded; v += kLanes) {
      (Lanes::load(o + v) * silu(Lanes::load(wide + v))).store(o + v);
    }
  }
  write_row(args[Port::kO], o, values, row(args, Port::kO, step, h).after(item.v_begin));
}

// Loads a head's state and reads it for the first step.
template <class Variant>
static void start_head(const Args& args, const Item& item, std::int64_t h, ForwardHead& head,
                       Steps& x) {
  load_state(args, item, h, head, x);
  fill(head.scales, x.K, 1.0f);
  if constexpr (kHasGateRow<Variant>) load_bias(args, h, x.K, head.bias);
  if (args[Port::kD].present()) {
    load_row(row(args, Port::kD, {0, 0}, h).after(item.v_begin), item.values(), item.padded(),
             head.skip);
  }
  if (item.begin == item.end) return;
  load_steps<Variant>(args, item.begin, 1, h, 0, head, x);
  clear(x.t, kValueBlock);  // as a write row of zeros
  for (std::int64_t v = 0; v < item.padded(); v += kValueBlock) {
    BlockRow u, erased, read;
    load_block(x.t, u);
    load_block(x.t, erased);
    sweep<Fade::kNone, Variant::erase != Erase::kNone, true>(
        args.dims.K, x.k, erase_row<Variant>(x, 0), x.q_read, nullptr, u,
        head.state + v * args.dims.K, erased, read);
    store_block(erased, head.erased + v);
    store_block(read, head.read + v);
  }
  keep_step(x, 0, head);
}

// The write u and the output of step i of a run, values [v, v + kValueBlock), from what was read.
template <class Variant>
[[gnu::always_inline]] static inline void solve_step(const Args& args, std::int64_t i,
                                                     std::int64_t v, const BlockRow& erased,
                                                     const BlockRow& read, Steps& x, BlockRow& u) {
  const Numbers& numbers = x.numbers[i];
  const Vec b = hn::Set(f32, numbers.b), qk = hn::Set(f32, numbers.overlap);
  const Vec scale = hn::Set(f32, args.scale);
  const Vec read_scale = hn::Set(f32, numbers.read_scale);
  const Vec write_scale = hn::Set(f32, numbers.write_scale);
  HWY_UNROLL(4)
  for (int j = 0; j < kVectors; ++j) {
    float* t = x.t + i * x.V + v + j * kLanes;
    Vec delta = hn::LoadU(f32, t);
    if constexpr (Variant::erase != Erase::kNone) {
      delta = hn::NegMulAdd(read_scale, erased.x[j], delta);
    }
    if constexpr (!kUnitWrite<Variant>) delta = hn::Mul(b, delta);
    const Vec kept = hn::Mul(read_scale, read.x[j]);
    u.x[j] = hn::Mul(write_scale, delta);
    hn::StoreU(hn::Mul(scale, hn::MulAdd(qk, delta, kept)), f32, t);
  }
}

// The sweep of step s of the run that begins with step r, values [v, v + kValueBlock).
template <class Variant>
[[gnu::always_inline]] static inline void sweep_step(const Args& args, std::int64_t r,
                                                     std::int64_t s, const BlockRow& u,
                                                     const Steps& x, float* state, BlockRow& erased,
                                                     BlockRow& read) {
  constexpr bool kErase = Variant::erase != Erase::kNone;
  constexpr Fade kFade = kHasGateRow<Variant> ? Fade::kRow : Fade::kNumber;
  const auto sweep_by = [&]<Fade fade, bool reads>() __attribute__((always_inline)) {
    sweep<fade, kErase, reads>(
        args.dims.K, x.k + s * x.K, erase_row<Variant>(x, s + 1), x.q_read + (s + 1) * x.K,
        kHasGateRow<Variant> ? x.decay + s * x.K : &x.numbers[s].decay, u, state, erased, read);
  };
  const bool reads = args.dims.n == 1 || is_last(args, step_of(args, r + s + 1));
  if (x.numbers[s].folds) {
    reads ? sweep_by.template operator()<kFade, true>()
          : sweep_by.template operator()<kFade, false>();
  } else {
    reads ? sweep_by.template operator()<Fade::kNone, true>()
          : sweep_by.template operator()<Fade::kNone, false>();
  }
}

// Asks for rows of the run after r, a piece of them before each sweep: over an item's heads, blocks
// of values and steps the pieces are all of them. Heads of one token follow each other, as their
// rows do in memory.
[[gnu::always_inline]] static inline void prefetch_next(const Args& args, const Item& item,
                                                        std::int64_t r, std::int64_t i,
                                                        std::int64_t step, std::int64_t v) {
  const std::int64_t turn = i * kSteps + step, later = r + kSteps + turn / item.heads;
  if (later >= item.end) return;
  prefetch_step(args, step_of(args, later), item.h + turn % item.heads, item.v_begin, item.values(),
                static_cast<int>(v / kValueBlock), static_cast<int>(item.padded() / kValueBlock));
}

// A run of at most kSteps steps, from step r on, of the item's head i.
template <class Variant>
static void advance_head(const Args& args, const Item& item, std::int64_t i, std::int64_t r,
                         ForwardHead& head, Steps& x) {
  const std::int64_t end = item.end, h = item.h + i;
  const std::int64_t values = item.values(), padded = item.padded();
  const std::int64_t count = end - r < kSteps ? end - r : kSteps;
  const std::int64_t ahead = end - (r + 1) < count ? end - (r + 1) : count;
  first_step(head, x);
  load_steps<Variant>(args, r + 1, ahead, h, 1, head, x);
  if (ahead < count) {  // nothing is read after the last step
    x.numbers[count].folds = true;
    clear(x.x_read + count * x.K, x.K);
    clear(x.q_read + count * x.K, x.K);
  }
  for (std::int64_t s = 0; s < count; ++s) {
    load_target<Variant>(args, step_of(args, r + s), h, item.v_begin, values, padded, x.wide,
                         x.t + s * x.V);
  }
  for (std::int64_t v = 0; v < padded; v += kValueBlock) {
    BlockRow erased, read, u;
    load_block(head.erased + v, erased);
    load_block(head.read + v, read);
    for (std::int64_t s = 0; s < count; ++s) {
      prefetch_next(args, item, r, i, s, v);
      solve_step<Variant>(args, s, v, erased, read, x, u);
      sweep_step<Variant>(args, r, s, u, x, head.state + v * args.dims.K, erased, read);
    }
    store_block(erased, head.erased + v);
    store_block(read, head.read + v);
  }
  for (std::int64_t s = 0; s < count; ++s) {
    const Step step = step_of(args, r + s);
    if (is_last(args, step)) store_output(args, step, h, item, head, x.t + s * x.V, x.wide);
  }
  if (r + count < end) keep_step(x, count, head);
}

// Scratch of an item of `heads` heads.
static inline std::size_t forward_floats(const Args& args, std::int64_t heads) {
  return Steps(args, nullptr).size +
         static_cast<std::size_t>(heads) * ForwardHead(args, nullptr).size;
}

// The heads of an item go through the tokens side by side: their rows of one token share pages, and
// each page costs a walk of the page table.
template <class Variant>
static void forward(const Args& args, std::int64_t n, std::int64_t h, std::int64_t count,
                    std::int64_t v_begin, std::int64_t v_end, float* scratch) {
  const Item item{
      n, args.offset(n) * args.dims.n, args.offset(n + 1) * args.dims.n, h, count, v_begin, v_end};
  Steps steps(args, scratch);
  scratch += steps.size;
  ForwardHead heads[kHeads];
  for (std::int64_t i = 0; i < count; ++i) {
    heads[i] = ForwardHead(args, scratch);
    scratch += heads[i].size;
    start_head<Variant>(args, item, h + i, heads[i], steps);
  }
  for (std::int64_t r = item.begin; r < item.end; r += kSteps) {
    for (std::int64_t i = 0; i < count; ++i) {
      advance_head<Variant>(args, item, i, r, heads[i], steps);
    }
  }
  for (std::int64_t i = 0; i < count; ++i) {
    store_state<Variant>(args, item, h + i, heads[i], steps);
  }
  hwy::FlushStream();  // what was written past the caches, before another thread is told of it
}

}  // namespace
}  // namespace deltaworks::cpu::HWY_NAMESPACE
