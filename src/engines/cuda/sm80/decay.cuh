// How the decay of a variant enters a chunk, a specialisation each kind.
#pragma once

#include "engines/cuda/device/gate.cuh"
#include "variants/traits.h"

namespace deltaworks::cuda::sm80 {

template <Decay>
struct ChunkDecay;

// One gate a token: with G its cumulative sums, [64], the decay is a factor of rows and of pairs of
// rows. Only differences G_i - G_j with i >= j are exponentiated: no exponent is positive.
template <>
struct ChunkDecay<Decay::kScalar> {
  // From token j to token i.
  __device__ static float between(float G_j, float G_i) { return device::decay_of(G_i - G_j); }
  __device__ static float from_start(float G_i) { return device::decay_of(G_i); }
};

}  // namespace deltaworks::cuda::sm80
