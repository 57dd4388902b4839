// From a problem to a plan: judge, ask the engines, build, remember.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "registry/engine.h"

namespace deltaworks {

// An engine's answer to one problem. Executes on raw pointers without allocating, in many threads
// at once, each with its own workspace.
class BuiltPlan {
 public:
  // `warning` is said once a process, when a plan that has one executes first; null: none.
  BuiltPlan(Problem problem, Dims dims, std::string name,
            std::unique_ptr<const Executable> executable, const char* warning = nullptr);

  const Problem& problem() const { return problem_; }
  const Dims& dims() const { return dims_; }
  const std::string& name() const { return name_; }  // "gdn_cpu"
  const std::string& configuration() const { return configuration_; }
  std::size_t workspace_bytes() const { return executable_->workspace_bytes(); }

  // Throws RuleError before anything is written if cu_seqlens is malformed or memory is missing.
  void execute(const Pack& pack, void* workspace, void* stream) const;
  // Seconds of execute() and of its kernels alone, medians of `calls` of each, taken in turn.
  struct Times {
    double execute, kernels;
  };
  Times time(const Pack& pack, void* workspace, std::int64_t calls) const;

 private:
  void judge_memory(const Pack& pack, const void* workspace) const;

  Problem problem_;
  Dims dims_;
  std::string name_, configuration_;
  std::unique_ptr<const Executable> executable_;
  const char* warning_;
};

// The plan for a problem, from the pinned engine, the one that DELTAWORKS_ENGINE names, or the
// first that accepts. Kept in a process-wide cache keyed by the whole problem. Throws Error;
// kNotSupported lists every engine's reasons.
std::shared_ptr<const BuiltPlan> plan_for(const Problem& problem);

// The name of a plan in memory that is never freed. Throws RuleError(kPlanName) if no engine has
// it.
const char* permanent_plan_name(Op op, const std::string& name);

// One engine's verdict on a valid problem.
struct EngineVerdict {
  std::string plan_name;
  Check check;
  std::size_t workspace_bytes = 0;  // of an engine that accepts
  std::string configuration = {};   // of an engine that accepts
};
// Every engine's verdict, in the order they are asked.
std::vector<EngineVerdict> verdicts(const Problem& problem);

}  // namespace deltaworks
