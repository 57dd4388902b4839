// A Plan is an engine's answer to one problem: it knows its name and its workspace, and executes on
// raw pointers without allocating. One plan may execute in many threads at once, each execution
// with its own workspace.
//
//   Problem problem = ...;
//   std::shared_ptr<const Plan> plan = find_plan(problem);   // validated, selected, built, cached
//   std::vector<std::byte> workspace(plan->workspace_bytes());
//   Pack pack; pack[Port::kQ] = q; ...
//   plan->execute(pack, workspace.data());
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "deltaworks/problem.h"

namespace deltaworks {

// Base pointers of the problem's tensors, by port. Inputs are never written.
struct Pack {
  std::array<void*, kPortCount> pointers{};
  void*& operator[](Port port) { return pointers[index(port)]; }
  void* operator[](Port port) const { return pointers[index(port)]; }
};

class Executable;  // what an engine builds

class Plan {
 public:
  Plan(Problem problem, Dims dims, std::string name, std::unique_ptr<const Executable> executable);
  ~Plan();

  const Problem& problem() const { return problem_; }
  const Dims& dims() const { return dims_; }
  const std::string& name() const { return name_; }  // "gdn_cpu"
  std::size_t workspace_bytes() const;

  // Runs on the caller's memory. Throws Error(kInvalidValue) before anything is written if
  // cu_seqlens is malformed or a pointer is missing. `workspace` holds workspace_bytes() and any
  // content, aligned to 64 bytes or not. `stream` is ignored on the CPU.
  void execute(const Pack& pack, void* workspace, void* stream = nullptr) const;

 private:
  Problem problem_;
  Dims dims_;
  std::string name_;
  std::unique_ptr<const Executable> executable_;
};

// The plan for a problem: validates it, asks the engines in order (or the pinned one), builds. Kept
// in a process-wide cache keyed by the whole problem. Throws Error; kNotSupported lists every
// engine's reasons.
std::shared_ptr<const Plan> find_plan(const Problem& problem);

// One engine's verdict on a valid problem.
struct Verdict {
  std::string plan_name;
  std::vector<std::string> reasons;  // empty: accepts
};
// Every engine's verdict, in the order they are asked.
std::vector<Verdict> explain(const Problem& problem);

}  // namespace deltaworks
