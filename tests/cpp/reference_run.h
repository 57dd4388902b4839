// run() on the reference engine of a call's operation.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kit.h"
#include "variants/list.h"

namespace deltaworks::kit {

inline Tensors run_reference(const Call& call, Pass pass, const Tensors& inputs, int threads = 1,
                             const Layout& layout = nullptr) {
  const char* variant =
      with_variant(call.op, []<class Variant>() -> const char* { return Variant::name; });
  return run(variant + std::string("_reference"), call, pass, inputs, threads, layout);
}

inline void expect_near(const Tensors& got, const Tensors& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [port, tensor] : got) {
    for (std::int64_t i = 0; i < tensor.count(); ++i) {
      const double x = expected.at(port).get(i);
      ASSERT_NEAR(tensor.get(i), x, tolerance * (1 + std::abs(x))) << name(port) << " at " << i;
    }
  }
}

}  // namespace deltaworks::kit
