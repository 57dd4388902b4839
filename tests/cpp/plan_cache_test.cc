// The plan cache: one plan a problem, every fact a part of the key, least recently used out first.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/threads.h"
#include "kit.h"
#include "problem_rows.h"
#include "registry/cache.h"
#include "registry/plan.h"

namespace deltaworks {
namespace {

using namespace kit;

constexpr Pass kPasses[] = {Pass::kForward, Pass::kBackward};

using Change = std::function<void(Problem&)>;

// A problem that differs from valid_problem() in one fact each, all legal.
std::vector<Problem> neighbours(Pass pass) {
  const Problem base = valid_problem(pass);
  std::vector<Problem> problems{base};
  const auto add = [&](const Change& change) {
    problems.push_back(base);
    change(problems.back());
  };
  const auto drop = [](Problem& p, Port port) { p[port] = TensorDesc{}; };

  for (int i = 0; i < kPortCount; ++i) {
    const Port port = static_cast<Port>(i);
    if (!base.has(port)) continue;
    for (int axis = 0; axis < base[port].rank; ++axis) {
      add([=](Problem& p) { p[port].stride[axis] += 10000; });
    }
    const Role role = spec_of(port).role;
    const bool may_go = role == Role::kFlow || role == Role::kGradient ||
                        (pass == Pass::kForward && role == Role::kOptional);
    if (may_go) add([=](Problem& p) { drop(p, port); });
  }
  add([&](Problem& p) {
    if (p.pass == Pass::kForward) drop(p, Port::kFinalState);
    p.options.output_final_state = false;
  });

  const auto retype = [&](std::initializer_list<Port> ports, DType dtype) {
    const std::vector<Port> all(ports);
    add([=](Problem& p) {
      for (Port port : all) {
        if (p.has(port)) p[port].dtype = dtype;
      }
    });
  };
  retype({Port::kQ, Port::kK, Port::kV, Port::kO, Port::kDO, Port::kDQ, Port::kDK, Port::kDV,
          Port::kBeta, Port::kDBeta},
         DType::kFloat16);
  retype({Port::kG, Port::kDG}, DType::kBFloat16);
  retype({Port::kBeta, Port::kDBeta}, DType::kFloat32);
  retype({Port::kALog, Port::kDALog}, DType::kBFloat16);
  retype({Port::kDtBias, Port::kDDtBias}, DType::kBFloat16);
  retype({Port::kInitialState, Port::kFinalState, Port::kDFinalState, Port::kDInitialState},
         DType::kBFloat16);
  retype({Port::kCuSeqlens}, DType::kInt32);

  // Shapes without strides, so that the shape alone differs.
  const auto resize = [&](Axis changed, std::int64_t size) {
    add([=](Problem& p) {
      for (const PortSpec& spec : ports(p.op)) {
        if (!p.has(spec.port)) continue;
        for (int axis = 0; axis < spec.rank; ++axis) {
          if (spec.axes[axis] == changed) p[spec.port].shape[axis] = size;
        }
        if (spec.role != Role::kInput && spec.role != Role::kOptional) {  // may not overlap
          const TensorDesc& x = p[spec.port];
          p[spec.port] = contiguous(x.dtype, std::span(x.shape).first(x.rank));
        }
      }
      if (changed == Axis::kN) p[Port::kCuSeqlens].shape[0] = size + 1;
    });
  };
  resize(Axis::kT, 11);
  resize(Axis::kN, 3);
  resize(Axis::kK, 15);
  resize(Axis::kV, 7);
  resize(Axis::kHK, 4);

  add([](Problem& p) { p.options.scale = 0.25; });
  add([](Problem& p) { p.options.scale = 0.0; });
  add([](Problem& p) { p.options.use_qk_l2norm = true; });
  add([](Problem& p) { p.options.use_beta_sigmoid = true; });
  add([](Problem& p) { p.options.use_beta_sigmoid = p.options.allow_neg_eigval = true; });
  add([](Problem& p) { p.options.batch_invariant = true; });
  const auto without_parameters = [&](Problem& p) {
    for (Port port : {Port::kALog, Port::kDtBias, Port::kDALog, Port::kDDtBias}) drop(p, port);
  };
  add(without_parameters);
  add([&](Problem& p) {
    without_parameters(p);
    p.options.safe_gate = false;
  });
  add([&](Problem& p) {
    without_parameters(p);
    p.options.safe_gate = false;
    p.options.gate_domain = GateDomain::kLinear;
  });
  add([](Problem& p) { p.requires_gradient = true; });
  add([](Problem& p) { p.plan_name = "gdn_cpu"; });
  add([](Problem& p) { p.threads = 7; });
  return problems;
}

TEST(PlanCache, OnePlanAProblem) {
  for (Pass pass : kPasses) {
    std::vector<Problem> problems = neighbours(pass);
    std::vector<std::shared_ptr<const BuiltPlan>> plans;
    std::set<const BuiltPlan*> distinct;
    for (std::size_t i = 0; i < problems.size(); ++i) {
      SCOPED_TRACE(i);
      ASSERT_NO_THROW(plans.push_back(plan_for(problems[i])));
      EXPECT_TRUE(distinct.insert(plans.back().get()).second) << "shares another problem's plan";
      EXPECT_EQ(plans.back()->problem(), problems[i]);
    }
    for (std::size_t i = 0; i < problems.size(); ++i) EXPECT_EQ(plan_for(problems[i]), plans[i]);
  }
}

TEST(PlanCache, DefaultThreadsAreAKeyLikeAnyOther) {
  Problem problem = valid_problem(Pass::kForward);
  problem.threads = 0;
  const std::shared_ptr<const BuiltPlan> plan = plan_for(problem);
  EXPECT_EQ(plan->problem().threads, default_threads());
  EXPECT_EQ(plan_for(problem), plan);
  problem.threads = 2'000'000'000;
  EXPECT_EQ(plan_for(problem)->problem().threads, 1024);
}

class NoWork final : public Executable {
  std::size_t workspace_bytes() const override { return 0; }
  std::string configuration() const override { return "none"; }
  void execute(const Pack&, void*, void*) const override {}
};

std::shared_ptr<const BuiltPlan> plan_of(int key) {
  Problem problem;
  problem.threads = key;
  return std::make_shared<const BuiltPlan>(problem, Dims{}, "none", std::make_unique<NoWork>());
}

TEST(PlanCache, DropsWhatWasUsedLongestAgo) {
  PlanCache cache(3);
  for (int key = 0; key < 3; ++key) cache.insert(plan_of(key));
  const std::shared_ptr<const BuiltPlan> kept = cache.find(plan_of(0)->problem());
  ASSERT_NE(kept, nullptr);  // and with it used last
  for (int key = 3; key < 5; ++key) {
    cache.insert(plan_of(key));
    EXPECT_EQ(cache.size(), 3u);
  }
  EXPECT_EQ(cache.find(plan_of(0)->problem()), kept);
  EXPECT_EQ(cache.find(plan_of(1)->problem()), nullptr);
  EXPECT_EQ(cache.find(plan_of(2)->problem()), nullptr);
  EXPECT_NE(cache.find(plan_of(3)->problem()), nullptr);
  EXPECT_NE(cache.find(plan_of(4)->problem()), nullptr);
}

// Changes one fact of a problem, any of them, to one of a few values.
std::vector<std::function<void(Problem&, int)>> fact_changes() {
  using enum DType;
  std::vector<std::function<void(Problem&, int)>> changes;
  for (int port = 0; port < kPortCount; ++port) {
    const auto add = [&](auto change) {
      changes.push_back([=](Problem& p, int value) { change(p.tensors[port], value); });
    };
    add([](TensorDesc& x, int value) { x.dtype = static_cast<DType>(value); });
    add([](TensorDesc& x, int value) { x.device.type = static_cast<DeviceType>(value % 3); });
    add([](TensorDesc& x, int value) { x.device.index = value; });
    add([](TensorDesc& x, int value) { x.rank = value % (kMaxRank + 2) - 1; });
    for (int axis = 0; axis < kMaxRank; ++axis) {
      add([axis](TensorDesc& x, int value) { x.shape[axis] = value; });
      add([axis](TensorDesc& x, int value) { x.stride[axis] = value - 1; });
    }
  }
  const auto add = [&](auto change) { changes.push_back(change); };
  add([](Problem& p, int value) { p.op = static_cast<Op>(value % kOpCount); });
  add([](Problem& p, int value) { p.pass = static_cast<Pass>(value % 2); });
  add([](Problem& p, int value) { p.threads = value; });
  add([](Problem& p, int value) { p.plan_name = std::string(value, 'x'); });
  add([](Problem& p, int value) { p.requires_gradient = value % 2; });
  add([](Problem& p, int value) {
    p.options.scale = value == 0 ? std::nullopt : std::optional<double>(value - 1);
  });
  add([](Problem& p, int value) { p.options.use_qk_l2norm = value % 2; });
  add([](Problem& p, int value) { p.options.use_beta_sigmoid = value % 2; });
  add([](Problem& p, int value) { p.options.allow_neg_eigval = value % 2; });
  add([](Problem& p, int value) { p.options.safe_gate = value % 2; });
  add([](Problem& p, int value) { p.options.gate_domain = static_cast<GateDomain>(value % 2); });
  add([](Problem& p, int value) { p.options.batch_invariant = value % 2; });
  add([](Problem& p, int value) { p.options.output_final_state = value % 2; });
  add([](Problem& p, int value) { p.options.overwrite_initial_state = value % 2; });
  add([](Problem& p, int value) { p.options.checkpoint_every_n_tokens = value; });
  add([](Problem& p, int value) {
    p.options.checkpoint_dtype =
        value == 0 ? std::nullopt : std::optional<DType>(static_cast<DType>(value));
  });
  add([](Problem& p, int value) { p.options.gate = static_cast<GateKind>(value % 2); });
  add([](Problem& p, int value) {
    p.options.gate_lower_bound = value == 0 ? std::nullopt : std::optional<double>(-value);
  });
  add([](Problem& p, int value) { p.options.beta_guard = value % 2; });
  add([](Problem& p, int value) { p.options.num_householder = value; });
  add([](Problem& p, int value) { p.options.dt_softplus = value % 2; });
  add([](Problem& p, int value) { p.options.dt_min = value; });
  add([](Problem& p, int value) {
    p.options.dt_max = value == 0 ? std::nullopt : std::optional<double>(value - 1);
  });
  // A new fact does not fit into these: give it a change above.
  const auto& [op, pass, tensors, options, requires_gradient, plan_name, threads] = Problem{};
  const auto& [scale, l2norm, sigmoid, neg, safe, domain, invariant, final, overwrite, cadence,
               checkpoint_dtype, gate, bound, guard, steps, softplus, dt_min, dt_max] = Options{};
  const auto& [dtype, device, rank, shape, stride] = TensorDesc{};
  static_cast<void>(op), static_cast<void>(scale), static_cast<void>(dtype);
  return changes;
}

// Problems a few random facts apart: the cache answers each with the plan of just that problem.
TEST(PlanCache, EveryFactIsPartOfTheKey) {
  const auto changes = fact_changes();
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::vector<Problem> problems;
  PlanCache cache(4096);
  const auto insert = [&](const Problem& problem) {
    problems.push_back(problem);
    cache.insert(
        std::make_shared<const BuiltPlan>(problem, Dims{}, "none", std::make_unique<NoWork>()));
  };
  insert(valid_problem(Pass::kForward));
  // Every change alone, then random ones on top of problems that are there.
  for (std::size_t i = 0; i < 3000; ++i) {
    Problem problem = i < changes.size() ? problems[0] : problems[below(problems.size())];
    const std::size_t count = i < changes.size() ? 1 : 1 + below(3);
    for (std::size_t j = 0; j < count; ++j) {
      const auto& change = changes[i < changes.size() ? i : below(changes.size())];
      const Problem before = problem;
      for (int value = 0; problem == before && value < 8; ++value) change(problem, value);
      ASSERT_FALSE(problem == before) << "change " << i << " changes nothing";
    }
    const bool known = std::find(problems.begin(), problems.end(), problem) != problems.end();
    ASSERT_EQ(cache.find(problem) != nullptr, known) << i;
    if (!known) insert(problem);
  }
  for (const Problem& problem : problems) {
    const std::shared_ptr<const BuiltPlan> plan = cache.find(problem);
    ASSERT_NE(plan, nullptr);
    ASSERT_EQ(plan->problem(), problem);
  }
}

TEST(PlanCache, KeepsTheFirstOfTwoEqualPlans) {
  PlanCache cache(2);
  const std::shared_ptr<const BuiltPlan> first = plan_of(1);
  cache.insert(first);
  cache.insert(plan_of(1));
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_EQ(cache.find(first->problem()), first);
}

TEST(PlanCache, ManyThreadsAtOnce) {
  const std::vector<Problem> problems = neighbours(Pass::kForward);
  PlanCache small(4);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 200; ++i) {
        const Problem& problem = problems[(i * (thread + 1)) % problems.size()];
        if (!(plan_for(problem)->problem() == problem)) ++wrong;
        small.insert(plan_of(i * (thread + 1) % 9));
        const std::shared_ptr<const BuiltPlan> plan = small.find(plan_of(i % 9)->problem());
        if (plan && plan->problem().threads != i % 9) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(small.size(), 4u);
}

}  // namespace
}  // namespace deltaworks
