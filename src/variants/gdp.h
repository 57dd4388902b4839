// Gated DeltaProduct (Siems et al. 2025, arXiv:2502.10297): n steps of Gated DeltaNet a token, of
// which the first decays; how many is an option, and Dims::n.
#pragma once

#include "variants/traits.h"

namespace deltaworks {

struct Gdp {
  static constexpr Decay decay = Decay::kScalar;
  static constexpr Erase erase = Erase::kScalar;
  static constexpr Write write = Write::kScalar;
  static constexpr Gate gate = Gate::kDecay;
  static constexpr Op op = Op::kGatedDeltaProduct;
  static constexpr const char* name = "gdp";
};
static_assert(Recurrence<Gdp>);

}  // namespace deltaworks
