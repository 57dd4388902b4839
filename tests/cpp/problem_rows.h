// Every rule about a call (src/problem/rules.h), at least one row each: what breaks it, and the
// status and text that must come of it, whichever interface the call goes through.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "deltaworks/problem.h"
#include "deltaworks/status.h"
#include "problem/rules.h"

namespace deltaworks::kit {

struct ProblemRow {
  Rule rule;
  Pass pass;
  std::function<void(Problem&)> breaks;
  Status status;
  std::string text;
  // What a Problem does not hold; the default breaks nothing.
  std::string gate_domain = {};             // of the C interface, instead of the problem's
  std::vector<std::int64_t> offsets = {};   // values of cu_seqlens
  std::optional<Port> without_memory = {};  // a null pointer
  Op op = Op::kGatedDeltaNet;
  std::string gate = {};  // of the C interface, instead of the problem's

  // Whether the description alone is wrong, so that nothing need be executed.
  bool about_description() const {
    return gate_domain.empty() && gate.empty() && offsets.empty() && !without_memory &&
           rule != Rule::kPlanName;
  }
};

// T = 12, N = 2, heads (2, 2, 4), K = 16, V = 8; bf16 with fp32 states, safe_gate where there is
// one, two sub-steps where there are any, and every tensor of the pass. That of gated_delta_net is
// accepted by the CPU engine.
Problem valid_problem(Pass pass, Op op = Op::kGatedDeltaNet);
inline Problem valid_problem(const ProblemRow& row) { return valid_problem(row.pass, row.op); }

std::vector<ProblemRow> problem_rows();
// Those of them that are about what other operations than gated_delta_net have.
std::vector<ProblemRow> operation_rows();

}  // namespace deltaworks::kit
