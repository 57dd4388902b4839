// Between the C structs and the library's types, with every number judged.
#pragma once

#include "deltaworks/c_api.h"
#include "deltaworks/problem.h"

namespace deltaworks {

// Throws Error(kInvalidValue) for a struct of an unknown size and for numbers that name nothing.
Problem read(const dw_problem& problem);

// The description of a tensor as C has it.
dw_tensor to_c(Port port, const TensorDesc& tensor);

// Fills all of `to` but its tensors. Throws RuleError where plan_name names no plan.
void write(const Problem& from, dw_problem& to);

}  // namespace deltaworks
