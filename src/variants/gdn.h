// Gated DeltaNet (Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464): one decay and one beta a head.
#pragma once

#include "variants/traits.h"

namespace deltaworks {

struct Gdn {
  static constexpr Decay decay = Decay::kScalar;
  static constexpr Erase erase = Erase::kScalar;
  static constexpr Write write = Write::kScalar;
  static constexpr Gate gate = Gate::kDecay;
  static constexpr Op op = Op::kGatedDeltaNet;
  static constexpr const char* name = "gdn";
};
static_assert(Recurrence<Gdn>);

}  // namespace deltaworks
