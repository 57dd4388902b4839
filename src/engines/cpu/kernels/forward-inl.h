// Forward: the token recurrence in one sweep over the state per token. For a block of values whose
// state [K, values] stays in the first-level cache, one pass over the keys
//
//   S = decay S + k u^T,   and with the new S   k'^T S and q'^T S   of the next token (k', q'),
//
// so the next token's erased value and output need no pass of their own (docs/design/cpu.md):
//
//   u' = beta' (v' - k'^T S'),   o' = scale (q'^T S' + (q'.k') u'),   S' = decay' S.
//
// The rows that read are multiplied by decay' beforehand: a state near overflow is then read as the
// recurrence reads it, after its decay.
#pragma once

#include "engines/cpu/kernels/rows-inl.h"
#include "variants/traits.h"

namespace deltaworks::cpu::HWY_NAMESPACE {

// Vectors of values in a block: the least that hides the loads of k, k' and q' behind arithmetic,
// and the most whose accumulators and operands fit 16 registers.
inline constexpr int kVectors = 4;
inline constexpr std::int64_t kValueBlock = kVectors * kLanes;
// Tokens whose rows are converted and normalised at a time, for all blocks of values.
inline constexpr std::int64_t kTokens = 16;

static inline void sweep(std::int64_t keys, const float* k, const float* k_read,
                         const float* q_read, float decay, const float* u, float* state,
                         float* erased, float* read) {
  Vec write[kVectors], e[kVectors], r[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    write[j] = hn::LoadU(f32, u + j * kLanes);
    e[j] = r[j] = hn::Zero(f32);
  }
  const Vec d = hn::Set(f32, decay);
  for (std::int64_t i = 0; i < keys; ++i) {
    const Vec ki = hn::Set(f32, k[i]);
    const Vec ei = hn::Set(f32, k_read[i]);
    const Vec qi = hn::Set(f32, q_read[i]);
    for (int j = 0; j < kVectors; ++j) {
      float* s = state + i * kValueBlock + j * kLanes;
      const Vec updated = hn::MulAdd(ki, write[j], hn::Mul(d, hn::LoadU(f32, s)));
      hn::StoreU(updated, f32, s);
      e[j] = hn::MulAdd(ei, updated, e[j]);
      r[j] = hn::MulAdd(qi, updated, r[j]);
    }
  }
  for (int j = 0; j < kVectors; ++j) {
    hn::StoreU(e[j], f32, erased + j * kLanes);
    hn::StoreU(r[j], f32, read + j * kLanes);
  }
}

struct ForwardScratch {
  ForwardScratch(const Args& args, float* base)
      : K(round_up(args.dims.K, kLanes)), V(round_up(args.dims.V, kValueBlock)) {
    Carver carver(base);
    state = carver.take(V * args.dims.K);
    q = carver.take(K);
    k = carver.take((kTokens + 1) * K);
    q_read = carver.take((kTokens + 1) * K);
    k_read = carver.take((kTokens + 1) * K);
    v = carver.take(kTokens * V);
    o = carver.take(kTokens * V);
    erased = carver.take(V);
    read = carver.take(V);
    flat = carver.take(K);
    size = carver.used();
  }

  std::int64_t K, V;       // padded
  float* state;            // [V / kValueBlock, K, kValueBlock]
  float* q;                // one row
  float* k;                // rows of this run of tokens and, last, the first of the next
  float *k_read, *q_read;  // the same rows times their token's decay
  float *v, *o;            // rows of this run
  float *erased, *read;    // what the next token reads of the state with k and q, by value
  float* flat;             // one row of a state
  float decay[kTokens + 1], write[kTokens + 1], overlap[kTokens + 1];  // exp(g), beta, q.k
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

// Fills `slot` with token t: its rows, normalised if the call asks for it, and its scalars.
static inline void load_token(const Args& args, std::int64_t t, std::int64_t head,
                              std::int64_t slot, ForwardScratch& x) {
  float* k = x.k + slot * x.K;
  load_row(row(args, Port::kQ, t, head), args.dims.K, x.K, x.q);
  load_row(row(args, Port::kK, t, head), args.dims.K, x.K, k);
  if (args.l2norm) {
    normalise(x.K, x.q);
    normalise(x.K, k);
  }
  x.decay[slot] = exp_of(gate(args, t, head));
  x.write[slot] = beta(args, t, head);
  x.overlap[slot] = dot(x.q, k, x.K);
  scale_row(x.decay[slot], x.q, x.K, x.q_read + slot * x.K);
  scale_row(x.decay[slot], k, x.K, x.k_read + slot * x.K);
}

// The last token of a run becomes the first of the next.
static inline void move_token(std::int64_t slot, ForwardScratch& x) {
  for (float* rows : {x.k, x.k_read, x.q_read}) copy(rows + slot * x.K, x.K, rows);
  for (float* scalars : {x.decay, x.write, x.overlap}) scalars[0] = scalars[slot];
}

template <class Variant>
static void forward(const Args& args, std::int64_t n, std::int64_t head, std::int64_t v_begin,
                    std::int64_t v_end, float* scratch) {
  static_assert(Variant::decay == Decay::kScalar && Variant::erase == Erase::kScalar &&
                    Variant::write == Write::kScalar,
                "the sweep knows one decay and one beta a head");
  ForwardScratch x(args, scratch);
  const std::int64_t begin = args.offset(n), end = args.offset(n + 1);
  const std::int64_t keys = args.dims.K, values = v_end - v_begin;
  const std::int64_t padded = round_up(values, kValueBlock);
  load_state(args, n, head, v_begin, v_end, x);
  if (begin < end) {
    load_token(args, begin, head, 0, x);
    clear(x.o, kValueBlock);  // as a write row of zeros
    for (std::int64_t v = 0; v < padded; v += kValueBlock) {
      sweep(keys, x.k, x.k_read, x.q_read, 1.0f, x.o, x.state + v * keys, x.erased + v, x.read + v);
    }
  }
  for (std::int64_t t = begin; t < end; t += kTokens) {
    const std::int64_t count = end - t < kTokens ? end - t : kTokens;
    for (std::int64_t i = 0; i < count; ++i) {
      if (t + i + 1 < end) {
        load_token(args, t + i + 1, head, i + 1, x);
      } else {  // nothing is read after the last token
        clear(x.q_read + (i + 1) * x.K, x.K);
        clear(x.k_read + (i + 1) * x.K, x.K);
      }
      load_row(row(args, Port::kV, t + i, head).after(v_begin), values, padded, x.v + i * x.V);
    }
    for (std::int64_t v = 0; v < padded; v += kValueBlock) {
      for (std::int64_t i = 0; i < count; ++i) {
        if (const std::int64_t ahead = t + i + kTokens; v == 0 && ahead < end) {
          prefetch_row(row(args, Port::kQ, ahead, head), keys);
          prefetch_row(row(args, Port::kK, ahead, head), keys);
          prefetch_row(row(args, Port::kV, ahead, head).after(v_begin), values);
        }
        float u[kValueBlock];
        const Vec w = hn::Set(f32, x.write[i]), qk = hn::Set(f32, x.overlap[i]);
        const Vec scale = hn::Set(f32, args.scale);
        for (std::int64_t j = v; j < v + kValueBlock; j += kLanes) {
          const Vec target = hn::LoadU(f32, x.v + i * x.V + j);
          const Vec delta = hn::Mul(w, hn::Sub(target, hn::LoadU(f32, x.erased + j)));
          const Vec kept = hn::LoadU(f32, x.read + j);
          hn::StoreU(delta, f32, u + (j - v));
          hn::StoreU(hn::Mul(scale, hn::MulAdd(qk, delta, kept)), f32, x.o + i * x.V + j);
        }
        sweep(keys, x.k + i * x.K, x.k_read + (i + 1) * x.K, x.q_read + (i + 1) * x.K, x.decay[i],
              u, x.state + v * keys, x.erased + v, x.read + v);
      }
    }
    for (std::int64_t i = 0; i < count; ++i) {
      store_row(x.o + i * x.V, values, row(args, Port::kO, t + i, head).after(v_begin));
    }
    if (t + count < end) move_token(count, x);
  }
  store_state(args, n, head, v_begin, v_end, x);
}

}  // namespace deltaworks::cpu::HWY_NAMESPACE
