// See trial.h.
#include "trial.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "deltaworks/explain.h"
#include "deltaworks/plan.h"
#include "deltaworks/status.h"
#include "deltaworks/text.h"
#include "memory.h"
#include "problem/ports.h"
#include "problem/rules.h"
#include "random_problem.h"

namespace deltaworks::fuzz {
namespace {

void require(bool met, const std::string& what) {
  if (!met) throw Broken(what);
}

Outcome rejected(Status status) {
  require(status == Status::kInvalidValue || status == Status::kInvalidType,
          std::string("the status of an invalid problem: ") + dw_last_error());
  return {Outcome::kRejected, dw_last_rule()};
}

// Memory of just the size that the plan asks for, at any alignment.
class Workspace {
 public:
  Workspace(const Plan& plan, Random& random)
      : shift_(static_cast<std::size_t>(random.between(0, 63))),
        memory_(plan.workspace_bytes() + shift_, std::byte{0xff}) {}
  void* data() { return memory_.data() + shift_; }

 private:
  std::size_t shift_;
  std::vector<std::byte> memory_;
};

void require_verdicts(const Problem& problem, const Plan* plan) {
  const std::vector<Verdict> verdicts = explain(problem);
  const auto accepts = [&](const Verdict& verdict) {
    return verdict.accepts() &&
           (problem.plan_name.empty() || problem.plan_name == verdict.plan_name);
  };
  const auto first = std::find_if(verdicts.begin(), verdicts.end(), accepts);
  require((first != verdicts.end()) == (plan != nullptr), "explain and find_plan disagree");
  for (const Verdict& verdict : verdicts) {
    require(verdict.conditions.size() >= verdict.reasons.size() && !verdict.plan_name.empty(),
            "a verdict has more reasons than conditions, or no name");
  }
  if (plan == nullptr) return;
  require(plan->name() == first->plan_name && plan->configuration() == first->configuration &&
              plan->workspace_bytes() == first->workspace_bytes,
          "the plan " + plan->name() + " is not the one that explain tells of");
}

void require_round_trip(const Problem& problem) {
  const std::string text = to_string(problem);
  const Problem again = parse_problem(text);
  require(again == problem, "another problem is read from its string " + text);
  require(to_string(again) == text, "the problem has two strings, one of them " + text);
}

// A problem that differs in one thing alone, which may not be valid. Its plan is not to be taken
// for the other's.
Problem neighbour(Problem p, Random& random) {
  Options& o = p.options;
  switch (random.between(0, 9)) {
    case 0:
      o.scale = o.scale.value_or(1) + 0.5;
      break;
    case 1:
      o.use_qk_l2norm = !o.use_qk_l2norm;
      break;
    case 2:
      o.use_beta_sigmoid = !o.use_beta_sigmoid;
      break;
    case 3:
      o.allow_neg_eigval = !o.allow_neg_eigval;
      break;
    case 4:
      o.safe_gate = !o.safe_gate;
      break;
    case 5:
      o.gate_domain = o.gate_domain == GateDomain::kLog ? GateDomain::kLinear : GateDomain::kLog;
      break;
    case 6:
      o.num_householder += 1;
      break;
    case 7:
      o.dt_min += 0.125;
      break;
    case 8:
      o.gate_lower_bound = o.gate_lower_bound.value_or(-5) - 1;
      break;
    default:
      p[Port::kG].stride[0] += 1;
  }
  return p;
}
void plan_neighbour(const Problem& problem, Random& random) {
  try {
    find_plan(neighbour(problem, random));
  } catch (const Error&) {
  }
}

void require_outputs(const Problem& problem, const CallMemory& before, const CallMemory& after) {
  for (int i = 0; i < kPortCount; ++i) {
    const auto port = static_cast<Port>(i);
    if (!problem.has(port)) continue;
    const std::string tensor = name(problem.op, port);
    require(after[port].gaps_untouched(), "bytes around the elements of " + tensor + " changed");
    if (is_overwritten(problem, port)) continue;
    if (!is_written(port)) {
      require(after[port].same_elements(before[port]), "the input " + tensor + " changed");
    } else if (problem.options.use_qk_l2norm) {
      require(after[port].finite(), tensor + " is not finite");
    }
  }
}

}  // namespace

Outcome try_problem(const Problem& problem, Random& random) {
  try {
    const Dims dims = validate(problem);
    require(dims.T == problem[Port::kQ].shape[0], "validate tells other sizes");
  } catch (const Error& error) {
    return rejected(error.status());
  }
  if (random.chance(0.3)) plan_neighbour(problem, random);
  try {
    const Plan plan = find_plan(problem);
    require_round_trip(problem);
    require_verdicts(problem, &plan);
    const std::uint64_t seed = static_cast<std::uint64_t>(random.between(0, 1 << 30));
    CallMemory untouched(problem, seed, random), first(problem, seed, random),
        second(problem, seed, random);
    plan.execute(first.pack(), Workspace(plan, random).data());
    require(std::string(dw_last_plan()) == plan.name() &&
                dw_last_workspace_bytes() == plan.workspace_bytes(),
            "dw_last_plan tells of another plan");
    require_outputs(problem, untouched, first);
    // Once more from its string, at times by another number of threads.
    Problem same = parse_problem(to_string(problem));
    if (random.chance(0.3)) same.threads = problem.threads % 3 + 1;
    const Plan again = find_plan(same);
    require(again.name() == plan.name(), "the problem's string leads to another plan");
    again.execute(second.pack(), Workspace(again, random).data());
    for (int port = 0; port < kPortCount; ++port) {
      if (!problem.tensors[port].present()) continue;
      require(second[static_cast<Port>(port)].same_elements(first[static_cast<Port>(port)]),
              std::string(name(static_cast<Port>(port))) + " differs in a second execution");
    }
    return {Outcome::kExecuted, ""};
  } catch (const Error& error) {
    if (error.status() != Status::kNotSupported) return rejected(error.status());
    require_round_trip(problem);
    require_verdicts(problem, nullptr);
    return {Outcome::kDeclined, ""};
  }
}

Outcome try_bad_data(const Problem& problem, Random& random, std::string& expected) {
  const Plan plan = find_plan(problem);
  CallMemory memory(problem, 0, random);
  Workspace workspace(plan, random);
  void* workspace_data = workspace.data();
  Pack pack = memory.pack();
  Memory& offsets = memory[Port::kCuSeqlens];
  const std::int64_t N = offsets.count() - 1, T = problem[Port::kQ].shape[0];
  const std::int64_t kind = random.between(0, N > 0 ? 3 : 1);
  if (kind == 0 && plan.workspace_bytes() > 0 && random.chance(0.3)) {
    expected = name(Rule::kMemory);
    workspace_data = nullptr;
  } else if (kind == 0) {
    expected = name(Rule::kMemory);
    int port = index(Port::kCuSeqlens);  // is never empty
    if (random.chance(0.8)) {
      const int other = static_cast<int>(random.between(0, kPortCount - 1));
      const bool there = problem.tensors[other].present();
      if (there && memory[static_cast<Port>(other)].count() > 0) port = other;
    }
    pack.pointers[port] = nullptr;
  } else if (kind == 1) {
    expected = name(Rule::kOffsetsStart);
    offsets.set(0, random.pick({-1.0, 1.0, -2147483648.0}));
  } else if (kind == 2) {
    expected = name(Rule::kOffsetsDecrease);
    const std::int64_t n = random.between(1, N);
    offsets.set(n, random.chance(0.5) ? -2147483648.0 : offsets.get(n - 1) - 1);
  } else {
    expected = name(Rule::kOffsetsEnd);
    offsets.set(N, random.chance(0.5) ? 2147483647.0 : static_cast<double>(T + 1));
  }
  try {
    plan.execute(pack, workspace_data);
  } catch (const Error& error) {
    for (int port = 0; port < kPortCount; ++port) {
      if (!problem.tensors[port].present() || !is_written(static_cast<Port>(port))) continue;
      require(memory[static_cast<Port>(port)].untouched(),
              std::string(name(static_cast<Port>(port))) + " is written by a call that failed");
    }
    return rejected(error.status());
  }
  throw Broken("malformed data is executed: " + expected);
}

Outcome try_word(const Problem& problem, bool domain) {
  const detail::CProblem c(problem);
  dw_problem changed = *c.get();
  (domain ? changed.gate_domain : changed.gate) = "exponential";
  const dw_status status = dw_validate(&changed, nullptr);
  require(status != DW_OK, "a gate or gate_domain 'exponential' is valid");
  return rejected(static_cast<Status>(status));
}

}  // namespace deltaworks::fuzz
