// The variants that the kernels are built for.
#pragma once

#include <tuple>
#include <utility>

#include "variants/gdn.h"

namespace deltaworks::cuda::sm80 {

using Instances = std::tuple<Gdn>;

// Calls f.template operator()<Variant>() for the variant of `op`, if kernels are built for it.
template <class F>
constexpr void with_instance(Op op, F&& f) {
  const auto try_each = [&]<class... Variant>(std::tuple<Variant...>*) {
    ((Variant::op == op ? f.template operator()<Variant>() : void()), ...);
  };
  try_each(static_cast<Instances*>(nullptr));
}

// Whether they are.
constexpr bool has_instance(Op op) {
  bool found = false;
  with_instance(op, [&]<class Variant>() { found = true; });
  return found;
}

}  // namespace deltaworks::cuda::sm80
