// The C interface over problems and plans: every function is one call into the library, with its
// exceptions turned into a status, a text and a rule.
#include "deltaworks/c_api.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c_api/describe.h"
#include "core/strings.h"
#include "core/threads.h"
#include "engines/cpu/dispatch.h"
#include "engines/cpu/peak.h"
#include "problem/outputs.h"
#include "problem/rules.h"
#include "problem/text.h"
#include "problem/validate.h"
#include "registry/plan.h"

using namespace deltaworks;

struct dw_plan {
  explicit dw_plan(std::shared_ptr<const BuiltPlan> found)
      : plan(std::move(found)), name(permanent_plan_name(plan->problem().op, plan->name())) {}
  std::shared_ptr<const BuiltPlan> plan;
  const char* name;
};

struct dw_verdicts {
  std::vector<EngineVerdict> engines;
};

namespace {

// What a thread is told of its calls. Thread-locals are reached by functions that are not inlined:
// the first access of a thread may change vector registers that a compiler takes for kept across an
// access (glibc before 2.39), but never across a call.
struct Told {
  // Constants and numbers: what needs a destructor in every thread would be allocated by execute.
  const char* rule = "";
  const char* plan = "";
  size_t workspace_bytes = 0;
};
[[gnu::noinline]] Told& told() {
  static constinit thread_local Told value;
  return value;
}
[[gnu::noinline]] std::string& last_error() {
  static thread_local std::string text;
  return text;
}

// Runs f; an exception becomes a status and the thread's error text.
template <class F>
dw_status guarded(F&& f) {
  const auto failed = [](Status status, const char* text, const char* rule) {
    last_error() = text;
    told().rule = rule;
    return static_cast<dw_status>(status);
  };
  try {
    f();
    return DW_OK;
  } catch (const RuleError& error) {
    return failed(error.status(), error.what(), name(error.rule()));
  } catch (const Error& error) {
    return failed(error.status(), error.what(), "");
  } catch (const std::exception& error) {
    return failed(Status::kInternal, error.what(), "");
  }
}

void require(bool met, const char* text) {
  if (!met) throw Error(Status::kInvalidValue, text);
}

// What an argument points to, which must be there.
template <class T>
T& at(T* pointer, const char* name) {
  if (pointer == nullptr) throw Error(Status::kInvalidValue, cat(name, " is a null pointer"));
  return *pointer;
}

// The base pointers of the ports that caller and library know.
Pack pack_of(void* const* pointers, size_t count) {
  if (count > 0) at(pointers, "pointers");
  Pack pack;
  std::copy_n(pointers, std::min<size_t>(count, kPortCount), pack.pointers.begin());
  return pack;
}

}  // namespace

extern "C" {

dw_status dw_validate(const dw_problem* problem, dw_dims* dims) {
  return guarded([&] {
    const Dims d = judge(read(at(problem, "problem")));
    if (dims != nullptr) *dims = {d.T, d.N, d.K, d.V, d.H, d.HK, d.HV, d.HO};
  });
}

dw_status dw_check(const dw_problem* problem) {
  return guarded([&] { plan_for(read(at(problem, "problem"))); });
}

dw_status dw_describe_outputs(const dw_problem* problem, uint64_t wanted, dw_tensor* outputs,
                              size_t capacity, size_t* count) {
  return guarded([&] {
    at(count, "count") = 0;
    for (const OutputDesc& output : describe_outputs(read(at(problem, "problem")), wanted)) {
      require(*count < capacity, "dw_describe_outputs: capacity is too small");
      (&at(outputs, "outputs"))[(*count)++] = to_c(output.port, output.desc);
    }
  });
}

dw_status dw_problem_parse(const char* text, dw_problem* problem, dw_tensor* tensors,
                           size_t capacity) {
  return guarded([&] {
    const Problem parsed = parse(&at(text, "text"));
    const auto count = std::count_if(parsed.tensors.begin(), parsed.tensors.end(),
                                     [](const TensorDesc& tensor) { return tensor.present(); });
    require(static_cast<size_t>(count) <= capacity, "dw_problem_parse: capacity is too small");
    if (count > 0) at(tensors, "tensors");
    write(parsed, at(problem, "problem"));
    problem->tensors = tensors;
    problem->tensor_count = 0;
    for (int port = 0; port < kPortCount; ++port) {
      if (!parsed.tensors[port].present()) continue;
      tensors[problem->tensor_count++] = to_c(static_cast<Port>(port), parsed.tensors[port]);
    }
  });
}

dw_status dw_problem_format(const dw_problem* problem, char* text, size_t size, size_t* needed) {
  return guarded([&] {
    const Problem described = read(at(problem, "problem"));
    judge(described);
    const std::string line = print(described);
    if (needed != nullptr) *needed = line.size() + 1;
    if (size == 0) return;
    const size_t length = std::min(line.size(), size - 1);
    std::memcpy(&at(text, "text"), line.data(), length);
    text[length] = '\0';
  });
}

dw_status dw_explain(const dw_problem* problem, dw_verdicts** found) {
  return guarded([&] {
    at(found, "verdicts") = nullptr;
    *found = new dw_verdicts{verdicts(read(at(problem, "problem")))};
  });
}

void dw_verdicts_release(dw_verdicts* verdicts) { delete verdicts; }

size_t dw_verdicts_count(const dw_verdicts* verdicts) { return verdicts->engines.size(); }

const char* dw_verdict_plan(const dw_verdicts* verdicts, size_t engine) {
  return verdicts->engines[engine].plan_name.c_str();
}

size_t dw_verdict_reason_count(const dw_verdicts* verdicts, size_t engine) {
  return verdicts->engines[engine].check.reasons().size();
}

const char* dw_verdict_reason(const dw_verdicts* verdicts, size_t engine, size_t reason) {
  return verdicts->engines[engine].check.reasons()[reason].c_str();
}

size_t dw_verdict_condition_count(const dw_verdicts* verdicts, size_t engine) {
  return verdicts->engines[engine].check.conditions().size();
}

const char* dw_verdict_condition(const dw_verdicts* verdicts, size_t engine, size_t condition) {
  return verdicts->engines[engine].check.conditions()[condition].c_str();
}

size_t dw_verdict_workspace_bytes(const dw_verdicts* verdicts, size_t engine) {
  return verdicts->engines[engine].workspace_bytes;
}

const char* dw_verdict_configuration(const dw_verdicts* verdicts, size_t engine) {
  return verdicts->engines[engine].configuration.c_str();
}

dw_status dw_plan_find(const dw_problem* problem, dw_plan** plan) {
  return guarded([&] {
    at(plan, "plan") = nullptr;
    *plan = new dw_plan(plan_for(read(at(problem, "problem"))));
  });
}

void dw_plan_release(dw_plan* plan) { delete plan; }

const char* dw_plan_name(const dw_plan* plan) { return plan->name; }

const char* dw_plan_configuration(const dw_plan* plan) {
  return plan->plan->configuration().c_str();
}

size_t dw_plan_workspace_bytes(const dw_plan* plan) { return plan->plan->workspace_bytes(); }

dw_status dw_plan_execute(const dw_plan* plan, void* const* pointers, size_t count, void* workspace,
                          void* stream) {
  return guarded([&] {
    at(plan, "plan").plan->execute(pack_of(pointers, count), workspace, stream);
    told().plan = plan->name;
    told().workspace_bytes = plan->plan->workspace_bytes();
  });
}

dw_status dw_plan_time(const dw_plan* plan, void* const* pointers, size_t count, void* workspace,
                       int64_t calls, double* execute_seconds, double* kernel_seconds) {
  return guarded([&] {
    const BuiltPlan& built = *at(plan, "plan").plan;
    at(execute_seconds, "execute_seconds") = at(kernel_seconds, "kernel_seconds") = 0;
    const auto times = built.time(pack_of(pointers, count), workspace, calls);
    *execute_seconds = times.execute;
    *kernel_seconds = times.kernels;
  });
}

const char* dw_last_error(void) { return last_error().c_str(); }

const char* dw_last_rule(void) { return told().rule; }

const char* dw_last_plan(void) { return told().plan; }

size_t dw_last_workspace_bytes(void) { return told().workspace_bytes; }

const char* dw_cpu_isa(int32_t* lanes) {
  const char* isa = nullptr;
  guarded([&] {
    const cpu::Kernels& kernels = cpu::kernels();
    if (lanes != nullptr) *lanes = kernels.lanes;
    isa = kernels.isa;
  });
  return isa;
}

dw_status dw_cpu_peak(int32_t threads, double seconds, double* lane_ops_per_second) {
  return guarded([&] {
    at(lane_ops_per_second, "lane_ops_per_second") = 0;
    *lane_ops_per_second = cpu::peak_rate(threads, seconds);
  });
}

int32_t dw_default_threads(void) { return default_threads(); }

const char* dw_version(void) { return DELTAWORKS_VERSION; }

const char* dw_build(void) { return DELTAWORKS_BUILD; }

}  // extern "C"
