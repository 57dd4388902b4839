// Prints the table of problem_rows.h as JSON, for the tests of other languages:
//
//   {"rules": [name...], "rows": [{"rule", "pass", "status", "text", "problem", ...}],
//    "valid": {operation: {"forward": problem, "backward": problem}}}
//
// A problem: {"op": name, "tensors": {name: {"dtype", "device", "shape", "stride"}}, "options":
// {name: value}}.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>

#include "core/strings.h"
#include "problem/ports.h"
#include "problem_rows.h"

namespace deltaworks::kit {
namespace {

// The texts hold no character that JSON escapes but these.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + '"';
}

std::string list(const auto& numbers, int count) {
  std::string out = "[";
  for (int i = 0; i < count; ++i) out += cat(i > 0 ? ", " : "", numbers[i]);
  return out + "]";
}

std::string device(const Device& device) {
  return device.type == DeviceType::kCuda ? cat("cuda:", device.index) : name(device.type);
}

std::string tensors(const Problem& problem) {
  std::string out = "{";
  for (int port = 0; port < kPortCount; ++port) {
    const TensorDesc& x = problem.tensors[port];
    if (!x.present()) continue;
    // A rank above what a description holds is written with axes of 1.
    std::array<std::int64_t, 8> shape, stride;
    shape.fill(1);
    stride.fill(1);
    std::copy(x.shape.begin(), x.shape.end(), shape.begin());
    std::copy(x.stride.begin(), x.stride.end(), stride.begin());
    out += cat(out.size() > 1 ? ", " : "", quoted(name(problem.op, static_cast<Port>(port))),
               ": {\"dtype\": ", quoted(name(x.dtype)), ", \"device\": ", quoted(device(x.device)),
               ", \"shape\": ", list(shape, x.rank), ", \"stride\": ", list(stride, x.rank), "}");
  }
  return out + "}";
}

std::string options(const Problem& problem) {
  const Options& o = problem.options;
  const auto flag = [](bool set) { return set ? "true" : "false"; };
  const auto number = [](std::optional<double> x) {
    if (!x) return std::string("null");
    return std::isfinite(*x) ? cat(*x) : quoted(cat(*x));  // "inf", "nan"
  };
  return cat(
      "{\"scale\": ", number(o.scale), ", \"use_qk_l2norm_in_kernel\": ", flag(o.use_qk_l2norm),
      ", \"use_beta_sigmoid_in_kernel\": ", flag(o.use_beta_sigmoid),
      ", \"allow_neg_eigval\": ", flag(o.allow_neg_eigval), ", \"safe_gate\": ", flag(o.safe_gate),
      ", \"gate_domain\": ", o.gate_domain == GateDomain::kLinear ? "\"linear\"" : "\"log\"",
      ", \"batch_invariant\": ", flag(o.batch_invariant),
      ", \"output_final_state\": ", flag(o.output_final_state),
      ", \"overwrite_initial_state\": ", flag(o.overwrite_initial_state),
      ", \"checkpoint_every_n_tokens\": ", o.checkpoint_every_n_tokens,
      ", \"checkpoint_dtype\": ", o.checkpoint_dtype ? quoted(name(*o.checkpoint_dtype)) : "null",
      ", \"gate\": ", o.gate == GateKind::kSoftplus ? "\"softplus\"" : "\"sigmoid\"",
      ", \"gate_lower_bound\": ", number(o.gate_lower_bound),
      ", \"beta_guard\": ", flag(o.beta_guard), ", \"num_householder\": ", o.num_householder,
      ", \"dt_softplus\": ", flag(o.dt_softplus), ", \"dt_min\": ", number(o.dt_min),
      ", \"dt_max\": ", number(o.dt_max),
      ", \"requires_gradient\": ", flag(problem.requires_gradient),
      ", \"plan_name\": ", problem.plan_name.empty() ? "null" : quoted(problem.plan_name), "}");
}

std::string json(const Problem& problem) {
  return cat("{\"op\": ", quoted(op_name(problem.op)), ", \"tensors\": ", tensors(problem),
             ", \"options\": ", options(problem), ", \"threads\": ", problem.threads, "}");
}

std::string json(const ProblemRow& row) {
  Problem problem = valid_problem(row);
  row.breaks(problem);
  return cat("{\"rule\": ", quoted(name(row.rule)),
             ", \"pass\": ", row.pass == Pass::kForward ? "\"forward\"" : "\"backward\"",
             ", \"status\": ", static_cast<int>(row.status), ", \"text\": ", quoted(row.text),
             ", \"gate_domain\": ", row.gate_domain.empty() ? "null" : quoted(row.gate_domain),
             ", \"gate\": ", row.gate.empty() ? "null" : quoted(row.gate),
             ", \"offsets\": ", list(row.offsets, static_cast<int>(row.offsets.size())),
             ", \"without_memory\": ", row.without_memory ? "true" : "false",
             ", \"problem\": ", json(problem), "}");
}

void print() {
  std::string rules, rows;
  for (int rule = 0; rule < kRuleCount; ++rule) {
    rules += cat(rule > 0 ? ", " : "", quoted(name(static_cast<Rule>(rule))));
  }
  for (const ProblemRow& row : problem_rows()) rows += cat(rows.empty() ? "" : ",\n  ", json(row));
  std::string valid;
  for (int op = 0; op < kOpCount; ++op) {
    const auto problem = [op](Pass pass) { return json(valid_problem(pass, static_cast<Op>(op))); };
    valid += cat(op > 0 ? ",\n  " : "", quoted(op_name(static_cast<Op>(op))),
                 ": {\"forward\": ", problem(Pass::kForward),
                 ", \"backward\": ", problem(Pass::kBackward), "}");
  }
  std::printf("{\"rules\": [%s],\n \"valid\": {\n  %s},\n \"rows\": [\n  %s]}\n", rules.c_str(),
              valid.c_str(), rows.c_str());
}

}  // namespace
}  // namespace deltaworks::kit

int main() { deltaworks::kit::print(); }
