// Highway in static mode: the vectors of the instruction set that this file is compiled for. Every
// kernel lives in namespace deltaworks::cpu::HWY_NAMESPACE, so that one program holds them all.
#pragma once

#define HWY_COMPILE_ONLY_STATIC
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

namespace deltaworks::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F32 = hn::ScalableTag<float>;
using Vec = hn::Vec<F32>;
inline constexpr F32 f32{};
inline constexpr std::int64_t kLanes = HWY_LANES(float);

// Width of a panel (panels-inl.h): two vectors.
inline constexpr std::int64_t kPanel = 2 * kLanes;

static inline constexpr std::int64_t round_up(std::int64_t x, std::int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

// Hands out pieces of a block of floats, each aligned to a cache line. With a null base it only
// counts, so that one function both sizes and lays out a kernel's scratch.
class Carver {
 public:
  explicit Carver(float* base) : base_(base) {}
  float* take(std::int64_t count) {
    float* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += round_up(count, 16);
    return piece;
  }
  std::size_t used() const { return static_cast<std::size_t>(used_); }

 private:
  float* base_;
  std::int64_t used_ = 0;
};

}  // namespace deltaworks::cpu::HWY_NAMESPACE
