// Problem strings (docs/problems.md): one line that says everything about a problem but its data.
//
//   gdn:fwd:bf16:N4T8192H16HV32K128V128:l2norm
#pragma once

#include <string>
#include <string_view>

#include "deltaworks/problem.h"

namespace deltaworks {

// The problem that a string describes, be it valid or not. Any bytes may come: what is no problem
// string is an Error(kInvalidValue) that says what was expected and quotes what came. Time and
// memory are bounded.
Problem parse(std::string_view text);

// The shortest string of a valid problem; parse(print(p)) == p. Throws Error(kInvalidValue) for
// the two things that no string holds: a plan_name that could not be an engine's, and a tensor of
// more than 2^48 elements.
std::string print(const Problem& problem);

}  // namespace deltaworks
