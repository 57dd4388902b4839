// The cache of cache.h. Keys point into the plans that the list keeps alive.
#include "registry/cache.h"

#include <bit>
#include <cstdint>
#include <functional>
#include <utility>

namespace deltaworks {

std::size_t PlanCache::Hash::operator()(const Problem* problem) const {
  std::uint64_t hash = 0;
  const auto mix = [&hash](std::uint64_t word) {
    hash = (std::rotl(hash, 5) ^ word) * 0x9E3779B97F4A7C15u;
  };
  const Options& o = problem->options;
  mix(static_cast<std::uint64_t>(problem->op) << 32 | static_cast<std::uint64_t>(problem->pass));
  mix(static_cast<std::uint64_t>(problem->threads));
  mix(std::hash<std::string>{}(problem->plan_name));
  mix(std::bit_cast<std::uint64_t>(o.scale.value_or(0.0)));
  mix(static_cast<std::uint64_t>(o.checkpoint_every_n_tokens));
  for (int port = 0; port < kPortCount; ++port) {
    const TensorDesc& tensor = problem->tensors[port];
    if (!tensor.present()) continue;
    mix(static_cast<std::uint64_t>(port) << 32 | static_cast<std::uint64_t>(tensor.dtype));
    for (int axis = 0; axis < kMaxRank; ++axis) {
      mix(static_cast<std::uint64_t>(tensor.shape[axis]));
      mix(static_cast<std::uint64_t>(tensor.stride[axis]));
    }
  }
  return hash;
}

std::shared_ptr<const BuiltPlan> PlanCache::find(const Problem& problem) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = by_problem_.find(&problem);
  if (found == by_problem_.end()) return nullptr;
  plans_.splice(plans_.begin(), plans_, found->second);
  return *found->second;
}

void PlanCache::insert(std::shared_ptr<const BuiltPlan> plan) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Problem* key = &plan->problem();
  if (by_problem_.contains(key)) return;  // another thread was quicker
  plans_.push_front(std::move(plan));
  by_problem_.emplace(key, plans_.begin());
  if (plans_.size() > capacity_) {
    by_problem_.erase(&plans_.back()->problem());
    plans_.pop_back();
  }
}

}  // namespace deltaworks
