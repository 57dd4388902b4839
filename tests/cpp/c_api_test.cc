// The C interface: the same statuses and texts as C++, its struct's size, and its texts' lifetimes.
#include "deltaworks/c_api.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
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

TEST(CApi, EveryRuleHasItsStatusAndText) {
  for (const ProblemRow& row : problem_rows()) {
    SCOPED_TRACE(row.text);
    Problem problem = valid_problem(row.pass);
    row.breaks(problem);
    const dw_call call = c_call(problem);
    expect_failure(dw_check(&call), row.status, row.text);
    dw_plan* plan = reinterpret_cast<dw_plan*>(&problem);
    expect_failure(dw_plan_find(&call, &plan), row.status, row.text);
    EXPECT_EQ(plan, nullptr);
    expect_failure(dw_explain(&call, nullptr, 0, nullptr), row.status, row.text);
  }
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
    const dw_call from = c_call(prepared.problem, prepared.pack);
    EXPECT_EQ(dw_check(&from), 0);
    dw_plan* plan = nullptr;
    ASSERT_EQ(dw_plan_find(&from, &plan), 0);
    EXPECT_STREQ(dw_plan_name(plan), "gdn_cpu");
    const std::size_t bytes = dw_plan_workspace_bytes(plan);
    EXPECT_EQ(bytes, find_plan(prepared.problem)->workspace_bytes());
    std::vector<std::byte> workspace(bytes);
    EXPECT_EQ(dw_plan_execute(plan, &from, workspace.data(), nullptr), 0);
    expect_same_bits(expected, prepared.outputs);
    dw_plan_release(plan);
    EXPECT_STREQ(dw_last_plan(), "gdn_cpu");
    EXPECT_EQ(dw_last_workspace_bytes(), bytes);
  }
}

TEST(CApi, ExecuteReportsMissingMemory) {
  const Problem problem = valid_problem(Pass::kForward);
  const dw_call call = c_call(problem);  // null pointers throughout
  dw_plan* plan = nullptr;
  ASSERT_EQ(dw_plan_find(&call, &plan), 0);
  expect_failure(dw_plan_execute(plan, &call, nullptr, nullptr), Status::kInvalidValue,
                 "gated_delta_net: q has no memory (null pointer)");
  dw_plan_release(plan);
  dw_plan_release(nullptr);
}

TEST(CApi, NotSupportedIsThree) {
  Problem problem = valid_problem(Pass::kForward);
  problem.plan_name = "gdn_cpu";
  problem.options.checkpoint_every_n_tokens = 16;
  const dw_call call = c_call(problem);
  expect_failure(dw_check(&call), Status::kNotSupported,
                 "gated_delta_net: no engine takes this problem\n  gdn_cpu: "
                 "checkpoint_every_n_tokens must be 0 (state checkpoints are not supported yet), "
                 "got 16");
}

TEST(CApi, ValuesOutOfRange) {
  const Problem problem = valid_problem(Pass::kForward);
  dw_call call = c_call(problem);
  call.op = 7;
  expect_failure(dw_check(&call), Status::kInvalidValue, "dw_call: unknown operation 7");
  call = c_call(problem);
  call.pass = 2;
  expect_failure(dw_check(&call), Status::kInvalidValue,
                 "gated_delta_net: pass must be 0 or 1, got 2");
  call = c_call(problem);
  call.gate_domain = "cubic";
  expect_failure(dw_check(&call), Status::kInvalidValue,
                 "gated_delta_net: gate_domain must be 'log' or 'linear', got 'cubic'");
  for (std::int32_t dtype : {-1, static_cast<std::int32_t>(DW_OTHER), 99}) {
    call = c_call(problem);
    call.tensors[DW_G].dtype = dtype;
    expect_failure(dw_check(&call), Status::kInvalidType,
                   "gated_delta_net: g must be float32, bfloat16 or float16, got an unsupported "
                   "dtype");
  }
  for (std::int32_t device : {static_cast<std::int32_t>(DW_OTHER_DEVICE), 99}) {
    call = c_call(problem);
    call.tensors[DW_G].device_type = device;
    expect_failure(dw_check(&call), Status::kInvalidValue,
                   "gated_delta_net: g must be on q's device (cpu), got another device");
  }
  for (const char* log : {"log", static_cast<const char*>(nullptr)}) {
    call = c_call(problem);
    call.gate_domain = log;
    call.plan_name = nullptr;
    EXPECT_EQ(dw_check(&call), 0);
  }
}

// A caller of an older version has a shorter struct: ports it does not know are absent. Of a newer
// one, what is past the struct known here is not looked at.
TEST(CApi, StructSize) {
  const Problem problem = valid_problem(Pass::kForward);
  dw_call call = c_call(problem);
  const std::string text =
      "dw_call: struct_size must be sizeof(dw_call) = " + std::to_string(sizeof(dw_call)) +
      ", got ";
  for (std::size_t size : {std::size_t{0}, offsetof(dw_call, tensors) - 1}) {
    call.struct_size = size;
    expect_failure(dw_check(&call), Status::kInvalidValue, text + std::to_string(size));
  }
  call.struct_size = offsetof(dw_call, tensors) + DW_O * sizeof(dw_tensor);
  expect_failure(dw_check(&call), Status::kInvalidValue, "gated_delta_net: o is missing");
  call.struct_size += sizeof(dw_tensor);
  expect_failure(dw_check(&call), Status::kInvalidValue,
                 "gated_delta_net: final_state is missing (output_final_state is set)");
  call.struct_size += sizeof(dw_tensor);
  EXPECT_EQ(dw_check(&call), 0);
  call.struct_size = sizeof(dw_call) + 1000;
  EXPECT_EQ(dw_check(&call), 0);
}

TEST(CApi, LastErrorIsOfItsThread) {
  const Problem problem = valid_problem(Pass::kForward);
  dw_call wrong = c_call(problem);
  wrong.op = 1;
  EXPECT_NE(dw_check(&wrong), 0);
  std::thread([&] {
    EXPECT_STREQ(dw_last_error(), "");
    EXPECT_STREQ(dw_last_plan(), "");
    EXPECT_EQ(dw_last_workspace_bytes(), 0u);
    dw_call other = wrong;
    other.op = 2;
    EXPECT_NE(dw_check(&other), 0);
    EXPECT_STREQ(dw_last_error(), "dw_call: unknown operation 2");
  }).join();
  EXPECT_STREQ(dw_last_error(), "dw_call: unknown operation 1");
}

TEST(CApi, ExplainFillsWhatFits) {
  Problem problem = valid_problem(Pass::kForward);
  problem.options.has_state_indices = true;
  const dw_call call = c_call(problem);
  std::size_t needed = 0;
  EXPECT_EQ(dw_explain(&call, nullptr, 0, &needed), 0);
  std::vector<char> whole(needed + 1, 'x');
  EXPECT_EQ(dw_explain(&call, whole.data(), needed, nullptr), 0);
  EXPECT_EQ(whole[needed], 'x');
  ASSERT_EQ(std::strlen(whole.data()) + 1, needed);
  std::string expected = "gdn_cpu: state_indices (state pools) is not supported yet\n";
#ifdef DELTAWORKS_REFERENCE
  expected +=
      "gdn_reference: is chosen by itself only for float64 tensors; pin it by plan_name for "
      "others\ngdn_reference: state_indices must be absent, got a tensor\n";
#endif
  EXPECT_EQ(std::string(whole.data()), expected);
  for (std::size_t size : {std::size_t{1}, std::size_t{2}, needed / 2, needed - 1}) {
    std::vector<char> part(size + 1, 'x');
    std::size_t again = 0;
    EXPECT_EQ(dw_explain(&call, part.data(), size, &again), 0);
    EXPECT_EQ(again, needed);
    EXPECT_EQ(std::string(part.data()), expected.substr(0, size - 1));
    EXPECT_EQ(part[size], 'x');
  }
  const Problem accepted = valid_problem(Pass::kForward);
  const dw_call valid = c_call(accepted);
  std::string text(200, 'x');
  EXPECT_EQ(dw_explain(&valid, text.data(), text.size(), &needed), 0);
  EXPECT_EQ(text.substr(0, 17), "gdn_cpu: accepts\n");
}

TEST(CApi, TellsVersionAndInstructionSet) {
  EXPECT_STREQ(dw_version(), DELTAWORKS_VERSION);
  std::int32_t lanes = 0;
  EXPECT_STREQ(dw_cpu_isa(nullptr), dw_cpu_isa(&lanes));
  EXPECT_GE(lanes, 4);
}

}  // namespace
}  // namespace deltaworks
