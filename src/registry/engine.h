// The interface between plans and engines. An engine judges a valid problem with reasons and builds
// an Executable; src/registry/list.cc holds the engines in the order they are asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/strings.h"
#include "deltaworks/problem.h"

namespace deltaworks {

class Executable {
 public:
  virtual ~Executable() = default;
  virtual std::size_t workspace_bytes() const = 0;
  // How it will run, for people: instruction set, threads, how the work is divided.
  virtual std::string configuration() const = 0;
  // Allocates nothing. cu_seqlens and the pointers have been checked.
  virtual void execute(const Pack& pack, void* workspace, void* stream) const = 0;
  // A function that runs the kernels of an execution alone, by one thread, on what an execution
  // with the same arguments has left in the workspace: what the rest takes is judged against its
  // time.
  virtual std::function<void()> kernels(const Pack& pack, void* workspace) const {
    return [=, this] { execute(pack, workspace, nullptr); };
  }
};

// An engine's support column: one `need` a condition, in the order a reader would ask. A condition
// reads as what is needed ("q must be ..."); what was found makes it a reason where it is not met.
class Check {
 public:
  template <class Found>
  Check& need(bool met, std::string condition, const Found& found) {
    if (!met) reasons_.push_back(cat(condition, ", got ", found));
    conditions_.push_back(std::move(condition));
    return *this;
  }
  const std::vector<std::string>& conditions() const { return conditions_; }
  const std::vector<std::string>& reasons() const { return reasons_; }  // empty: accepts

 private:
  std::vector<std::string> conditions_, reasons_;
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const char* name() const = 0;  // "cpu"; a plan's name is <variant>_<engine>
  virtual Check check(const Problem& problem, const Dims& dims) const = 0;
  virtual std::unique_ptr<const Executable> build(const Problem& problem,
                                                  const Dims& dims) const = 0;
  // Said once a process when the engine runs without anyone having named it; null: nothing.
  virtual const char* warning() const { return nullptr; }
};

// Engines in the order they are asked.
std::span<const Engine* const> engines();

const Engine& cuda_engine();
const Engine& cpu_engine();
const Engine& reference_engine();

}  // namespace deltaworks
