// Random problems that are valid: operations, sizes, dtypes, options and strides of every kind.
#pragma once

#include "deltaworks/problem.h"
#include "random.h"

namespace deltaworks::fuzz {

// Small. One in twenty uses what no engine has yet (state pools, overwriting, checkpoints).
Problem random_problem(Random& random);

bool is_gradient(Port port);  // that a backward writes
// Whether the operator writes the tensor.
bool is_written(Port port);
// Whether the forward writes this input: an initial_state that it overwrites.
bool is_overwritten(const Problem& problem, Port port);

}  // namespace deltaworks::fuzz
