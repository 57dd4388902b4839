// What a pass writes, described from its inputs alone.
#pragma once

#include <cstdint>
#include <vector>

#include "deltaworks/problem.h"

namespace deltaworks {

struct OutputDesc {
  Port port;
  TensorDesc desc;  // contiguous
};

// In port order: of the forward o, and final_state if it is asked for and does not overwrite
// initial_state; of the backward the gradients whose bits (1 << port) are set in `wanted`. The
// inputs need not be valid: those that are not give outputs of some shape, and judging the whole
// problem then finds what is wrong with the inputs.
std::vector<OutputDesc> describe_outputs(const Problem& problem, std::uint64_t wanted);

}  // namespace deltaworks
