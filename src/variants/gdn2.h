// GDN-2, which erases and writes by channels: a decay and a beta a key channel, a w a value
// channel; the state is written with the key itself.
#pragma once

#include "variants/traits.h"

namespace deltaworks {

struct Gdn2 {
  static constexpr Decay decay = Decay::kPerKey;
  static constexpr Erase erase = Erase::kPerKey;
  static constexpr Write write = Write::kPerValue;
  static constexpr Gate gate = Gate::kDecay;
  static constexpr Op op = Op::kGatedDeltaNetV2;
  static constexpr const char* name = "gdn2";
};
static_assert(Recurrence<Gdn2>);

}  // namespace deltaworks
