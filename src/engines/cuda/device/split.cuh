// Products of fp32 matrices on tensor cores (mma.m16n8k8 on tf32), about as exact as fp32: each
// factor is split into a head that tf32 holds and the rest; the product of the two rests, and what
// tf32 cuts off them, is left out: at most 2^-19 of a product, 2^-21 on average.
//
// The middle axis may be taken in any order, alike in both factors. Here the operands' slots t and
// t + 4 are elements 2t and 2t + 1: then an accumulator is a left operand as it stands, and a
// column of the right one is read in pairs.
#pragma once

#include "engines/cuda/device/mma.cuh"

namespace deltaworks::cuda::device {

struct Split {
  std::uint32_t head, rest;
};
__device__ inline Split split(float x) {
  const std::uint32_t head = __float_as_uint(x) & 0xffffe000u;
  return {head, __float_as_uint(x - __uint_as_float(head))};
}

struct SplitA {  // [16, 8]
  std::uint32_t head[4], rest[4];
};
struct SplitB {  // [8, 8]
  std::uint32_t head[2], rest[2];
};

// Elements as an accumulator's.
__device__ inline SplitA split_a(const Accumulator& x) {
  SplitA a;
  constexpr int kOrder[4] = {0, 2, 1, 3};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Split part = split(x.x[kOrder[i]]);
    a.head[i] = part.head;
    a.rest[i] = part.rest;
  }
  return a;
}
// Of lane 4 g + t: elements (2t, g) and (2t + 1, g).
__device__ inline SplitB split_b(float first, float second) {
  const Split a = split(first), b = split(second);
  return {{a.head, b.head}, {a.rest, b.rest}};
}

__device__ inline void multiply_add_tf32(Accumulator& c, const std::uint32_t (&a)[4],
                                         const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// c += a b, the small products first.
__device__ inline void multiply_add(Accumulator& c, const SplitA& a, const SplitB& b) {
  multiply_add_tf32(c, a.rest, b.head);
  multiply_add_tf32(c, a.head, b.rest);
  multiply_add_tf32(c, a.head, b.head);
}

}  // namespace deltaworks::cuda::device
