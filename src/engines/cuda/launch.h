// The kernels of a call, behind functions that host code without CUDA's headers can include.
#pragma once

#include <cstddef>
#include <string>

#include "engines/cuda/params.h"

namespace deltaworks::cuda {

// What a plan asks of a card. Of a device that is not there: why.
struct Card {
  std::string problem;   // empty: usable
  int capability = 0;    // 90 for 9.0
  int shared_bytes = 0;  // of a block at most
};
Card card(int device);

// Bytes of shared memory that a block needs for a key dimension.
std::size_t shared_bytes(int K);
// The workspace of a call whose sizes `p` holds. Pointers into it are set by the launch.
std::size_t workspace_bytes(const Params& p);

// Enqueues the forward on a stream of `device`; no synchronisation. Throws Error(kInternal) where
// CUDA refuses.
void launch_forward(Params p, int device, void* workspace, void* stream);

}  // namespace deltaworks::cuda
