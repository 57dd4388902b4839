// libFuzzer target over problem strings, through the C interface: whatever comes is read or refused
// with a text; what is read is judged; what is valid is printed, and reads back as the same problem
// and string; and planning it, where its sizes are modest, answers or says why not.
//
//   deltaworks_fuzz_problem_string -dict=problem_string.dict -max_total_time=60 NEW corpus
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "deltaworks/c_api.h"
#include "deltaworks/detail/call.h"

namespace {

void require(bool met, const char* what, const std::string& text) {
  if (met) return;
  std::fprintf(stderr, "%s: %s (last error: %s)\n", what, text.c_str(), dw_last_error());
  std::abort();
}

struct Parsed {
  dw_problem problem{};
  dw_tensor tensors[DW_PORT_COUNT];
  dw_status status;

  explicit Parsed(const std::string& text) {
    problem.struct_size = sizeof problem;
    status = dw_problem_parse(text.c_str(), &problem, tensors, DW_PORT_COUNT);
  }
};

std::string print(const dw_problem& problem, const std::string& text) {
  std::size_t needed = 0;
  require(dw_problem_format(&problem, nullptr, 0, &needed) == DW_OK, "not printed", text);
  std::string printed(needed, '#');
  require(dw_problem_format(&problem, printed.data(), needed, nullptr) == DW_OK, "not printed",
          text);
  require(printed.back() == '\0', "not closed", text);
  printed.pop_back();
  return printed;
}

bool modest(const dw_dims& d) { return d.T <= 1 << 20 && d.N <= 1 << 12 && d.HO <= 1 << 8; }

void plan(const dw_problem& problem, const std::string& text) {
  dw_verdicts* verdicts = nullptr;
  require(dw_explain(&problem, &verdicts) == DW_OK, "not explained", text);
  bool accepted = false;
  for (std::size_t engine = 0; engine < dw_verdicts_count(verdicts); ++engine) {
    const bool pinned = problem.plan_name != nullptr && problem.plan_name[0] != '\0';
    accepted |= dw_verdict_reason_count(verdicts, engine) == 0 &&
                (!pinned || std::string(dw_verdict_plan(verdicts, engine)) == problem.plan_name);
  }
  dw_verdicts_release(verdicts);
  dw_plan* plan = nullptr;
  const dw_status status = dw_plan_find(&problem, &plan);
  require((status == DW_OK) == accepted, "the verdicts say otherwise", text);
  require(status == DW_OK || status == DW_NOT_SUPPORTED || status == DW_INVALID_VALUE,
          "unexpected status", text);
  if (status == DW_OK) dw_plan_release(plan);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const char* __ubsan_default_options() {
  return "halt_on_error=1:print_stacktrace=1";
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  if (text.ends_with('\n')) text.pop_back();  // files of the corpus end in one
  const Parsed parsed(text);
  if (parsed.status != DW_OK) {
    require(parsed.status == DW_INVALID_VALUE, "unexpected status", text);
    const bool no_plan = std::string(dw_last_rule()) == "plan_name";  // a name that no engine has
    require(no_plan || std::string(dw_last_error()).starts_with("problem string: expected "),
            "no reason", text);
    return 0;
  }
  dw_dims dims;
  const dw_status valid = dw_validate(&parsed.problem, &dims);
  if (valid != DW_OK) {
    require(valid == DW_INVALID_VALUE || valid == DW_INVALID_TYPE, "unexpected status", text);
    require(dw_last_rule()[0] != '\0', "no rule", text);
    return 0;
  }
  const std::string printed = print(parsed.problem, text);
  const Parsed again(printed);
  require(again.status == DW_OK, "what is printed is not read", printed);
  using deltaworks::detail::problem_of;
  require(problem_of(again.problem) == problem_of(parsed.problem), "another problem", printed);
  require(print(again.problem, printed) == printed, "another string", printed);
  if (modest(dims)) plan(parsed.problem, text);
  return 0;
}

}  // extern "C"
