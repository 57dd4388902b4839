// Backward, chunk by chunk. For each head a forward sweep keeps the state that enters every chunk
// and the residual rows R; then a reverse sweep carries dS, the gradient of the state. The heads of
// a group run one after the other, so the sums over shared heads have one order. Formulas and
// their derivation: docs/design/gated-delta-rule.md.
#pragma once

#include <hwy/cache_control.h>

#include <initializer_list>

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

// What a sweep is going to need of a chunk: rows that it loads or stores, those of v if it needs
// `values`, and so many floats of what its head keeps, in pieces of about a row; and how often its
// `products` products with a state call what they are to do meanwhile.
struct Wanted {
  static constexpr std::int64_t kPiece = 128;  // floats

  Wanted(const Args& args, std::initializer_list<Port> rows, bool values, std::int64_t floats,
         int products)
      : kept(floats) {
    const Dims& dims = args.dims;
    elements = dims.K > dims.V ? dims.K : dims.V;
    for (Port port : rows) {
      if (port == Port::kV && !values) continue;
      const Tensor& x = args[port];
      if (x.present() && x.stride[3] == 1 && !x.streams) ports[count++] = port;
    }
    pieces = count * kChunk + kept / kPiece;
    // Once a block and kRun terms, at least.
    const std::int64_t panels = dims.K * dims.V * kChunk / (kPanel * kPanel * kRun);
    calls = products * round_up(kPanel, kTallRows) / kTallRows * (panels > 0 ? panels : 1);
  }

  Port ports[16];
  int count = 0;
  std::int64_t elements;  // of a row
  std::int64_t kept, pieces, calls;
};

// Asks for what the next chunk needs while products of this one are formed, evenly: all at once
// they would wait for each other, and the products for them.
class Ahead {
 public:
  // `kept`: the first of the floats that the head keeps. Without rows of a place, for nothing.
  Ahead(const Args& args, const Wanted& wanted, Place place, std::int64_t head, const float* kept)
      : args_(args), wanted_(wanted), place_(place), head_(head), kept_(kept) {
    if (wanted.count == 0) place_.count = 0;
    if (place.count > 0) floats_ = wanted.kept;
  }

  [[gnu::always_inline]] void operator()() {
    credit_ += wanted_.pieces;
    for (; credit_ >= wanted_.calls; credit_ -= wanted_.calls) ask();
  }

 private:
  [[gnu::always_inline]] void ask() {
    if (row_ < place_.count) {
      const Step step = step_of(args_, place_.r + row_);
      prefetch_row(row(args_, wanted_.ports[port_], step, head_), wanted_.elements);
      if (++port_ < wanted_.count) return;
      port_ = 0;
      ++row_;
    } else if (floats_ > 0) {
      for (std::int64_t i = 0; i < Wanted::kPiece; i += 16) __builtin_prefetch(kept_ + i);
      kept_ += Wanted::kPiece;
      floats_ -= Wanted::kPiece;
    }
  }

  const Args& args_;
  const Wanted& wanted_;
  Place place_;
  std::int64_t head_, row_ = 0, credit_ = 0, floats_ = 0;
  int port_ = 0;
  const float* kept_;
};

// What both sweeps need of a chunk: keys, rows that erase, numbers and decays.
template <class Variant>
static inline void load_chunk(const Args& args, Place place, std::int64_t head, const float* bias,
                              BackwardScratch<Variant>& x) {
  float gates[kChunk];
  load_scalars<Variant>(args, place.r, place.count, head, gates, x.b);
  for (std::int64_t i = place.count; i < kChunk; ++i) gates[i] = x.b[i] = 0.0f;
  for (std::int64_t i = 0; i < kChunk; ++i) {
    const bool inside = i < place.count;
    const Step step = step_of(args, place.r + i);
    if (!inside) clear(x.flat, x.K);
    const float* k = x.flat;
    if (inside) k = view_qk(args, Port::kK, step, head, x.K, x.flat, x.k_norm + i);
    put_row(k, kChunk, i, x.K, x.k);
    if constexpr (kHasGateRow<Variant>) {
      if (!inside) clear(x.gate, x.K);
      const float* gate = x.gate;
      if (inside) gate = view_gate_row(args, step, head, x.K, bias, x.gate);
      if constexpr (kHasBetaRow<Variant>) {
        if (!inside) clear(x.row, x.K);
        const float* beta = x.row;
        if (inside) beta = view_beta_row(args, step, head, x.K, k, gate, x.row);
        put_row(beta, kChunk, i, x.K, x.beta);
        multiply_row(beta, k, x.K, x.row);
        put_row(x.row, kChunk, i, x.K, x.x);
      }
      x.decay.set_row(i, gate);
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
    x.decay.enter(kAllRows, x.x, x.rows);
    product<Alone>(kChunk, x.V, x.K, Plain{x.rows, kChunk}, S, x.dX, ahead);
    solve_residuals(x.b, L, x.dX, x.t, x.V, R, x.u);
  }
}

// S1 = through S0 + (leave * K)^T U for chunk c, keeping R and L, and S1 for the chunk after it.
template <class Variant>
static inline void keep_chunk(const Args& args, const Chunks& chunks, std::int64_t c,
                              std::int64_t head, const BackwardHead<Variant>& own, Ahead ahead,
                              BackwardScratch<Variant>& x) {
  const Place place = chunks[c];
  load_chunk<Variant>(args, place, head, own.bias, x);
  if constexpr (Variant::erase != Erase::kNone) x.decay.scores(kAllRows, x.x, x.k, own.overlap(c));
  for (std::int64_t i = 0; i < kChunk; ++i) {
    clear(x.flat, x.V);
    if (i < place.count) {
      load_target<Variant>(args, step_of(args, place.r + i), head, 0, args.dims.V, x.V, x.wide,
                           x.flat);
    }
    put_row(x.flat, kChunk, i, x.V, x.t);
  }
  form_writes(own.state(c), own.overlap(c), own.residual(c), ahead, x);
  if (c + 1 == chunks.count) return;
  x.decay.leave(x.k, x.rows);
  product(x.K, x.V, kChunk, Transposed{x.rows, kChunk}, x.u, own.state(c + 1), ahead,
          x.decay.carry(own.state(c)));
}

// Rows of the query and of the gradient with respect to what is read, scale included.
template <class Variant>
static inline void load_reads(const Args& args, Place place, const Rows& reads, std::int64_t head,
                              BackwardScratch<Variant>& x) {
  for (std::int64_t m = 0; m < reads.padded; ++m) {
    const Step step = step_of(args, place.r + reads.at(m));
    const bool inside = m < reads.count && reads.at(m) < place.count;
    if (!inside) clear(x.flat, x.K);
    const float* q = x.flat;
    if (inside) q = view_qk(args, Port::kQ, step, head, x.K, x.flat, x.q_norm + m);
    put_row(q, reads.padded, m, x.K, x.q);
    if (!inside || !args[Port::kDO].present()) {
      clear(x.flat, x.V);
    } else {
      const float* dO = view_row(row(args, Port::kDO, step, head), args.dims.V, x.V, x.flat);
      scale_row(args.scale, dO, x.V, x.flat);
      if (args[Port::kZ].present()) {
        load_row(row(args, Port::kZ, step, head), args.dims.V, x.V, x.wide);
        map_lanes(x.V, x.wide, silu);
        multiply_row(x.wide, x.flat, x.V, x.flat);
      }
    }
    put_row(x.flat, reads.padded, m, x.V, x.dO);
  }
}

// Chunk c of the reverse sweep: from dS after it to dS before it.
template <class Variant>
static inline void reverse_chunk(const Args& args, const Chunks& chunks, std::int64_t c, Head head,
                                 const BackwardHead<Variant>& own, double* sums, Ahead ahead,
                                 BackwardScratch<Variant>& x) {
  constexpr bool kErase = Variant::erase != Erase::kNone;
  const std::int64_t K = x.K, V = x.V;
  const Place place = chunks[c];
  const float *S = own.state(c), *R = own.residual(c);
  const Overlaps& L = own.overlap(c);
  float *dS = own.dS, *minus_bdX = x.t;  // x.t is free in this sweep
  const Rows reads = rows_read(args, place.r);
  auto& decay = x.decay;
  load_chunk<Variant>(args, place, head.head, own.bias, x);
  load_reads(args, place, reads, head.head, x);
  scale_rows(x.b, R, kChunk, V, x.u);
  transpose(x.dO, reads.padded, V, x.dOt);
  transpose(x.u, kChunk, V, x.ut);

  // dU = P^T dO + (leave * K) dS; the solve turns it into dX, the gradient of U's right-hand side.
  decay.scores(reads, x.q, x.k, x.P);
  lower<true>(
      reads, [&](std::int64_t m, std::int64_t j) { return static_cast<float>(x.P.at(m, j)); },
      x.reads);
  product<Alone>(kChunk, V, reads.padded, Transposed{x.reads, reads.padded}, x.dO, x.dX);
  decay.leave(x.k, x.rows);
  product<Sum>(kChunk, V, K, Plain{x.rows, kChunk}, dS, x.dX, ahead);
  if constexpr (kErase) solve_transposed(x.b, L, V, x.dX);
  if (args[Port::kZ].present()) {
    // The output before its gate, for z.
    decay.enter(reads, x.q, x.rows);
    product<Alone>(reads.padded, V, K, Plain{x.rows, reads.padded}, S, x.o);
    product<Sum>(reads.padded, V, kChunk, Plain{x.reads, reads.padded}, x.u, x.o);
  }

  // The gradients of P and L.
  exact_lower_product(reads, V, x.dO, x.ut, x.dP.x);
  if constexpr (kErase) {
    exact_lower_product(kAllRows, V, x.dX, x.ut, x.dL.x);
    for (std::int64_t i = 0; i < kChunk; ++i) {
      for (std::int64_t j = 0; j < i; ++j) {
        x.dL.x[i * kChunk + j] *= -static_cast<double>(x.b[i]);
      }
    }
  }

  // Through the states, then from pair to pair.
  decay.begin_gradient(S, dS);
  decay.entering_gradient(reads, x.q, S, x.dOt, x.dq, ahead);
  decay.leaving_gradient(x.k, dS, x.ut, x.dk, ahead);
  if constexpr (kErase) {
    float minus_b[kChunk];
    for (std::int64_t i = 0; i < kChunk; ++i) minus_b[i] = -x.b[i];
    scale_rows(minus_b, x.dX, kChunk, V, minus_bdX);
    transpose(minus_bdX, kChunk, V, x.ut);
    decay.entering_gradient(kAllRows, x.x, S, x.ut, x.dx, ahead);
  }
  const Pairs pairs{&x.P, &L, &x.dP, &x.dL};
  decay.template pairs_gradient<kErase>(reads, pairs, x.q, x.k, x.x, x.dq, x.dk, x.dx);

  // dS0 = through dS + (enter * Q)^T dO - (enter * X)^T (b dX).
  decay.enter(reads, x.q, x.rows);
  product(K, V, reads.padded, Transposed{x.rows, reads.padded}, x.dO, dS, ahead, decay.carry(dS));
  if constexpr (kErase) {
    decay.enter(kAllRows, x.x, x.rows);
    product<Sum>(K, V, kChunk, Transposed{x.rows, kChunk}, minus_bdX, dS, ahead);
  }
  store_gradients<Variant>(args, place, reads, head, chunks.begin, R, own.bias, sums, x);
}

// Heads [head, head + count) of a sequence, whole groups. The heads of a batch go through the
// tokens side by side; of each token a group's heads come one after the other.
template <class Variant>
static void backward(const Args& args, std::int64_t n, std::int64_t head, std::int64_t count,
                     double* sums, float* scratch) {
  constexpr bool kErase = Variant::erase != Erase::kNone;
  BackwardScratch<Variant> x(args, count, scratch);
  const Chunks chunks(args, n);
  const Wanted kept(args, {Port::kK, Port::kG, Port::kBeta, Port::kV, Port::kW}, true, 0,
                    kErase ? 2 : 1);
  const Wanted reversed(
      args,
      {Port::kK, Port::kG, Port::kBeta, Port::kQ, Port::kDO, Port::kV, Port::kW, Port::kZ,
       Port::kDQ, Port::kDK, Port::kDV, Port::kDBeta, Port::kDG, Port::kDW, Port::kDZ},
      kUnitWrite<Variant> || args[Port::kD].present(), x.heads[0].kept_floats(), kErase ? 6 : 4);
  const std::int64_t size = args.group_size();
  for (std::int64_t first = 0; first < count; first += x.batch) {
    const std::int64_t heads = count - first < x.batch ? count - first : x.batch;
    const std::int64_t turns = chunks.count * heads;
    // The head and the chunk of a turn: of every chunk the heads in their order. In the reverse
    // sweep the chunks are counted from the last.
    const auto head_of = [&](std::int64_t turn) { return head + first + turn % heads; };
    const auto chunk_of = [&](std::int64_t turn, bool reverse) {
      return reverse ? chunks.count - 1 - turn / heads : turn / heads;
    };
    const auto ahead_of = [&](std::int64_t turn, bool reverse) {
      const Wanted& wanted = reverse ? reversed : kept;
      if (turn == turns) return Ahead(args, wanted, Place{}, 0, nullptr);
      const std::int64_t c = chunk_of(turn, reverse);
      return Ahead(args, wanted, chunks[c], head_of(turn), x.heads[turn % heads].state(c));
    };
    for (std::int64_t i = 0; i < heads; ++i) {
      const BackwardHead<Variant>& own = x.heads[i];
      if constexpr (kHasGateRow<Variant>) load_bias(args, head_of(i), x.K, own.bias);
      if (turns > 0) load_state(args, Port::kInitialState, n, head_of(i), x, own.state(0));
      load_state(args, Port::kDFinalState, n, head_of(i), x, own.dS);
    }
    for (std::int64_t turn = 0; turn < turns; ++turn) {
      keep_chunk(args, chunks, chunk_of(turn, false), head_of(turn), x.heads[turn % heads],
                 ahead_of(turn + 1, false), x);
    }
    for (std::int64_t turn = 0; turn < turns; ++turn) {
      const std::int64_t h = head_of(turn);
      reverse_chunk(args, chunks, chunk_of(turn, true), {h, h % size == 0, (h + 1) % size == 0},
                    x.heads[turn % heads], sums + args.sums * (h - head), ahead_of(turn + 1, true),
                    x);
    }
    for (std::int64_t i = 0; i < heads; ++i) {
      store_state(args, Port::kDInitialState, n, head_of(i), x.heads[i].dS, x);
    }
  }
  hwy::FlushStream();  // what was written past the caches, before another thread is told of it
}

}  // namespace
}  // namespace deltaworks::cpu::HWY_NAMESPACE
