// The table of kernels of one instruction set, and the choice among those that were built.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engines/cpu/args.h"

namespace deltaworks::cpu {

// Vectors that the kernel `peak` works on at once: enough to hide the latency of the multiply-add
// on two pipes, few enough to stay in 16 registers.
inline constexpr std::int64_t kPeakChains = 12;

// Scratch is counted in floats and need not be cleared; it is aligned to 64 bytes.
struct Kernels {
  const char* isa;
  std::int32_t lanes;           // of fp32
  std::int32_t value_block;     // values that one forward item takes at least
  std::int32_t heads;           // heads that one forward item takes at most
  std::int32_t backward_heads;  // heads that a backward item takes side by side

  // One sequence, heads [head, head + count) with count <= heads, and values [v_begin, v_end),
  // v_begin a multiple of value_block; scratch for as many heads.
  std::size_t (*forward_scratch)(const Args& args, std::int64_t heads);
  void (*forward)(const Args& args, std::int64_t n, std::int64_t head, std::int64_t count,
                  std::int64_t v_begin, std::int64_t v_end, float* scratch);

  // One sequence, heads [head, head + count), whole groups; scratch for as many heads; `sums`
  // receives, per head, backward_sums numbers: what this sequence adds to the gradients of a_log or
  // A (1), dt_bias (1, or K by channel) and D (V).
  std::size_t (*backward_scratch)(const Args& args, std::int64_t count);
  std::int64_t (*backward_sums)(const Args& args);
  void (*backward)(const Args& args, std::int64_t n, std::int64_t head, std::int64_t count,
                   double* sums, float* scratch);

  // `steps` multiply-adds on each of kPeakChains vectors; the result means nothing.
  float (*peak)(std::int64_t steps);
};

// The widest instruction set that was built and that this processor has, or the one that the
// environment variable DELTAWORKS_ISA names ("SSE4", "AVX2", "AVX512", "NEON"). Chosen once.
const Kernels& kernels();

}  // namespace deltaworks::cpu
