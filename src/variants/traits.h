// What distinguishes one linear-attention variant from another. All of them are the recurrence
//
//   S' = D S,   S = S' + k (w - e^T S')^T,   o = scale S^T q
//
// with a choice of decay D, erase row e and write row w. A variant names its
// choices; the engines' algorithms are templates over it.
#pragma once

#include <concepts>

#include "deltaworks/problem.h"

namespace deltaworks {

enum class Decay {
  kScalar,  // D = exp(g), one gate a head
  kPerKey,  // D = Diag(exp(g)), g in R^K
};
enum class Erase {
  kNone,    // e = 0
  kScalar,  // e = beta k
  kPerKey,  // e = beta * k, beta in R^K
};
enum class Write {
  kScalar,    // w = beta v, where there is no beta dt v
  kPerValue,  // w = w * v, w in R^V
};

enum class Gate {
  kDecay,     // g is the log of the decay, or what the gate options make it from
  kTimeStep,  // g is the time step dt: the log of the decay is A dt
};

template <class V>
concept Recurrence = requires {
  { V::decay } -> std::convertible_to<Decay>;
  { V::erase } -> std::convertible_to<Erase>;
  { V::write } -> std::convertible_to<Write>;
  { V::gate } -> std::convertible_to<Gate>;
  { V::op } -> std::convertible_to<Op>;
  { V::name } -> std::convertible_to<const char*>;  // prefix of plan names
};

}  // namespace deltaworks
