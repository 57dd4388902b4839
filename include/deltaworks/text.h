// Problems as strings, the same in C++, C, Python, the command line and logs (docs/problems.md):
//
//   gdn:fwd:bf16:N4T8192H16HV32K128V128:l2norm
//
// to_string prints the shortest string of a valid problem; parse_problem(to_string(p)) == p.
#pragma once

#include <string>

#include "deltaworks/detail/call.h"

namespace deltaworks {

// Throws Error(kInvalidValue) where the text is no problem string, and says where and why.
inline Problem parse_problem(const std::string& text) {
  if (text.find('\0') != std::string::npos) {
    throw Error(Status::kInvalidValue, "problem string: holds a NUL character");
  }
  dw_problem problem{};
  problem.struct_size = sizeof problem;
  dw_tensor tensors[DW_PORT_COUNT];
  detail::require(dw_problem_parse(text.c_str(), &problem, tensors, DW_PORT_COUNT));
  return detail::problem_of(problem);
}

// Throws Error if the problem is not valid.
inline std::string to_string(const Problem& problem) {
  const detail::CProblem c(problem);
  std::size_t needed = 0;
  detail::require(dw_problem_format(c.get(), nullptr, 0, &needed));
  std::string text(needed, '\0');
  detail::require(dw_problem_format(c.get(), text.data(), needed, nullptr));
  text.pop_back();  // the closing NUL
  return text;
}

}  // namespace deltaworks
