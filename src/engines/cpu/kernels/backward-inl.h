// Backward, chunk by chunk. For each head a forward sweep keeps the state that enters every chunk
// and the residual rows R; then a reverse sweep carries dS, the gradient of the state. The heads of
// a group run one after the other, so the sums over shared heads have one order. Formulas and
// their derivation: docs/design/gated-delta-rule.md.
#pragma once

#include "engines/cpu/kernels/gradients-inl.h"
#include "engines/cpu/kernels/inputs-inl.h"

namespace deltaworks::cpu::HWY_NAMESPACE {
namespace {  // members of classes would be weak symbols

// A sequence in chunks.
struct Chunks {
  Chunks(const Args& args, std::int64_t n)
      : begin(args.offset(n) * args.dims.n),
        end(args.offset(n + 1) * args.dims.n),
        steps(chunk_steps(args.dims)) {
    count = round_up(end - begin, steps) / steps;
  }
  Place operator[](std::int64_t c) const {
    const std::int64_t r = begin + c * steps;
    return {r, end - r < steps ? end - r : steps};
  }

  std::int64_t begin, end, steps, count;
};

// Rows of the next chunk, asked for one by one while products of this one are formed: all at once
// they would wait for each other.
class Ahead {
 public:
  Ahead(const Args& args, Place place, std::int64_t head, bool reverse)
      : args_(args), place_(place), head_(head) {
    constexpr Port kBoth[] = {Port::kK, Port::kV, Port::kG, Port::kBeta, Port::kW};
    constexpr Port kReverse[] = {Port::kQ, Port::kDO, Port::kDQ,    Port::kDK, Port::kDV,
                                 Port::kZ, Port::kDG, Port::kDBeta, Port::kDW, Port::kDZ};
    for (Port port : kBoth) add(port);
    for (Port port : kReverse) {
      if (reverse) add(port);
    }
  }

  [[gnu::always_inline]] void operator()() {
    for (int i = 0; i < kAtOnce; ++i) {
      if (row_ == place_.count || count_ == 0) return;
      const Run run = row(args_, ports_[port_], step_of(args_, place_.r + row_), head_);
      prefetch_row(run, args_.dims.K > args_.dims.V ? args_.dims.K : args_.dims.V);
      if (++port_ < count_) continue;
      port_ = 0;
      ++row_;
    }
  }

 private:
  // So that all rows have had their turn before the products end: blocks of wider vectors are
  // fewer.
  static constexpr int kAtOnce = kLanes < 16 ? 1 : 3;

  void add(Port port) {
    if (args_[port].present() && args_[port].stride[3] == 1) ports_[count_++] = port;
  }

  const Args& args_;
  Place place_;
  std::int64_t head_, row_ = 0;
  Port ports_[15];
  int count_ = 0, port_ = 0;
};

// What both sweeps need of a chunk: keys, rows that erase, numbers and decays.
template <class Variant>
static inline void load_chunk(const Args& args, Place place, std::int64_t head,
                              BackwardScratch<Variant>& x) {
  float gates[kChunk];
  load_scalars<Variant>(args, place.r, place.count, head, gates, x.b);
  for (std::int64_t i = place.count; i < kChunk; ++i) gates[i] = x.b[i] = 0.0f;
  for (std::int64_t i = 0; i < kChunk; ++i) {
    const bool inside = i < place.count;
    const Step step = step_of(args, place.r + i);
    clear(x.flat, x.K);
    if (inside) {
      load_row(row(args, Port::kK, step, head), args.dims.K, x.K, x.flat);
      if (args.l2norm) {
        x.k_norm[i] = inverse_norm(x.flat, x.K);
        scale_row(x.k_norm[i], x.flat, x.K, x.flat);
      }
    }
    put_row(x.flat, kChunk, i, x.K, x.k);
    if constexpr (kHasGateRow<Variant>) {
      clear(x.gate, x.K);
      if (inside) load_gate_row(args, step, head, x.K, x.bias, x.gate);
      if constexpr (kHasBetaRow<Variant>) {
        clear(x.row, x.K);
        if (inside) load_beta_row(args, step, head, x.K, x.flat, x.gate, x.row);
        put_row(x.row, kChunk, i, x.K, x.beta);
        multiply_row(x.row, x.flat, x.K, x.row);
        put_row(x.row, kChunk, i, x.K, x.x);
      }
      map_lanes(x.K, x.gate, [](Lanes g) { return exp_of(g); });
      x.decay.set_row(i, x.gate);
    }
  }
  x.decay.load(gates);
}

// R and U of a chunk, from its targets in x.t, the state that enters it, and L.
template <class Variant>
static inline void form_writes(const float* S, const Overlaps& L, float* R, Ahead& ahead,
                               BackwardScratch<Variant>& x) {
  if constexpr (Variant::erase == Erase::kNone) {
    copy(x.t, kChunk * x.V, R);
    scale_rows(x.b, R, kChunk, x.V, x.u);
  } else {
    x.decay.enter(x.x, x.rows);
    product<false>(kChunk, x.V, x.K, Plain{x.rows, kChunk}, S, x.dX, ahead);
    solve_residuals(x.b, L, x.dX, x.t, x.V, R, x.u);
  }
}

// S1 = through S0 + (leave * K)^T U for every chunk, keeping S0, R and L.
template <class Variant>
static inline void keep_states(const Args& args, std::int64_t n, std::int64_t head,
                               BackwardScratch<Variant>& x) {
  const Chunks chunks(args, n);
  if (chunks.count == 0) return;
  load_state(args, Port::kInitialState, n, head, x, x.states);
  for (std::int64_t c = 0; c < chunks.count; ++c) {
    const Place place = chunks[c];
    const float* S = x.states + c * x.K * x.V;
    Ahead ahead(args, c + 1 < chunks.count ? chunks[c + 1] : Place{}, head, false);
    load_chunk<Variant>(args, place, head, x);
    if constexpr (Variant::erase != Erase::kNone) {
      x.decay.scores(x.x, x.k, x.overlaps[c]);
    }
    for (std::int64_t i = 0; i < kChunk; ++i) {
      clear(x.flat, x.V);
      if (i < place.count) {
        load_target<Variant>(args, step_of(args, place.r + i), head, 0, args.dims.V, x.V, x.wide,
                             x.flat);
      }
      put_row(x.flat, kChunk, i, x.V, x.t);
    }
    form_writes(S, x.overlaps[c], x.residuals + c * kChunk * x.V, ahead, x);
    if (c + 1 == chunks.count) break;
    float* next = x.states + (c + 1) * x.K * x.V;
    x.decay.carry(S, next);
    x.decay.leave(x.k, x.rows);
    product<true>(x.K, x.V, kChunk, Transposed{x.rows, kChunk}, x.u, next, ahead);
  }
}

// Rows of the query and of the gradient with respect to what is read, scale included.
template <class Variant>
static inline void load_reads(const Args& args, Place place, std::int64_t head,
                              BackwardScratch<Variant>& x) {
  for (std::int64_t i = 0; i < kChunk; ++i) {
    const Step step = step_of(args, place.r + i);
    const bool inside = i < place.count && is_last(args, step);
    clear(x.flat, x.K);
    if (inside) {
      load_row(row(args, Port::kQ, step, head), args.dims.K, x.K, x.flat);
      if (args.l2norm) {
        x.q_norm[i] = inverse_norm(x.flat, x.K);
        scale_row(x.q_norm[i], x.flat, x.K, x.flat);
      }
    }
    put_row(x.flat, kChunk, i, x.K, x.q);
    clear(x.flat, x.V);
    if (inside && args[Port::kDO].present()) {
      load_row(row(args, Port::kDO, step, head), args.dims.V, x.V, x.flat);
      if (args[Port::kZ].present()) {
        load_row(row(args, Port::kZ, step, head), args.dims.V, x.V, x.wide);
        map_lanes(x.V, x.wide, silu);
        multiply_row(x.wide, x.flat, x.V, x.flat);
      }
      if (args.scale != 1.0f) scale_row(args.scale, x.flat, x.V, x.flat);
    }
    put_row(x.flat, kChunk, i, x.V, x.dO);
  }
}

// One chunk of the reverse sweep: from dS after it to dS before it.
template <class Variant>
static inline void reverse_chunk(const Args& args, Place place, Head head, std::int64_t begin,
                                 const float* S, const float* R, const Overlaps& L, double* sums,
                                 Ahead ahead, BackwardScratch<Variant>& x) {
  constexpr bool kErase = Variant::erase != Erase::kNone;
  const std::int64_t K = x.K, V = x.V;
  auto& decay = x.decay;
  load_chunk<Variant>(args, place, head.head, x);
  load_reads(args, place, head.head, x);
  scale_rows(x.b, R, kChunk, V, x.u);
  transpose(x.dO, kChunk, V, x.dOt);
  transpose(x.u, kChunk, V, x.ut);

  // dU = P^T dO + (leave * K) dS; the solve turns it into dX, the gradient of U's right-hand side.
  decay.scores(x.q, x.k, x.P);
  lower<true>([&](std::int64_t i, std::int64_t j) { return static_cast<float>(x.P.at(i, j)); },
              x.reads);
  product<false>(kChunk, V, kChunk, Transposed{x.reads, kChunk}, x.dO, x.dX);
  decay.leave(x.k, x.rows);
  product<true>(kChunk, V, K, Plain{x.rows, kChunk}, x.dS, x.dX, ahead);
  if constexpr (kErase) solve_transposed(x.b, L, V, x.dX);
  if (args[Port::kZ].present()) {
    // The output before its gate, for z.
    decay.enter(x.q, x.rows);
    product<false>(kChunk, V, K, Plain{x.rows, kChunk}, S, x.o);
    product<true>(kChunk, V, kChunk, Plain{x.reads, kChunk}, x.u, x.o);
  }

  // The gradients of P and L.
  exact_lower_product(kChunk, V, Plain{x.dO, kChunk}, x.ut, x.dP.x);
  if constexpr (kErase) {
    exact_lower_product(kChunk, V, Plain{x.dX, kChunk}, x.ut, x.dL.x);
    for (std::int64_t i = 0; i < kChunk; ++i) {
      for (std::int64_t j = 0; j < i; ++j) {
        x.dL.x[i * kChunk + j] *= -static_cast<double>(x.b[i]);
      }
    }
  }

  // Through the states, then from pair to pair.
  decay.begin_gradient(S, x.dS);
  decay.entering_gradient(x.q, S, x.dOt, x.dq, ahead);
  decay.leaving_gradient(x.k, x.dS, x.ut, x.dk, ahead);
  if constexpr (kErase) {
    float minus_b[kChunk];
    for (std::int64_t i = 0; i < kChunk; ++i) minus_b[i] = -x.b[i];
    scale_rows(minus_b, x.dX, kChunk, V, x.rows_v);
    transpose(x.rows_v, kChunk, V, x.dXt);
    decay.entering_gradient(x.x, S, x.dXt, x.dx, ahead);
  }
  const Pairs pairs{&x.P, &L, &x.dP, &x.dL};
  decay.template pairs_gradient<kErase>(pairs, x.q, x.k, x.x, x.dq, x.dk, x.dx);

  // dS0 = through dS + (enter * Q)^T dO - (enter * X)^T (b dX).
  decay.carry(x.dS, x.dS);
  decay.enter(x.q, x.rows);
  product<true>(K, V, kChunk, Transposed{x.rows, kChunk}, x.dO, x.dS, ahead);
  if constexpr (kErase) {
    decay.enter(x.x, x.rows);
    product<true>(K, V, kChunk, Transposed{x.rows, kChunk}, x.rows_v, x.dS, ahead);
  }
  store_gradients<Variant>(args, place, head, begin, R, sums, x);
}

template <class Variant>
static void backward(const Args& args, std::int64_t n, std::int64_t group, double* sums,
                     float* scratch) {
  BackwardScratch<Variant> x(args, scratch);
  const Chunks chunks(args, n);
  const std::int64_t size = args.group_size();
  for (std::int64_t i = 0; i < size; ++i) {
    const Head head{group * size + i, i == 0, i + 1 == size};
    if constexpr (kHasGateRow<Variant>) load_bias(args, head.head, x.K, x.bias);
    keep_states(args, n, head.head, x);
    load_state(args, Port::kDFinalState, n, head.head, x, x.dS);
    for (std::int64_t c = chunks.count - 1; c >= 0; --c) {
      const Ahead ahead(args, c > 0 ? chunks[c - 1] : Place{}, head.head, true);
      reverse_chunk(args, chunks[c], head, chunks.begin, x.states + c * x.K * x.V,
                    x.residuals + c * kChunk * x.V, x.overlaps[c], sums + args.sums * i, ahead, x);
    }
    store_state(args, Port::kDInitialState, n, head.head, x.dS, x);
  }
}

}  // namespace
}  // namespace deltaworks::cpu::HWY_NAMESPACE
