// See plan.h.
#include "registry/plan.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <utility>

#include "core/environment.h"
#include "core/threads.h"
#include "problem/ports.h"
#include "problem/rules.h"
#include "problem/validate.h"
#include "registry/cache.h"
#include "registry/log.h"
#include "variants/list.h"

namespace deltaworks {
namespace {

constexpr std::size_t kCachedPlans = 512;
// However many a caller allows: each is a thread of the operating system.
constexpr std::int32_t kMaxThreads = 1024;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string plan_name(Op op, const std::string& engine) {
  const char* variant = with_variant(op, []<class Variant>() { return Variant::name; });
  return cat(variant, "_", engine);
}

bool is_empty(const TensorDesc& tensor) {
  for (int axis = 0; axis < tensor.rank; ++axis) {
    if (tensor.shape[axis] == 0) return true;
  }
  return false;
}

template <class Names>
std::string joined(const Names& names) {
  std::string text;
  for (const auto& name : names) text += cat(text.empty() ? "" : ", ", name);
  return text;
}

std::vector<std::string> engine_names() {
  std::vector<std::string> names;
  for (const Engine* engine : engines()) names.push_back(engine->name());
  return names;
}

// Of every operation's plans, in the order of the engines; made when the library is loaded, never
// destroyed.
const std::map<Op, std::vector<std::string>>& all_plan_names = *new std::map([] {
  std::map<Op, std::vector<std::string>> names;
  for_each_variant([&]<class Variant>() {
    for (const Engine* engine : engines()) {
      names[Variant::op].push_back(cat(Variant::name, "_", engine->name()));
    }
  });
  return names;
}());
const std::vector<std::string>& plan_names(Op op) { return all_plan_names.at(op); }

[[noreturn]] void fail_plan_name(Op op, const std::string& got) {
  throw RuleError(
      Rule::kPlanName, Status::kInvalidValue,
      cat(op_name(op), ": plan_name must be one of ", joined(plan_names(op)), ", got ", got));
}

bool environment_decides(const Problem& problem) {
  return problem.plan_name.empty() && !forced_engine().empty();
}

// The problem with what the process decides where the caller does not: the engine that the
// environment forces, and the number of threads. False if there is nothing to decide.
bool resolve(const Problem& problem, Problem& resolved) {
  const bool forces = environment_decides(problem);
  if (!forces && problem.threads > 0 && problem.threads <= kMaxThreads) return false;
  resolved = problem;
  if (forces) {
    const std::vector<std::string> names = engine_names();
    if (std::find(names.begin(), names.end(), forced_engine()) == names.end()) {
      throw Error(Status::kInvalidValue, cat("DELTAWORKS_ENGINE must be one of ", joined(names),
                                             ", got ", forced_engine()));
    }
    resolved.plan_name = plan_name(problem.op, forced_engine());
  }
  if (problem.threads < 0) return true;  // is rejected
  resolved.threads =
      std::min(problem.threads > 0 ? problem.threads : default_threads(), kMaxThreads);
  return true;
}

std::shared_ptr<const BuiltPlan> build(const Problem& problem, const char* pinned_by) {
  const Dims dims = judge(problem);
  const bool pinned = !problem.plan_name.empty();
  std::string reasons;
  for (const Engine* engine : engines()) {
    std::string name = plan_name(problem.op, engine->name());
    if (pinned && problem.plan_name != name) continue;
    const Check check = engine->check(problem, dims);
    if (check.reasons().empty()) {
      return std::make_shared<const BuiltPlan>(problem, dims, std::move(name),
                                               engine->build(problem, dims),
                                               pinned ? nullptr : engine->warning());
    }
    for (const std::string& reason : check.reasons()) reasons += cat("\n  ", name, ": ", reason);
  }
  if (reasons.empty()) fail_plan_name(problem.op, problem.plan_name);
  const std::string who =
      pinned ? cat(problem.plan_name, ", pinned by ", pinned_by, ", does not take this problem")
             : "no engine takes this problem";
  throw Error(Status::kNotSupported, cat(op_name(problem.op), ": ", who, reasons));
}

// The process's plans. Made when the library is loaded, never destroyed; a fork waits until no
// thread is inside, so that the child gets it whole and unlocked.
PlanCache& plan_cache = *new PlanCache(kCachedPlans);
[[maybe_unused]] const int fork_handler = pthread_atfork(
    [] { plan_cache.lock(); }, [] { plan_cache.unlock(); }, [] { plan_cache.unlock(); });

}  // namespace

BuiltPlan::BuiltPlan(Problem problem, Dims dims, std::string name,
                     std::unique_ptr<const Executable> executable, const char* warning)
    : problem_(std::move(problem)),
      dims_(dims),
      name_(std::move(name)),
      configuration_(executable->configuration()),
      executable_(std::move(executable)),
      warning_(warning) {}

void BuiltPlan::judge_memory(const Pack& pack, const void* workspace) const {
  const auto fail = [&](const auto&... parts) {
    throw RuleError(Rule::kMemory, Status::kInvalidValue,
                    cat(op_name(problem_.op), ": ", parts...));
  };
  for (const PortSpec& spec : ports(problem_.op)) {
    const TensorDesc& tensor = problem_[spec.port];
    if (tensor.present() && pack[spec.port] == nullptr && !is_empty(tensor)) {
      fail(spec.name, " has no memory (null pointer)");
    }
  }
  if (workspace == nullptr && workspace_bytes() > 0) {
    fail("the workspace is missing (", workspace_bytes(), " bytes)");
  }
}

void BuiltPlan::execute(const Pack& pack, void* workspace, void* stream) const {
  judge_memory(pack, workspace);
  if (problem_[Port::kCuSeqlens].device.type == DeviceType::kCpu) {
    judge_cu_seqlens(problem_, dims_, pack[Port::kCuSeqlens]);
  }
  if (warning_ != nullptr) [[unlikely]] {
    static std::atomic<bool> said{false};
    if (!said.exchange(true)) {
      std::fprintf(stderr, "deltaworks: warning: %s: %s\n", op_name(problem_.op), warning_);
    }
  }
  if (log_level() == LogLevel::kOff) [[likely]] {
    return executable_->execute(pack, workspace, stream);
  }
  const Clock::time_point start = Clock::now();
  executable_->execute(pack, workspace, stream);
  log_call(log_level(), *this, pack, seconds_since(start));
}

BuiltPlan::Times BuiltPlan::time(const Pack& pack, void* workspace, std::int64_t calls) const {
  const auto timed = [](auto&& f) {
    const Clock::time_point start = Clock::now();
    f();
    return seconds_since(start);
  };
  const std::function<void()> run_kernels = executable_->kernels(pack, workspace);
  std::vector<double> whole, kernels;
  for (std::int64_t call = 0; call < std::max<std::int64_t>(calls, 1); ++call) {
    whole.push_back(timed([&] { execute(pack, workspace, nullptr); }));
    kernels.push_back(timed(run_kernels));
  }
  return {median(whole), median(kernels)};
}

std::shared_ptr<const BuiltPlan> plan_for(const Problem& problem) {
  Problem copy;
  const Problem& resolved = resolve(problem, copy) ? copy : problem;
  if (std::shared_ptr<const BuiltPlan> plan = plan_cache.find(resolved)) return plan;
  std::shared_ptr<const BuiltPlan> plan =
      build(resolved, environment_decides(problem) ? "DELTAWORKS_ENGINE" : "plan_name");
  plan_cache.insert(plan);
  return plan;
}

const char* permanent_plan_name(Op op, const std::string& name) {
  const std::vector<std::string>& names = plan_names(op);
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) fail_plan_name(op, name);
  return found->c_str();
}

std::vector<EngineVerdict> verdicts(const Problem& problem) {
  Problem resolved = problem;
  resolve(problem, resolved);
  const Dims dims = judge(resolved);
  std::vector<EngineVerdict> found;
  for (const Engine* engine : engines()) {
    EngineVerdict verdict{.plan_name = plan_name(resolved.op, engine->name()),
                          .check = engine->check(resolved, dims)};
    if (verdict.check.reasons().empty()) {
      const std::unique_ptr<const Executable> executable = engine->build(resolved, dims);
      verdict.workspace_bytes = executable->workspace_bytes();
      verdict.configuration = executable->configuration();
    }
    found.push_back(std::move(verdict));
  }
  return found;
}

}  // namespace deltaworks
