// The definition of every variant, in fp64 on the exact values of the inputs.
// S is stored V-major, [V, K]; for each row, of which a token has one or several,
//
//   S' = D S,   u = w - e^T S',   S = S' + k u^T,   o = scale S^T q
//
// D of a token acts at its first row, o is read after its last.
#pragma once

#include "problem/ports.h"
#include "reference/inputs.h"
#include "reference/output.h"

namespace deltaworks::reference {

inline void step(const double* k, const Rows& rows, std::int64_t K, std::int64_t V, double* S) {
  for (std::int64_t j = 0; j < V; ++j) {
    double* s = S + j * K;
    double u = rows.write[j];
    for (std::int64_t i = 0; i < K; ++i) {
      s[i] *= rows.decay[i];
      u -= rows.erase[i] * s[i];
    }
    for (std::int64_t i = 0; i < K; ++i) s[i] += k[i] * u;
  }
}

inline double dot(const double* x, const double* y, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

// States as tensors [N, HO, V, K].
inline void load_state(const View& state, std::int64_t n, std::int64_t head, const Dims& dims,
                       double* S) {
  for (std::int64_t j = 0; j < dims.V; ++j) {
    for (std::int64_t i = 0; i < dims.K; ++i) S[j * dims.K + i] = state.at(n, head, j, i);
  }
}
inline void store_state(const View& state, std::int64_t n, std::int64_t head, const Dims& dims,
                        const double* S) {
  for (std::int64_t j = 0; j < dims.V; ++j) {
    for (std::int64_t i = 0; i < dims.K; ++i) state.set(S[j * dims.K + i], n, head, j, i);
  }
}
inline void copy_state(const View& to, const View& from, std::int64_t n, std::int64_t head,
                       const Dims& dims) {
  for (std::int64_t j = 0; j < dims.V; ++j) {
    for (std::int64_t i = 0; i < dims.K; ++i) to.copy(from, n, head, j, i);
  }
}

// Tokens [begin, end) of the packed batch are sequence n.
struct Sequence {
  std::int64_t n, begin, end;
  std::int64_t length() const { return end - begin; }
};

template <class Variant>
class Forward {
 public:
  struct Scratch {
    double *S, *o;  // [V, K], [V]
    Token<Variant> token;
    Rows rows;

    Scratch(const Dims& dims, Arena& arena)
        : S(arena.take(dims.V * dims.K)),
          o(arena.take(dims.V)),
          token(dims.K, dims.V, arena),
          rows(dims.K, dims.V, arena) {}
  };

  Forward(const Problem& problem, const Dims& dims, const Pack& pack)
      : dims_(dims),
        inputs_(problem, dims, pack),
        output_(problem, pack),
        initial_state_(problem, pack, Port::kInitialState),
        o_(problem, pack, Port::kO),
        final_state_(problem, pack, final_state_port(problem.options)) {}

  void head(const Sequence& sequence, std::int64_t head, const Scratch& scratch) const {
    if (sequence.length() == 0) {
      return copy_state(final_state_, initial_state_, sequence.n, head, dims_);
    }
    const auto& [S, o, token, rows] = scratch;
    load_state(initial_state_, sequence.n, head, dims_, S);
    for (std::int64_t row = sequence.begin * dims_.n; row < sequence.end * dims_.n; ++row) {
      inputs_.load(row, head, token);
      form_rows(token, dims_.K, dims_.V, rows);
      step(token.k, rows, dims_.K, dims_.V, S);
      if (!inputs_.is_read(row)) continue;
      const std::int64_t t = inputs_.token(row);
      for (std::int64_t j = 0; j < dims_.V; ++j) {
        o[j] = inputs_.scale() * dot(token.q, S + j * dims_.K, dims_.K);
      }
      output_.apply(t, head, token.v, dims_.V, o);
      for (std::int64_t j = 0; j < dims_.V; ++j) o_.set(o[j], t, head, j);
    }
    store_state(final_state_, sequence.n, head, dims_, S);
  }

  // Token t belongs to no sequence.
  void clear_token(std::int64_t t) const {
    for (std::int64_t head = 0; head < dims_.HO; ++head) {
      for (std::int64_t j = 0; j < dims_.V; ++j) o_.set(0, t, head, j);
    }
  }

 private:
  Dims dims_;
  Inputs<Variant> inputs_;
  OutputMap output_;
  View initial_state_, o_, final_state_;
};

}  // namespace deltaworks::reference
