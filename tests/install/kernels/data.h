// The tensors of a problem in memory: 16-bit floats in and out, and inputs in the range that the
// problem's options expect.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "deltaworks/problem.h"

// A dense tensor, its elements by their position in row-major order.
struct Array {
  deltaworks::TensorDesc desc;
  std::vector<std::byte> bytes;

  std::int64_t count() const;
  double get(std::int64_t i) const;
  void set(std::int64_t i, double x);
};
using Arrays = std::array<Array, deltaworks::kPortCount>;

// Whether a pass writes the tensor of a port.
bool is_output(deltaworks::Pass pass, deltaworks::Port port);

// Random inputs and outputs of NaN. The batch holds a token alone, an empty sequence, two long ones
// of unequal length, and three rows that belong to none: N must be 4.
Arrays make_arrays(const deltaworks::Problem& problem, unsigned seed);
