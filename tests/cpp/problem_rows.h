// Every rule about a call's description, one row each: what breaks it, and the status and text that
// must come of it, whichever interface the call goes through.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "deltaworks/problem.h"
#include "deltaworks/status.h"

namespace deltaworks::kit {

struct ProblemRow {
  Pass pass;
  std::function<void(Problem&)> breaks;
  Status status;
  std::string text;
};

// T = 12, N = 2, heads (2, 2, 4), K = 16, V = 8; bf16 with fp32 states, safe_gate and every tensor
// of the pass. Accepted by the CPU engine.
Problem valid_problem(Pass pass);

std::vector<ProblemRow> problem_rows();

}  // namespace deltaworks::kit
