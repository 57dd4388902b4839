// Prints the table of problem_rows.h as JSON, for the tests of other languages:
//
//   {"rules": [name...], "rows": [{"rule", "pass", "status", "text", "problem", ...}],
//    "valid": {"forward": problem, "backward": problem}}
//
// A problem: {"tensors": {name: {"dtype", "device", "shape", "stride"}}, "options": {name: value}}.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>

#include "core/strings.h"
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
    out += cat(out.size() > 1 ? ", " : "", quoted(name(static_cast<Port>(port))),
               ": {\"dtype\": ", quoted(name(x.dtype)), ", \"device\": ", quoted(device(x.device)),
               ", \"shape\": ", list(shape, x.rank), ", \"stride\": ", list(stride, x.rank), "}");
  }
  return out + "}";
}

std::string options(const Problem& problem) {
  const Options& o = problem.options;
  const auto flag = [](bool set) { return set ? "true" : "false"; };
  return cat(
      "{\"scale\": ", o.scale ? (std::isfinite(*o.scale) ? cat(*o.scale) : "\"inf\"") : "null",
      ", \"use_qk_l2norm_in_kernel\": ", flag(o.use_qk_l2norm),
      ", \"use_beta_sigmoid_in_kernel\": ", flag(o.use_beta_sigmoid),
      ", \"allow_neg_eigval\": ", flag(o.allow_neg_eigval), ", \"safe_gate\": ", flag(o.safe_gate),
      ", \"gate_domain\": ", o.gate_domain == GateDomain::kLinear ? "\"linear\"" : "\"log\"",
      ", \"batch_invariant\": ", flag(o.batch_invariant),
      ", \"output_final_state\": ", flag(o.output_final_state),
      ", \"overwrite_initial_state\": ", flag(o.overwrite_initial_state),
      ", \"checkpoint_every_n_tokens\": ", o.checkpoint_every_n_tokens,
      ", \"checkpoint_dtype\": ", o.checkpoint_dtype ? quoted(name(*o.checkpoint_dtype)) : "null",
      ", \"requires_gradient\": ", flag(problem.requires_gradient),
      ", \"plan_name\": ", problem.plan_name.empty() ? "null" : quoted(problem.plan_name), "}");
}

std::string json(const Problem& problem) {
  return cat("{\"tensors\": ", tensors(problem), ", \"options\": ", options(problem),
             ", \"threads\": ", problem.threads, "}");
}

std::string json(const ProblemRow& row) {
  Problem problem = valid_problem(row.pass);
  row.breaks(problem);
  return cat("{\"rule\": ", quoted(name(row.rule)),
             ", \"pass\": ", row.pass == Pass::kForward ? "\"forward\"" : "\"backward\"",
             ", \"status\": ", static_cast<int>(row.status), ", \"text\": ", quoted(row.text),
             ", \"gate_domain\": ", row.gate_domain.empty() ? "null" : quoted(row.gate_domain),
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
  std::printf(
      "{\"rules\": [%s],\n \"valid\": {\"forward\": %s, \"backward\": %s},\n \"rows\": [\n  %s]}\n",
      rules.c_str(), json(valid_problem(Pass::kForward)).c_str(),
      json(valid_problem(Pass::kBackward)).c_str(), rows.c_str());
}

}  // namespace
}  // namespace deltaworks::kit

int main() { deltaworks::kit::print(); }
