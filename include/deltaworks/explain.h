// Why a problem runs where it runs: every engine's verdict with its reasons.
//
//   for (const Verdict& verdict : explain(problem)) {
//     std::cout << verdict.plan_name << (verdict.accepts() ? " accepts\n" : " declines\n");
//     for (const std::string& reason : verdict.reasons) std::cout << "  " << reason << "\n";
//   }
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "deltaworks/detail/call.h"

namespace deltaworks {

// What one engine says of a problem.
struct Verdict {
  std::string plan_name;                // pins the engine
  std::vector<std::string> reasons;     // unmet conditions, each with what was found
  std::vector<std::string> conditions;  // the engine's whole support column
  std::size_t workspace_bytes = 0;      // of an engine that accepts
  std::string configuration;            // of an engine that accepts
  bool accepts() const { return reasons.empty(); }
};

// Every engine's verdict, in the order they are asked; find_plan takes the first that accepts, or
// the pinned one. Throws Error if the problem is not valid.
inline std::vector<Verdict> explain(const Problem& problem) {
  dw_verdicts* found = nullptr;
  detail::require(dw_explain(detail::CProblem(problem).get(), &found));
  const std::unique_ptr<dw_verdicts, void (*)(dw_verdicts*)> owner(found, &dw_verdicts_release);
  std::vector<Verdict> verdicts(dw_verdicts_count(found));
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    Verdict& verdict = verdicts[i];
    verdict.plan_name = dw_verdict_plan(found, i);
    for (std::size_t j = 0; j < dw_verdict_reason_count(found, i); ++j) {
      verdict.reasons.push_back(dw_verdict_reason(found, i, j));
    }
    for (std::size_t j = 0; j < dw_verdict_condition_count(found, i); ++j) {
      verdict.conditions.push_back(dw_verdict_condition(found, i, j));
    }
    verdict.workspace_bytes = dw_verdict_workspace_bytes(found, i);
    verdict.configuration = dw_verdict_configuration(found, i);
  }
  return verdicts;
}

// Names of the plans that there are for the problem, whether their engines take it or not, in the
// order they are asked. Throws Error if the problem is not valid.
inline std::vector<std::string> plan_names(const Problem& problem) {
  std::vector<std::string> names;
  for (Verdict& verdict : explain(problem)) names.push_back(std::move(verdict.plan_name));
  return names;
}

}  // namespace deltaworks
