// Kimi Delta Attention (Kimi Team 2025, arXiv:2510.26692): a decay a key channel, one beta a head.
#pragma once

#include "variants/traits.h"

namespace deltaworks {

struct Kda {
  static constexpr Decay decay = Decay::kPerKey;
  static constexpr Erase erase = Erase::kScalar;
  static constexpr Write write = Write::kScalar;
  static constexpr Gate gate = Gate::kDecay;
  static constexpr Op op = Op::kKimiDeltaAttention;
  static constexpr const char* name = "kda";
};
static_assert(Recurrence<Kda>);

}  // namespace deltaworks
