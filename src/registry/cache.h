// A bounded map from problems to plans; the plan used longest ago leaves first. Keyed by the whole
// Problem, compared field by field: a new field is part of the key by itself.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "registry/plan.h"

namespace deltaworks {

class PlanCache {
 public:
  explicit PlanCache(std::size_t capacity) : capacity_(capacity) {}

  std::shared_ptr<const BuiltPlan> find(const Problem& problem);  // null: not there
  void insert(std::shared_ptr<const BuiltPlan> plan);
  std::size_t size() const { return plans_.size(); }
  // Held across a fork.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Hash {
    std::size_t operator()(const Problem* problem) const;
  };
  struct Equal {
    bool operator()(const Problem* a, const Problem* b) const { return *a == *b; }
  };
  using Plans = std::list<std::shared_ptr<const BuiltPlan>>;  // used last first

  std::size_t capacity_;
  std::mutex mutex_;
  Plans plans_;
  std::unordered_map<const Problem*, Plans::iterator, Hash, Equal> by_problem_;
};

}  // namespace deltaworks
