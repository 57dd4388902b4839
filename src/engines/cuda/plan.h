// How the portable path divides a call: by what the host knows without reading cu_seqlens, which is
// the tokens, sequences and heads. Nothing of the card decides how a sequence is cut.
#pragma once

#include "engines/cuda/params.h"

namespace deltaworks::cuda {

struct CardLimits {
  int shared_bytes = 0;  // of a block at most
};

// Sets max_chunks, stages, segment_chunks and max_further. `whole`: no sequence is cut, so that its
// results do not depend on what else is in the batch.
void divide(Params& p, const CardLimits& card, bool whole);

}  // namespace deltaworks::cuda
