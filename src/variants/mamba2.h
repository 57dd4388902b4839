// Mamba-2 (Dao, Gu 2024, arXiv:2405.21060): nothing is erased; decay exp(A dt) and write dt x come
// from one time step dt. q is C, k is B, v is x.
#pragma once

#include "variants/traits.h"

namespace deltaworks {

struct Mamba2 {
  static constexpr Decay decay = Decay::kScalar;
  static constexpr Erase erase = Erase::kNone;
  static constexpr Write write = Write::kScalar;
  static constexpr Gate gate = Gate::kTimeStep;
  static constexpr Op op = Op::kMamba2;
  static constexpr const char* name = "mamba2";
};
static_assert(Recurrence<Mamba2>);

}  // namespace deltaworks
