// The kernels of a call, behind functions that host code without CUDA's headers can include.
#pragma once

#include <cstddef>
#include <string>

#include "deltaworks/problem.h"
#include "engines/cuda/params.h"
#include "engines/cuda/plan.h"

namespace deltaworks::cuda {

struct Card {
  std::string problem;  // why it cannot be used; empty: usable
  int capability = 0;   // 90 for 9.0
  CardLimits limits;
};
Card card(int device);

// Bytes of shared memory that a block needs at most, with `stages` (1 or 2) of a walk.
std::size_t shared_bytes(int K, int stages);
// The workspace of a call whose sizes `p` holds. Pointers into it are set by the launch.
std::size_t workspace_bytes(const Params& p);

// Copies from the card when `stream` has come so far, and waits for it.
void read_back(void* to, const void* from, std::size_t bytes, int device, void* stream);

// Loads the kernels of such calls on `device`, so that calls only launch. Throws Error(kInternal)
// where CUDA refuses, as launch_forward does.
void load_kernels(Op op, const Params& p, int device);
// Enqueues the forward on a stream of `device`; no synchronisation.
void launch_forward(Op op, Params p, int device, void* workspace, void* stream);

}  // namespace deltaworks::cuda
