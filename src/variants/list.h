// Every variant, for the code that instantiates templates or looks one up by its operation.
#pragma once

#include <tuple>
#include <utility>

#include "variants/gdn.h"
#include "variants/gdn2.h"
#include "variants/gdp.h"
#include "variants/kda.h"
#include "variants/mamba2.h"

namespace deltaworks {

using Variants = std::tuple<Gdn, Kda, Gdn2, Gdp, Mamba2>;

// Calls f.template operator()<Variant>() for every variant.
template <class F>
constexpr void for_each_variant(F&& f) {
  const auto call = [&]<class... Variant>(std::tuple<Variant...>*) {
    (f.template operator()<Variant>(), ...);
  };
  call(static_cast<Variants*>(nullptr));
}

// Calls f.template operator()<Variant>() for the variant of `op`; its result is f's.
template <class F>
decltype(auto) with_variant(Op op, F&& f) {
  switch (op) {
    case Gdn::op:
      return std::forward<F>(f).template operator()<Gdn>();
    case Kda::op:
      return std::forward<F>(f).template operator()<Kda>();
    case Gdn2::op:
      return std::forward<F>(f).template operator()<Gdn2>();
    case Gdp::op:
      return std::forward<F>(f).template operator()<Gdp>();
    case Mamba2::op:
      return std::forward<F>(f).template operator()<Mamba2>();
  }
  __builtin_unreachable();  // the C interface lets no other value through
}

}  // namespace deltaworks
