// Memory of a call for the sanitizers to watch: every tensor in an allocation of its own that ends
// with its last element, holding a NaN pattern wherever nothing has been written.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "deltaworks/problem.h"
#include "random.h"

namespace deltaworks::fuzz {

class Memory {
 public:
  Memory(const TensorDesc& desc, Random& random);

  void* base() const { return bytes_.get() + base_; }
  const TensorDesc& desc() const { return desc_; }
  std::int64_t count() const { return static_cast<std::int64_t>(offsets_.size()); }
  double get(std::int64_t i) const;  // element i in logical order
  void set(std::int64_t i, double value);
  // Bitwise, wherever the elements lie.
  bool same_elements(const Memory& other) const;
  // Every byte that belongs to no element is as it was allocated.
  bool gaps_untouched() const;
  bool untouched() const;
  bool finite() const;

 private:
  std::byte* at(std::int64_t i) const;

  TensorDesc desc_;
  std::vector<std::int64_t> offsets_;  // of the elements from the base
  std::size_t size_ = 0, base_ = 0;    // bytes
  std::unique_ptr<std::byte[]> bytes_;
};

// Of all tensors of a problem; inputs hold values in the range that the options expect, with gates
// that are at most 0 in the logarithm and rows of q and k that are 0 or no shorter than 0.5.
class CallMemory {
 public:
  // The same seed gives the same values; `placement` decides about alignments alone.
  CallMemory(const Problem& problem, std::uint64_t seed, Random& placement);

  Pack pack() const;
  bool has(Port port) const { return tensors_[index(port)].has_value(); }
  Memory& operator[](Port port) { return *tensors_[index(port)]; }
  const Memory& operator[](Port port) const { return *tensors_[index(port)]; }

 private:
  std::array<std::optional<Memory>, kPortCount> tensors_;
};

}  // namespace deltaworks::fuzz
