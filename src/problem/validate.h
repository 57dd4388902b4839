// The rule about data that the CPU checks before it executes.
#pragma once

#include "deltaworks/problem.h"

namespace deltaworks {

// Throws Error(kInvalidValue) unless cu_seqlens starts at 0, never decreases and ends at most at T.
void check_cu_seqlens(const Problem& problem, const Dims& dims, const void* cu_seqlens);

}  // namespace deltaworks
