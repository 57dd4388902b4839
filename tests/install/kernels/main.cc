// The CPU engine against the float64 reference engine, both passes of a dozen problems, on the
// instruction set in use: kernels [ISA], where ISA is the one that must be. For processors that
// the other tests do not run on. Exits with 1 if anything is out of bounds.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "deltaworks/c_api.h"
#include "deltaworks/plan.h"
#include "deltaworks/text.h"
#include "judge.h"

namespace {

// What follows the pass in a problem string. Every dtype, head sizes 1, 7, 64, 80 and 128.
const char* const kProblems[] = {
    "fp32:N4T150H2K1V1:state:final",
    "fp32:N4T150H2K7V64:l2norm:state:final",
    "fp32:N4T200H2K64V64:l2norm:sigmoid:safe:a_log:dt_bias",
    "fp32:N4T260H2K128V128:l2norm:state:final",
    "fp32:N4T150H1HV3K80V7:sigmoid:linear:cu_seqlens=i64",
    "fp32:N4T150H4HV2K64V80:threads=1",
    "bf16:N4T200H2K64V64:l2norm:sigmoid:safe:a_log:dt_bias:state:final",
    "bf16:N4T150H2K80V1:g=bf16:beta=bf16:state=bf16:final",
    "bf16:N4T150H2HV4HK4K7V128:l2norm:sigmoid:neg:safe:g=bf16",
    "fp16:N4T200H2K128V64:l2norm:state=fp16:final",
    "fp16:N4T150H2K1V80:beta=fp16:g=fp16",
    "fp16:N4T150H2K64V7:l2norm:sigmoid:safe:a_log=bf16:dt_bias=fp16",
};

Arrays run(deltaworks::Problem problem, Arrays arrays, const char* plan_name) {
  problem.plan_name = plan_name;
  const deltaworks::Plan plan = deltaworks::find_plan(problem);
  deltaworks::Pack pack;
  for (int port = 0; port < deltaworks::kPortCount; ++port) {
    pack.pointers[port] = arrays[port].bytes.data();
  }
  std::vector<std::byte> workspace(plan.workspace_bytes());
  plan.execute(pack, workspace.data());
  return arrays;
}

// Prints the tensor that comes closest to its bound, or lies furthest out.
bool passes(const std::string& text, unsigned seed) {
  const deltaworks::Problem problem = deltaworks::parse_problem(text);
  const Arrays inputs = make_arrays(problem, seed);
  const Arrays got = run(problem, inputs, "gdn_cpu");
  const Arrays reference = run(problem, inputs, "gdn_reference");
  double worst = -1;
  const char* where = "no output";
  for (int i = 0; i < deltaworks::kPortCount; ++i) {
    const auto port = static_cast<deltaworks::Port>(i);
    if (!problem.has(port) || !is_output(problem.pass, port)) continue;
    const double share = worst_share(problem, port, got, reference);
    if (share > worst) {
      worst = share;
      where = name(port);
    }
  }
  const bool ok = worst >= 0 && worst <= 1;
  std::printf("%-6s %5.1f %% of what is allowed (%s): %s\n", ok ? "ok" : "FAILED", 100 * worst,
              where, text.c_str());
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  const char* isa = dw_cpu_isa(nullptr);
  std::printf("instruction set: %s\n", isa != nullptr ? isa : dw_last_error());
  if (isa == nullptr || (argc > 1 && std::strcmp(argv[1], isa) != 0)) return 1;
  unsigned seed = 0;
  int failed = 0;
  for (const char* pass : {"gdn:fwd:", "gdn:bwd:"}) {
    for (const char* problem : kProblems) failed += !passes(std::string(pass) + problem, ++seed);
  }
  return failed == 0 ? 0 : 1;
}
