// Judges problems: the only place that knows what shapes, dtypes and combinations are valid. Every
// broken rule is a RuleError (rules.h).
#pragma once

#include "deltaworks/problem.h"

namespace deltaworks {

// The rules about a description, before any engine is asked. Returns the sizes that the tensors
// agree on; throws on the first rule that is broken.
Dims judge(const Problem& problem);

// The rules about data that the CPU checks before it executes: cu_seqlens starts at 0, never
// decreases and ends at most at T.
void judge_cu_seqlens(const Problem& problem, const Dims& dims, const void* cu_seqlens);

}  // namespace deltaworks
