// The C interface: the same statuses and texts as C++, its struct's size, and its texts' lifetimes.
#include "deltaworks/c_api.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <thread>

#include "c_call.h"
#include "kit.h"
#include "problem_rows.h"

extern "C" float deltaworks_run_from_c(void);

namespace deltaworks {
namespace {

using namespace kit;

void expect_failure(dw_status got, Status status, const std::string& text) {
  EXPECT_EQ(got, static_cast<dw_status>(status));
  EXPECT_EQ(dw_last_error(), text);
}

TEST(CApi, IsC) { EXPECT_EQ(deltaworks_run_from_c(), 12.0f); }

void expect_failure(dw_status got, const ProblemRow& row) {
  expect_failure(got, row.status, row.text);
  EXPECT_STREQ(dw_last_rule(), name(row.rule));
}

TEST(CApi, EveryRuleHasItsStatusAndText) {
  for (const ProblemRow& row : problem_rows()) {
    SCOPED_TRACE(row.text);
    Problem problem = valid_problem(row);
    row.breaks(problem);
    CCall call(problem);
    if (!row.gate_domain.empty()) call.problem.gate_domain = row.gate_domain.c_str();
    if (!row.gate.empty()) call.problem.gate = row.gate.c_str();
    if (!row.offsets.empty() || row.without_memory) continue;  // ExecuteJudgesData
    {
      expect_failure(dw_validate(&call.problem, nullptr), row);
      size_t needed = 0;
      expect_failure(dw_problem_format(&call.problem, nullptr, 0, &needed), row);
      dw_verdicts* verdicts = reinterpret_cast<dw_verdicts*>(&problem);
      expect_failure(dw_explain(&call.problem, &verdicts), row);
      EXPECT_EQ(verdicts, nullptr);
    }
    expect_failure(dw_check(&call.problem), row);
    dw_plan* plan = reinterpret_cast<dw_plan*>(&problem);
    expect_failure(dw_plan_find(&call.problem, &plan), row);
    EXPECT_EQ(plan, nullptr);
  }
}

TEST(CApi, ExecuteJudgesData) {
  int rows = 0;
  for (const ProblemRow& row : problem_rows()) {
    if (row.offsets.empty() && !row.without_memory) continue;
    SCOPED_TRACE(row.text);
    Problem problem = valid_problem(row);
    row.breaks(problem);
    Tensors tensors;
    CCall call(problem);
    for (int port = 0; port < kPortCount; ++port) {
      if (!problem.has(static_cast<Port>(port))) continue;
      Buffer& buffer =
          tensors.emplace(static_cast<Port>(port), Buffer(problem.tensors[port])).first->second;
      call.pointers[port] = buffer.data();
    }
    for (std::size_t i = 0; i < row.offsets.size(); ++i) {
      tensors.at(Port::kCuSeqlens).set(i, static_cast<double>(row.offsets[i]));
    }
    if (row.without_memory) call.pointers[index(*row.without_memory)] = nullptr;
    dw_plan* plan = nullptr;
    ASSERT_EQ(dw_plan_find(&call.problem, &plan), DW_OK) << dw_last_error();
    std::vector<std::byte> workspace(dw_plan_workspace_bytes(plan));
    expect_failure(dw_plan_execute(plan, call.pointers, DW_PORT_COUNT, workspace.data(), nullptr),
                   row);
    dw_plan_release(plan);
    ++rows;
  }
  EXPECT_GE(rows, 8);
}

TEST(CApi, RunsAsCppDoes) {
  for (Pass pass : {Pass::kForward, Pass::kBackward}) {
    const Call call{.dims = make_dims(30, 2, 2, 4, 8, 12),
                    .offsets = {0, 30},
                    .options = {.scale = 0.5,
                                .use_qk_l2norm = true,
                                .use_beta_sigmoid = true,
                                .allow_neg_eigval = true,
                                .gate_domain = GateDomain::kLinear}};
    Tensors inputs = make_inputs(call, 1);
    const Tensors expected = run("gdn_cpu", call, pass, inputs);
    const Prepared prepared = prepare("", call, pass, inputs);
    CCall from(prepared.problem, prepared.pack);
    EXPECT_EQ(dw_check(&from.problem), DW_OK);
    dw_dims dims;
    EXPECT_EQ(dw_validate(&from.problem, &dims), DW_OK);
    EXPECT_EQ(dims.T, 30);
    EXPECT_EQ(dims.HO, 4);
    std::reverse(from.tensors.begin(), from.tensors.end());  // the order does not matter
    dw_plan* plan = nullptr;
    ASSERT_EQ(dw_plan_find(&from.problem, &plan), DW_OK);
    EXPECT_STREQ(dw_plan_name(plan), "gdn_cpu");
    const std::size_t bytes = dw_plan_workspace_bytes(plan);
    std::vector<std::byte> workspace(bytes);
    EXPECT_EQ(dw_plan_execute(plan, from.pointers, DW_PORT_COUNT, workspace.data(), nullptr),
              DW_OK);
    expect_same_bits(expected, prepared.outputs);
    dw_plan_release(plan);
    EXPECT_STREQ(dw_last_plan(), "gdn_cpu");
    EXPECT_EQ(dw_last_workspace_bytes(), bytes);
  }
}

TEST(CApi, ReleaseTakesNull) {
  dw_plan_release(nullptr);
  dw_verdicts_release(nullptr);
}

TEST(CApi, NotSupportedIsThree) {
  Problem problem = valid_problem(Pass::kForward);
  problem.plan_name = "gdn_cpu";
  problem.options.checkpoint_every_n_tokens = 16;
  const CCall call(problem);
  expect_failure(
      dw_check(&call.problem), Status::kNotSupported,
      "gated_delta_net: gdn_cpu, pinned by plan_name, does not take this problem\n  gdn_cpu: "
      "checkpoint_every_n_tokens must be 0 (state checkpoints are not supported yet), "
      "got 16");
  EXPECT_STREQ(dw_last_rule(), "");
}

TEST(CApi, ValuesOutOfRange) {
  const Problem problem = valid_problem(Pass::kForward);
  const auto expect_wrong = [&](auto change, const std::string& text) {
    CCall call(problem);
    change(call);
    expect_failure(dw_check(&call.problem), Status::kInvalidValue, text);
  };
  expect_wrong([](CCall& c) { c.problem.op = 7; }, "dw_problem: unknown operation 7");
  expect_wrong([](CCall& c) { c.problem.pass = 2; }, "dw_problem: pass must be 0 or 1, got 2");
  expect_wrong([](CCall& c) { c[DW_V].port = DW_Q; }, "dw_problem: q is described twice");
  expect_wrong([](CCall& c) { c[DW_V].port = DW_PORT_COUNT; }, "dw_problem: unknown port 28");
  expect_wrong([](CCall& c) { c[DW_V].port = -1; }, "dw_problem: unknown port -1");
  expect_wrong([](CCall& c) { c.problem.tensors = nullptr; },
               "dw_problem: tensors is a null pointer");
  expect_wrong([](CCall& c) { c.problem.tensor_count = 29; },
               "dw_problem: tensor_count must be at most 28, got 29");
  expect_wrong([](CCall& c) { c.problem.flags |= 1u << 20; }, "dw_problem: unknown flags 1048576");
  expect_wrong([](CCall& c) { c.problem.reserved = 5; }, "dw_problem: reserved must be 0, got 5");
  expect_wrong([](CCall& c) { c[DW_K].reserved = 6; }, "dw_problem: k: reserved must be 0, got 6");
  for (std::int32_t dtype : {-1, static_cast<std::int32_t>(DW_OTHER), 99}) {
    CCall call(problem);
    call[DW_G].dtype = dtype;
    expect_failure(dw_check(&call.problem), Status::kInvalidType,
                   "gated_delta_net: g must be float32, bfloat16 or float16, got an unsupported "
                   "dtype");
  }
  for (std::int32_t device : {static_cast<std::int32_t>(DW_OTHER_DEVICE), 99, -1}) {
    expect_wrong([device](CCall& c) { c[DW_G].device_type = device; },
                 "gated_delta_net: g must be on q's device (cpu), got another device");
  }
  expect_wrong([](CCall& c) { c[DW_G].ndim = -1; },
               "gated_delta_net: g must have shape [T, HO], got []");
  for (const char* log : {"log", static_cast<const char*>(nullptr)}) {
    CCall call(problem);
    call.problem.gate_domain = log;
    call.problem.plan_name = nullptr;
    EXPECT_EQ(dw_check(&call.problem), DW_OK);
  }
}

// A caller of another version has another length of the struct. An older one's ends before the
// fields that came later, which are zero for it; what a newer one has past the struct known here
// must be zero.
TEST(CApi, StructSize) {
  constexpr std::size_t kFirst = offsetof(dw_problem, reserved) + sizeof(std::int32_t);
  const Problem problem = valid_problem(Pass::kForward);
  CCall call(problem);
  for (std::size_t size : {std::size_t{0}, kFirst - 1, ~std::size_t{0}}) {
    call.problem.struct_size = size;
    expect_failure(dw_check(&call.problem), Status::kInvalidValue,
                   "dw_problem: struct_size must be sizeof(dw_problem) = " +
                       std::to_string(sizeof(dw_problem)) + ", got " + std::to_string(size));
  }
  struct {
    dw_problem known;
    std::int64_t later[3];
  } newer{call.problem, {0, 0, 0}};
  newer.known.struct_size = sizeof newer;
  EXPECT_EQ(dw_check(&newer.known), DW_OK) << dw_last_error();
  newer.later[2] = 1;
  expect_failure(dw_check(&newer.known), Status::kInvalidValue,
                 "dw_problem: fields past the " + std::to_string(sizeof(dw_problem)) +
                     " bytes that this library knows must be 0");
}

// What lies behind an older caller's struct is not read, nor written.
TEST(CApi, AnOlderCallersStruct) {
  constexpr std::size_t kFirst = offsetof(dw_problem, reserved) + sizeof(std::int32_t);
  static_assert(kFirst < sizeof(dw_problem));
  const Problem problem = valid_problem(Pass::kForward);
  const CCall call(problem);
  std::vector<std::byte> memory(kFirst);  // the sanitizers see what goes past it
  dw_problem* older = reinterpret_cast<dw_problem*>(memory.data());
  std::memcpy(memory.data(), &call.problem, kFirst);
  older->struct_size = kFirst;
  EXPECT_EQ(dw_check(older), DW_OK) << dw_last_error();
  std::size_t needed = 0;
  std::string text(300, '#');
  ASSERT_EQ(dw_problem_format(older, text.data(), text.size(), &needed), DW_OK) << dw_last_error();
  text.resize(needed - 1);
  const std::vector<std::byte> before = memory;
  EXPECT_EQ(dw_check(older), DW_OK);
  EXPECT_EQ(memory, before);

  // A string is read into it as well; what it has no field for stays behind.
  dw_tensor tensors[DW_PORT_COUNT];
  ASSERT_EQ(dw_problem_parse(text.c_str(), older, tensors, DW_PORT_COUNT), DW_OK);
  EXPECT_EQ(older->struct_size, kFirst);
  EXPECT_EQ(dw_check(older), DW_OK) << dw_last_error();

  // It can say neither sub-steps nor a gate's bound; the flag alone of a bound means 0.
  const Problem product = valid_problem(Pass::kForward, Op::kGatedDeltaProduct);
  CCall steps(product);
  EXPECT_EQ(dw_validate(&steps.problem, nullptr), DW_OK) << dw_last_error();
  steps.problem.struct_size = kFirst;
  expect_failure(dw_validate(&steps.problem, nullptr), Status::kInvalidValue,
                 "gated_delta_product: num_householder must be >= 1, got 0");
  Problem bounded = valid_problem(Pass::kForward, Op::kKimiDeltaAttention);
  bounded.options.gate_lower_bound = -2;
  CCall bound(bounded);
  EXPECT_EQ(dw_validate(&bound.problem, nullptr), DW_OK) << dw_last_error();
  bound.problem.struct_size = kFirst;
  expect_failure(dw_validate(&bound.problem, nullptr), Status::kInvalidValue,
                 "kimi_delta_attention: gate_lower_bound must be finite and < 0, got 0");
}

// Pointers of ports that the caller's version does not know are absent.
TEST(CApi, FewerPointers) {
  const Problem problem = valid_problem(Pass::kForward);
  const CCall call(problem);
  dw_plan* plan = nullptr;
  ASSERT_EQ(dw_plan_find(&call.problem, &plan), DW_OK);
  expect_failure(dw_plan_execute(plan, nullptr, 0, nullptr, nullptr), Status::kInvalidValue,
                 "gated_delta_net: q has no memory (null pointer)");
  float memory[1024] = {};  // more than any of the tensors before the fourth
  std::vector<void*> few = {memory, memory, memory};
  few.shrink_to_fit();
  expect_failure(dw_plan_execute(plan, few.data(), few.size(), memory, nullptr),
                 Status::kInvalidValue, "gated_delta_net: g has no memory (null pointer)");
  expect_failure(dw_plan_execute(plan, nullptr, 1, nullptr, nullptr), Status::kInvalidValue,
                 "pointers is a null pointer");
  dw_plan_release(plan);
}

TEST(CApi, NullPointers) {
  const Problem problem = valid_problem(Pass::kForward);
  const CCall call(problem);
  const auto expect_null = [](dw_status got, const std::string& name) {
    expect_failure(got, Status::kInvalidValue, name + " is a null pointer");
  };
  dw_problem parsed{};
  dw_plan* plan = nullptr;
  dw_verdicts* verdicts = nullptr;
  dw_tensor tensors[DW_PORT_COUNT];
  std::size_t count = 0;
  expect_null(dw_validate(nullptr, nullptr), "problem");
  expect_null(dw_check(nullptr), "problem");
  expect_null(dw_plan_find(nullptr, &plan), "problem");
  expect_null(dw_plan_find(&call.problem, nullptr), "plan");
  expect_null(dw_explain(nullptr, &verdicts), "problem");
  expect_null(dw_explain(&call.problem, nullptr), "verdicts");
  expect_null(dw_describe_outputs(nullptr, 0, tensors, DW_PORT_COUNT, &count), "problem");
  expect_null(dw_describe_outputs(&call.problem, 0, nullptr, DW_PORT_COUNT, &count), "outputs");
  expect_null(dw_describe_outputs(&call.problem, 0, tensors, DW_PORT_COUNT, nullptr), "count");
  const char* text = "gdn:fwd:fp32:N1T1H1K1V1";
  expect_null(dw_problem_parse(nullptr, &parsed, tensors, DW_PORT_COUNT), "text");
  expect_null(dw_problem_parse(text, nullptr, tensors, DW_PORT_COUNT), "problem");
  parsed.struct_size = sizeof parsed;
  expect_null(dw_problem_parse(text, &parsed, nullptr, DW_PORT_COUNT), "tensors");
  parsed.struct_size = 8;
  expect_failure(dw_problem_parse(text, &parsed, tensors, DW_PORT_COUNT), Status::kInvalidValue,
                 "dw_problem: struct_size must be sizeof(dw_problem) = " +
                     std::to_string(sizeof(dw_problem)) + ", got 8");
  expect_null(dw_problem_format(nullptr, nullptr, 0, &count), "problem");
  expect_null(dw_problem_format(&call.problem, nullptr, 10, nullptr), "text");
  expect_null(dw_plan_execute(nullptr, call.pointers, DW_PORT_COUNT, nullptr, nullptr), "plan");
  expect_null(dw_plan_time(nullptr, call.pointers, DW_PORT_COUNT, nullptr, 1, nullptr, nullptr),
              "plan");
}

TEST(CApi, DescribesOutputs) {
  const auto outputs_of = [](const Problem& problem, std::uint64_t wanted) {
    const CCall call(problem);
    dw_tensor outputs[DW_PORT_COUNT];
    std::size_t count = 0;
    EXPECT_EQ(dw_describe_outputs(&call.problem, wanted, outputs, DW_PORT_COUNT, &count), DW_OK);
    std::map<Port, TensorDesc> described;
    for (std::size_t i = 0; i < count; ++i) {
      described[static_cast<Port>(outputs[i].port)] = detail::describe(outputs[i]);
    }
    return described;
  };
  for (Pass pass : {Pass::kForward, Pass::kBackward}) {
    const Problem problem = valid_problem(pass);
    const std::uint64_t wanted = ~std::uint64_t{0};
    const std::map<Port, TensorDesc> described = outputs_of(problem, wanted);
    EXPECT_EQ(described.size(), pass == Pass::kForward ? 2u : 8u);
    for (const auto& [port, desc] : described) EXPECT_EQ(desc, problem[port]) << name(port);
  }
  Problem forward = valid_problem(Pass::kForward);
  forward.options.output_final_state = false;
  EXPECT_FALSE(outputs_of(forward, 0).contains(Port::kFinalState));
  forward.options.output_final_state = forward.options.overwrite_initial_state = true;
  EXPECT_FALSE(outputs_of(forward, 0).contains(Port::kFinalState));
  const Problem backward = valid_problem(Pass::kBackward);
  EXPECT_EQ(outputs_of(backward, 0).size(), 0u);
  const auto one = outputs_of(backward, std::uint64_t{1} << DW_DBETA);
  EXPECT_EQ(one.size(), 1u);
  EXPECT_TRUE(one.contains(Port::kDBeta));
  // Without an initial state the states are fp32; with fp64 tensors they are fp64.
  forward = valid_problem(Pass::kForward);
  forward[Port::kInitialState] = TensorDesc{};
  EXPECT_EQ(outputs_of(forward, 0).at(Port::kFinalState).dtype, DType::kFloat32);
  forward[Port::kQ].dtype = DType::kFloat64;
  EXPECT_EQ(outputs_of(forward, 0).at(Port::kFinalState).dtype, DType::kFloat64);

  const CCall call(backward);
  dw_tensor outputs[2];
  std::size_t count = 0;
  expect_failure(dw_describe_outputs(&call.problem, ~std::uint64_t{0}, outputs, 2, &count),
                 Status::kInvalidValue, "dw_describe_outputs: capacity is too small");
}

// Whatever is wrong with the inputs, outputs can be described, and the inputs are named then.
TEST(CApi, DescribesOutputsOfInvalidInputs) {
  for (const ProblemRow& row : problem_rows()) {
    if (!row.about_description()) continue;
    SCOPED_TRACE(row.text);
    Problem problem = valid_problem(row);
    row.breaks(problem);
    const CCall call(problem);
    dw_tensor outputs[DW_PORT_COUNT];
    std::size_t count = 0;
    EXPECT_EQ(dw_describe_outputs(&call.problem, ~std::uint64_t{0}, outputs, DW_PORT_COUNT, &count),
              DW_OK);
  }
}

TEST(CApi, LastErrorIsOfItsThread) {
  const Problem problem = valid_problem(Pass::kForward);
  CCall wrong(problem);
  wrong.problem.op = DW_OP_COUNT;
  EXPECT_NE(dw_check(&wrong.problem), DW_OK);
  std::thread([&] {
    EXPECT_STREQ(dw_last_error(), "");
    EXPECT_STREQ(dw_last_rule(), "");
    EXPECT_STREQ(dw_last_plan(), "");
    EXPECT_EQ(dw_last_workspace_bytes(), 0u);
    dw_problem other = wrong.problem;
    other.op = -1;
    EXPECT_NE(dw_check(&other), DW_OK);
    EXPECT_STREQ(dw_last_error(), "dw_problem: unknown operation -1");
  }).join();
  EXPECT_STREQ(dw_last_error(), "dw_problem: unknown operation 5");
}

TEST(CApi, TimesAPlan) {
  const Call call{.dims = make_dims(64, 1, 1, 1, 16, 16), .offsets = {0, 64}};
  Tensors inputs = make_inputs(call, 1);
  for (Pass pass : {Pass::kForward, Pass::kBackward}) {
    const Prepared prepared = prepare("gdn_cpu", call, pass, inputs);
    const CCall from(prepared.problem, prepared.pack);
    dw_plan* plan = nullptr;
    ASSERT_EQ(dw_plan_find(&from.problem, &plan), DW_OK);
    std::vector<std::byte> workspace(dw_plan_workspace_bytes(plan));
    double execute = 0, kernels = 0;
    EXPECT_EQ(
        dw_plan_time(plan, from.pointers, DW_PORT_COUNT, workspace.data(), 5, &execute, &kernels),
        DW_OK);
    EXPECT_GT(execute, 0);
    EXPECT_GT(kernels, 0);
    EXPECT_LT(execute, 10);
    dw_plan_release(plan);
  }
}

TEST(CApi, TellsWhatIsThere) {
  EXPECT_STREQ(dw_version(), DELTAWORKS_VERSION);
  EXPECT_NE(std::string(dw_build()).find_first_of("0123456789"), std::string::npos);
  std::int32_t lanes = 0;
  EXPECT_STREQ(dw_cpu_isa(nullptr), dw_cpu_isa(&lanes));
  EXPECT_GE(lanes, 4);
  EXPECT_GE(dw_default_threads(), 1);
}

}  // namespace
}  // namespace deltaworks
