// Plans: how one is found, what it refuses, and that executing it is safe from many threads and
// allocates nothing.
#include "deltaworks/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "allocations.h"
#include "core/threads.h"
#include "deltaworks/explain.h"
#include "deltaworks/status.h"
#include "kit.h"
#include "problem_rows.h"
#include "registry/engine.h"
#include "registry/plan.h"
#include "row_changes.h"

namespace deltaworks {
namespace {

using namespace kit;

constexpr Pass kPasses[] = {Pass::kForward, Pass::kBackward};

void expect_error(const std::function<void()>& f, Status status, const std::string& text) {
  try {
    f();
    ADD_FAILURE() << "nothing was thrown; expected: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), status);
    EXPECT_EQ(error.what(), text);
  }
}

Call small_call() {
  return {.dims = make_dims(40, 2, 2, 4, 48, 40),  // enough for several threads
          .offsets = {0, 5, 5, 38},
          .options = {.use_qk_l2norm = true, .safe_gate = true},
          .a_log = true,
          .dt_bias = true,
          .types = {.io = DType::kBFloat16}};
}

TEST(Plan, TellsWhatItIs) {
  for (Pass pass : kPasses) {
    Tensors inputs = make_inputs(small_call(), 1);
    const Problem problem = prepare("", small_call(), pass, inputs).problem;
    const Plan plan = find_plan(problem);
    EXPECT_EQ(plan.name(), "gdn_cpu");
    EXPECT_GT(plan.workspace_bytes(), 0u);
    const std::string isa = dw_cpu_isa(nullptr);
    EXPECT_EQ(plan.configuration().substr(0, isa.size()), isa);
    const std::shared_ptr<const BuiltPlan> built = plan_for(problem);
    EXPECT_EQ(built->problem(), problem);
    EXPECT_EQ(built->dims(), validate(problem));
    EXPECT_EQ(built->name(), plan.name());
    EXPECT_EQ(built->configuration(), plan.configuration());
    EXPECT_EQ(built->workspace_bytes(), plan.workspace_bytes());
  }
}

TEST(Plan, TwoThreadsExecuteOnePlan) {
  for (Pass pass : kPasses) {
    const Tensors inputs = make_inputs(small_call(), 2);
    const Tensors expected = run("gdn_cpu", small_call(), pass, inputs, 2);
    std::vector<Tensors> results(3);
    std::vector<std::thread> threads;
    for (Tensors& result : results) {
      threads.emplace_back([&] {
        for (int i = 0; i < 5; ++i) result = run("gdn_cpu", small_call(), pass, inputs, 2);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Tensors& result : results) expect_same_bits(expected, result);
  }
}

#ifdef DELTAWORKS_COUNTS_ALLOCATIONS
TEST(Plan, ExecutionAllocatesNothing) {
  const std::int64_t start = allocations();
  std::vector<std::byte>* seen = new std::vector<std::byte>(100);
  ASSERT_EQ(allocations(), start + 2) << "allocations are not counted";
  delete seen;
  parallel_for(3, 3, [](std::int64_t, int) {});  // starts the workers, once a process
  std::vector<const char*> plans = {"gdn_cpu"};
#ifdef DELTAWORKS_REFERENCE
  plans.push_back("gdn_reference");
#endif
  for (const char* name : plans) {
    for (Pass pass : kPasses) {
      for (int threads : {1, 3}) {
        SCOPED_TRACE(testing::Message() << name << " " << threads);
        Call call = small_call();
        call.options.scale = threads + (pass == Pass::kForward ? 0.5 : 0.25);  // a plan not run yet
        Tensors inputs = make_inputs(call, 3);
        const Prepared prepared = prepare(name, call, pass, inputs, threads);
        const Plan plan = find_plan(prepared.problem);
        EXPECT_NE(plan.configuration().find(std::to_string(threads) + " thread"), std::string::npos)
            << plan.configuration();
        Workspace workspace(plan);
        const std::int64_t before = allocations();
        plan.execute(prepared.pack, workspace.data());
        EXPECT_EQ(allocations(), before);
      }
    }
  }
}
#endif

void expect_poison(const Tensors& outputs) {
  for (const auto& [port, tensor] : outputs) {
    EXPECT_TRUE(tensor.storage == Buffer(tensor.desc).storage) << name(port) << " was written";
  }
}

TEST(PlanErrors, MissingMemory) {
  for (Pass pass : kPasses) {
    Tensors inputs = make_inputs(small_call(), 4);
    const Prepared prepared = prepare("", small_call(), pass, inputs);
    const Plan plan = find_plan(prepared.problem);
    Workspace workspace(plan);
    int tensors = 0;
    for (const PortSpec& spec : ports(Op::kGatedDeltaNet)) {
      if (!prepared.problem.has(spec.port)) continue;
      Pack pack = prepared.pack;
      pack[spec.port] = nullptr;
      expect_error(
          [&] { plan.execute(pack, workspace.data()); }, Status::kInvalidValue,
          std::string("gated_delta_net: ") + name(spec.port) + " has no memory (null pointer)");
      ++tensors;
    }
    EXPECT_EQ(tensors, pass == Pass::kForward ? 11 : 19);
    expect_error([&] { plan.execute(prepared.pack, nullptr); }, Status::kInvalidValue,
                 "gated_delta_net: the workspace is missing (" +
                     std::to_string(plan.workspace_bytes()) + " bytes)");
    expect_poison(prepared.outputs);
  }
}

TEST(PlanErrors, MalformedOffsets) {
  const std::pair<std::array<std::int64_t, 4>, const char*> rows[] = {
      {{1, 5, 6, 38}, "start at 0, got 1"},
      {{-1, 5, 6, 38}, "start at 0, got -1"},
      {{0, 5, 4, 38}, "not decrease, got 5 then 4 at sequence 1"},
      {{0, -2, 4, 38}, "not decrease, got 0 then -2 at sequence 0"},
      {{0, 5, 41, 38}, "not decrease, got 41 then 38 at sequence 2"},
      {{0, 5, 6, 41}, "end at most at T = 40, got 41"},
      {{0, 50, 60, 70}, "end at most at T = 40, got 70"},
  };
  for (Pass pass : kPasses) {
    for (DType offset : {DType::kInt32, DType::kInt64}) {
      for (const bool padded : {false, true}) {
        for (const auto& [offsets, text] : rows) {
          SCOPED_TRACE(testing::Message() << text << " " << name(offset) << " " << padded);
          Call call = small_call();
          call.types.offset = offset;
          Tensors inputs = make_inputs(call, 5);
          Buffer& cu_seqlens = inputs.at(Port::kCuSeqlens);
          if (padded) cu_seqlens = relaid(cu_seqlens, reversed(cu_seqlens.desc));
          for (int i = 0; i < 4; ++i) cu_seqlens.set(i, static_cast<double>(offsets[i]));
          const Prepared prepared = prepare("", call, pass, inputs);
          const Plan plan = find_plan(prepared.problem);
          Workspace workspace(plan);
          expect_error([&] { plan.execute(prepared.pack, workspace.data()); },
                       Status::kInvalidValue,
                       std::string("gated_delta_net: cu_seqlens must ") + text);
          expect_poison(prepared.outputs);
        }
      }
    }
  }
}

// A null pointer is no error where there is nothing to point at.
TEST(PlanErrors, EmptyTensorsNeedNoMemory) {
  const Call call{.dims = make_dims(0, 1, 1, 1, 2, 2), .offsets = {0, 0}};
  Tensors inputs = make_inputs(call, 6);
  Prepared prepared = prepare("", call, Pass::kForward, inputs);
  for (Port port : {Port::kQ, Port::kK, Port::kV, Port::kG, Port::kBeta, Port::kO}) {
    prepared.pack[port] = nullptr;
  }
  const Plan plan = find_plan(prepared.problem);
  Workspace workspace(plan);
  EXPECT_NO_THROW(plan.execute(prepared.pack, workspace.data()));
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(prepared.outputs.at(Port::kFinalState).get(i), inputs.at(Port::kInitialState).get(i));
  }
}

TEST(PlanErrors, UnknownName) {
  Problem problem = valid_problem(Pass::kForward);
  problem.plan_name = "gdn_sm100";
  expect_error([&] { find_plan(problem); }, Status::kInvalidValue,
               "gated_delta_net: plan_name must be one of " + plan_list("gdn") + ", got gdn_sm100");
}

// Each operation has plans of its own: another's is an unknown name.
TEST(PlanErrors, EveryOperationHasItsNames) {
  const char* variants[] = {"gdn", "kda", "gdn2", "gdp", "mamba2"};
  for (int op = 0; op < kOpCount; ++op) {
    Problem problem = valid_problem(Pass::kForward, static_cast<Op>(op));
    problem.plan_name = std::string(variants[(op + 1) % kOpCount]) + "_cpu";
    expect_error([&] { find_plan(problem); }, Status::kInvalidValue,
                 std::string(op_name(problem.op)) + ": plan_name must be one of " +
                     plan_list(variants[op]) + ", got " + problem.plan_name);
    problem.plan_name = "";
    EXPECT_EQ(plan_names(problem)[0], std::string(variants[op]) + "_cpu");
  }
}

TEST(PlanErrors, NobodyAccepts) {
  Problem problem = valid_problem(Pass::kForward);
  problem.options.checkpoint_every_n_tokens = 64;
  std::string text =
      "gated_delta_net: no engine takes this problem"
      "\n  gdn_cpu: checkpoint_every_n_tokens must be 0 (state checkpoints are not supported yet), "
      "got 64";
#ifdef DELTAWORKS_REFERENCE
  text +=
      "\n  gdn_reference: q k v must be float64, or plan_name must pin it, got bfloat16 and no "
      "plan_name"
      "\n  gdn_reference: checkpoint_every_n_tokens must be 0, got 64";
#endif
  expect_error([&] { find_plan(problem); }, Status::kNotSupported, text);
  expect_error([&] { check_support(problem); }, Status::kNotSupported, text);
  EXPECT_NO_THROW(check_support(valid_problem(Pass::kForward)));
}

TEST(PlanErrors, PinnedEngineDeclines) {
  Problem problem = valid_problem(Pass::kForward);
  problem.plan_name = "gdn_cpu";
  problem[Port::kStateIndices] = contiguous(DType::kInt32, {2});
  expect_error([&] { find_plan(problem); }, Status::kNotSupported,
               "gated_delta_net: gdn_cpu, pinned by plan_name, does not take this problem"
               "\n  gdn_cpu: state_indices must be absent (state pools are not supported yet), got "
               "a tensor");
}

TEST(Explain, EveryEngineWithItsReasons) {
  Problem problem = valid_problem(Pass::kForward);
  std::vector<Verdict> verdicts = explain(problem);
  ASSERT_GE(verdicts.size(), 1u);
  const std::vector<std::string> names = plan_names(problem);
  ASSERT_EQ(names.size(), verdicts.size());
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(names[i], verdicts[i].plan_name);
  EXPECT_EQ(verdicts[0].plan_name, "gdn_cpu");
  EXPECT_TRUE(verdicts[0].accepts());
  const Plan plan = find_plan(problem);
  EXPECT_EQ(verdicts[0].workspace_bytes, plan.workspace_bytes());
  EXPECT_EQ(verdicts[0].configuration, plan.configuration());
  for (TensorDesc& x : problem.tensors) {
    if (x.present() && x.dtype != DType::kInt64) x.dtype = DType::kFloat64;
  }
  verdicts = explain(problem);
  EXPECT_EQ(verdicts[0].reasons,
            std::vector<std::string>{"q k v must be float32, bfloat16 or float16, got float64"});
  EXPECT_EQ(verdicts[0].workspace_bytes, 0u);
  EXPECT_EQ(verdicts[0].configuration, "");
  const std::vector<std::string>& conditions = verdicts[0].conditions;
  EXPECT_EQ(std::count(conditions.begin(), conditions.end(),
                       "q k v must be float32, bfloat16 or float16"),
            1);
#ifdef DELTAWORKS_REFERENCE
  ASSERT_EQ(verdicts.size(), 2u);
  EXPECT_EQ(verdicts[1].plan_name, "gdn_reference");
  EXPECT_TRUE(verdicts[1].reasons.empty());
  EXPECT_EQ(find_plan(problem).name(), "gdn_reference");
  const std::vector<Verdict> narrow = explain(valid_problem(Pass::kForward));
  EXPECT_EQ(narrow[1].reasons.size(), 1u);
#else
  EXPECT_EQ(verdicts.size(), 1u);
#endif
  for (TensorDesc& x : problem.tensors) x.device = {DeviceType::kCuda, 0};
  for (const Verdict& verdict : explain(problem)) EXPECT_FALSE(verdict.reasons.empty());
  problem[Port::kQ] = TensorDesc{};
  expect_error([&] { explain(problem); }, Status::kInvalidValue, "gated_delta_net: q is missing");
}

}  // namespace
}  // namespace deltaworks
