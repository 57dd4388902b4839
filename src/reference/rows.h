// From a token's effective inputs (gates and beta activated, q and k normalised) to the rows that
// the recurrence takes, and back from gradients of the rows to gradients of the inputs. Here, and
// only here, the variants differ:
//
//   decay D = exp(gate), scalar or per key;   erase e = 0 | beta k | beta * k;
//   write w = beta v | write * v
//
// Where the gate is a time step, the step stands for beta.
#pragma once

#include <cmath>

#include "reference/view.h"
#include "variants/traits.h"

namespace deltaworks::reference {

// Gates and betas a token has at one head.
template <class Variant>
constexpr std::int64_t gates(std::int64_t K) {
  return Variant::decay == Decay::kPerKey ? K : 1;
}
template <class Variant>
constexpr std::int64_t betas(std::int64_t K) {
  return Variant::erase == Erase::kPerKey ? K : 1;
}

// The inputs of one token at one head, or the gradients with respect to them.
template <class Variant>
struct Token {
  double *q, *k;  // [K]
  double* v;      // [V]
  double* gate;   // [gates], the log of the decay
  double* beta;   // [betas], or the time step
  double* write;  // [V], used by Write::kPerValue

  Token(std::int64_t K, std::int64_t V, Arena& arena)
      : q(arena.take(K)),
        k(arena.take(K)),
        v(arena.take(V)),
        gate(arena.take(gates<Variant>(K))),
        beta(arena.take(betas<Variant>(K))),
        write(arena.take(Variant::write == Write::kPerValue ? V : 0)) {}
};

// What the recurrence takes beside q and k, all broadcast to full length. As gradients, `decay`
// holds the one with respect to log D.
struct Rows {
  double *decay, *erase;  // [K]
  double* write;          // [V]

  Rows(std::int64_t K, std::int64_t V, Arena& arena)
      : decay(arena.take(K)), erase(arena.take(K)), write(arena.take(V)) {}
};

template <class Variant>
void form_rows(const Token<Variant>& token, std::int64_t K, std::int64_t V, const Rows& rows) {
  for (std::int64_t i = 0; i < K; ++i) {
    rows.decay[i] = std::exp(token.gate[Variant::decay == Decay::kPerKey ? i : 0]);
    if constexpr (Variant::erase == Erase::kNone) {
      rows.erase[i] = 0;
    } else {
      rows.erase[i] = token.beta[Variant::erase == Erase::kPerKey ? i : 0] * token.k[i];
    }
  }
  for (std::int64_t j = 0; j < V; ++j) {
    if constexpr (Variant::write == Write::kPerValue) {
      rows.write[j] = token.write[j] * token.v[j];
    } else {
      rows.write[j] = token.beta[0] * token.v[j];
    }
  }
}

// Adds to `grad` what the gradients `d` of the rows give.
template <class Variant>
void rows_gradient(const Token<Variant>& token, const Rows& d, std::int64_t K, std::int64_t V,
                   const Token<Variant>& grad) {
  for (std::int64_t i = 0; i < K; ++i) {
    grad.gate[Variant::decay == Decay::kPerKey ? i : 0] += d.decay[i];
    if constexpr (Variant::erase != Erase::kNone) {
      const std::int64_t b = Variant::erase == Erase::kPerKey ? i : 0;
      grad.beta[b] += d.erase[i] * token.k[i];
      grad.k[i] += d.erase[i] * token.beta[b];
    }
  }
  for (std::int64_t j = 0; j < V; ++j) {
    if constexpr (Variant::write == Write::kPerValue) {
      grad.write[j] += d.write[j] * token.v[j];
      grad.v[j] += d.write[j] * token.write[j];
    } else {
      grad.beta[0] += d.write[j] * token.v[j];
      grad.v[j] += d.write[j] * token.beta[0];
    }
  }
}

}  // namespace deltaworks::reference
