// The life of a call, from its description to its execution:
//
//   Problem problem = ...;                      // describe
//   validate(problem);                          // shapes, dtypes, combinations
//   plan_names(problem);                        // explain.h: "gdn_cpu", "gdn_reference"
//   problem.plan_name = "gdn_cpu";              // pin one, or take the first that accepts
//   check_support(problem);                     // or throws every engine's reasons
//   Plan plan = find_plan(problem);             // selected, built, kept in a cache
//   std::vector<std::byte> workspace(plan.workspace_bytes());
//   Pack pack; pack[Port::kQ] = q; ...
//   plan.execute(pack, workspace.data());       // as often as wanted, in any thread
//
// ops.h does all of this in one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "deltaworks/detail/call.h"

namespace deltaworks {

// Judges every shape, dtype and combination. Throws Error (kInvalidValue, kInvalidType) on the
// first rule that is broken.
inline Dims validate(const Problem& problem) {
  dw_dims d;
  detail::require(dw_validate(detail::CProblem(problem).get(), &d));
  const std::int64_t n = problem.options.num_householder;
  return {.T = d.T,
          .N = d.N,
          .K = d.K,
          .V = d.V,
          .H = d.H,
          .HK = d.HK,
          .HV = d.HV,
          .HO = d.HO,
          .n = n > 0 ? n : 1};
}

// Whether some engine takes the problem, or the pinned one does. Throws Error; kNotSupported lists
// every engine's reasons.
inline void check_support(const Problem& problem) {
  detail::require(dw_check(detail::CProblem(problem).get()));
}

// An engine's answer to one problem. Copies share it. One plan may execute in many threads at once,
// each execution with its own workspace.
class Plan {
 public:
  std::string name() const { return dw_plan_name(plan_.get()); }  // "gdn_cpu"
  // How the engine will run it, for people: "AVX2, 2 threads, ...".
  std::string configuration() const { return dw_plan_configuration(plan_.get()); }
  std::size_t workspace_bytes() const { return dw_plan_workspace_bytes(plan_.get()); }

  // Runs on the caller's memory; allocates nothing. Throws Error(kInvalidValue) before anything is
  // written if a pointer is missing or, on the CPU, cu_seqlens is malformed (on a card only with
  // DELTAWORKS_CHECK). `workspace` holds workspace_bytes() of any content and alignment in the
  // memory that the tensors are in. `stream` is a cudaStream_t, null for the default one, of the
  // tensors' card, on which the call is enqueued; it is not read on the CPU.
  void execute(const Pack& pack, void* workspace, void* stream = nullptr) const {
    detail::require(dw_plan_execute(plan_.get(), pack.pointers.data(), pack.pointers.size(),
                                    workspace, stream));
  }

 private:
  friend Plan find_plan(const Problem&);
  explicit Plan(dw_plan* plan) : plan_(plan, &dw_plan_release) {}
  std::shared_ptr<dw_plan> plan_;
};

// The plan for a problem: validates it, asks the engines in order (or the pinned one), builds. Kept
// in a process-wide cache keyed by the whole problem. Throws Error; kNotSupported lists every
// engine's reasons.
inline Plan find_plan(const Problem& problem) {
  dw_plan* plan = nullptr;
  detail::require(dw_plan_find(detail::CProblem(problem).get(), &plan));
  return Plan(plan);
}

}  // namespace deltaworks
