// Every variant, for the code that instantiates templates or looks one up by its operation.
#pragma once

#include <tuple>
#include <utility>

#include "variants/gdn.h"

namespace deltaworks {

using Variants = std::tuple<Gdn>;

// Calls f.template operator()<Variant>() for the variant of `op`; its result is f's.
template <class F>
decltype(auto) with_variant(Op op, F&& f) {
  switch (op) {
    case Op::kGatedDeltaNet:
      return std::forward<F>(f).template operator()<Gdn>();
  }
  __builtin_unreachable();  // judge() lets no other value through
}

// Calls f.template operator()<Variant>() for every variant.
template <class F>
void for_each_variant(F&& f) {
  const auto call = [&]<class... Variant>(std::tuple<Variant...>*) {
    (f.template operator()<Variant>(), ...);
  };
  call(static_cast<Variants*>(nullptr));
}

}  // namespace deltaworks
