// From a problem to a plan: validate, ask the engines, build, remember.
#include "deltaworks/plan.h"

#include <pthread.h>

#include <utility>

#include "core/strings.h"
#include "core/threads.h"
#include "deltaworks/status.h"
#include "problem/ports.h"
#include "problem/validate.h"
#include "registry/cache.h"
#include "registry/engine.h"
#include "variants/list.h"

namespace deltaworks {
namespace {

constexpr std::size_t kCachedPlans = 512;

std::string plan_name(Op op, const Engine& engine) {
  const char* variant = with_variant(op, []<class Variant>() { return Variant::name; });
  return cat(variant, "_", engine.name());
}

bool is_empty(const TensorDesc& tensor) {
  for (int axis = 0; axis < tensor.rank; ++axis) {
    if (tensor.shape[axis] == 0) return true;
  }
  return false;
}

std::shared_ptr<const Plan> build(const Problem& problem) {
  const Dims dims = validate(problem);
  std::string reasons, names;
  for (const Engine* engine : engines()) {
    std::string name = plan_name(problem.op, *engine);
    names += cat(names.empty() ? "" : ", ", name);
    if (!problem.plan_name.empty() && problem.plan_name != name) continue;
    const std::vector<std::string> unmet = engine->check(problem, dims);
    if (unmet.empty()) {
      return std::make_shared<const Plan>(problem, dims, std::move(name),
                                          engine->build(problem, dims));
    }
    for (const std::string& reason : unmet) reasons += cat("\n  ", name, ": ", reason);
  }
  if (reasons.empty()) {
    throw Error(Status::kInvalidValue, cat(op_name(problem.op), ": plan_name must be one of ",
                                           names, ", got ", problem.plan_name));
  }
  throw Error(Status::kNotSupported,
              cat(op_name(problem.op), ": no engine takes this problem", reasons));
}

// The process's plans. It outlives static destructors, and a fork waits until no thread is inside,
// so that the child gets it whole and unlocked.
PlanCache& plan_cache() {
  static PlanCache& cache = []() -> PlanCache& {
    static PlanCache& made = *new PlanCache(kCachedPlans);
    pthread_atfork([] { made.lock(); }, [] { made.unlock(); }, [] { made.unlock(); });
    return made;
  }();
  return cache;
}

}  // namespace

Plan::Plan(Problem problem, Dims dims, std::string name,
           std::unique_ptr<const Executable> executable)
    : problem_(std::move(problem)),
      dims_(dims),
      name_(std::move(name)),
      executable_(std::move(executable)) {}

Plan::~Plan() = default;

std::size_t Plan::workspace_bytes() const { return executable_->workspace_bytes(); }

void Plan::execute(const Pack& pack, void* workspace, void* stream) const {
  for (const PortSpec& spec : ports(problem_.op)) {
    const TensorDesc& tensor = problem_[spec.port];
    if (tensor.present() && pack[spec.port] == nullptr && !is_empty(tensor)) {
      throw Error(Status::kInvalidValue,
                  cat(op_name(problem_.op), ": ", deltaworks::name(spec.port),
                      " has no memory (null pointer)"));
    }
  }
  if (workspace == nullptr && workspace_bytes() > 0) {
    throw Error(Status::kInvalidValue, cat(op_name(problem_.op), ": the workspace is missing (",
                                           workspace_bytes(), " bytes)"));
  }
  if (problem_[Port::kCuSeqlens].device.type == DeviceType::kCpu) {
    check_cu_seqlens(problem_, dims_, pack[Port::kCuSeqlens]);
  }
  executable_->execute(pack, workspace, stream);
}

std::shared_ptr<const Plan> find_plan(const Problem& problem) {
  if (problem.threads <= 0) {
    Problem resolved = problem;
    resolved.threads = default_threads();
    return find_plan(resolved);
  }
  if (std::shared_ptr<const Plan> plan = plan_cache().find(problem)) return plan;
  std::shared_ptr<const Plan> plan = build(problem);
  plan_cache().insert(plan);
  return plan;
}

std::vector<Verdict> explain(const Problem& problem) {
  const Dims dims = validate(problem);
  std::vector<Verdict> verdicts;
  for (const Engine* engine : engines()) {
    verdicts.push_back({plan_name(problem.op, *engine), engine->check(problem, dims)});
  }
  return verdicts;
}

}  // namespace deltaworks
