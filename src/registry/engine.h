// The interface between plans and engines. An engine judges a valid problem with reasons and builds
// an Executable; src/registry/list.cc holds the engines in the order they are asked.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "deltaworks/plan.h"

namespace deltaworks {

class Executable {
 public:
  virtual ~Executable() = default;
  virtual std::size_t workspace_bytes() const = 0;
  // Allocates nothing. cu_seqlens and the pointers have been checked.
  virtual void execute(const Pack& pack, void* workspace, void* stream) const = 0;
};

// An engine's support column: one `need` a condition, in the order a reader would ask.
class Check {
 public:
  Check& need(bool met, std::string reason) {
    if (!met) reasons_.push_back(std::move(reason));
    return *this;
  }
  operator std::vector<std::string>() const { return reasons_; }

 private:
  std::vector<std::string> reasons_;
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const char* name() const = 0;  // "cpu"; a plan's name is <variant>_<engine>
  // Unmet conditions, each naming what was found and what is needed; empty: accepts.
  virtual std::vector<std::string> check(const Problem& problem, const Dims& dims) const = 0;
  virtual std::unique_ptr<const Executable> build(const Problem& problem,
                                                  const Dims& dims) const = 0;
};

// Engines in the order they are asked.
const std::vector<const Engine*>& engines();

const Engine& cpu_engine();
const Engine& reference_engine();

}  // namespace deltaworks
