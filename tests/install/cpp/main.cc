// A user's program: both passes of Gated DeltaNet on the CPU against a token loop in double, a plan
// with the reasons for it, a problem string, and errors. Prints what it finds; exits with 1 if
// anything is off.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "deltaworks/explain.h"
#include "deltaworks/ops.h"
#include "deltaworks/text.h"
#include "recurrence.h"

namespace {

using deltaworks::GatedDeltaNetForward;
using deltaworks::Status;
using deltaworks::view;
using deltaworks::Workspace;

constexpr std::int64_t T = 70, H = 2, K = 8, V = 5;
const std::vector<std::int32_t> kOffsets = {0, 3, 70};
constexpr double kForward = 2e-6, kBackward = 2e-5;

bool failed = false;

void check(const char* what, bool ok) {
  std::printf("%-52s %s\n", what, ok ? "ok" : "FAILED");
  failed |= !ok;
}

void check_close(const char* name, const std::vector<float>& got, const Row& want, double bound) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  const double relative = std::sqrt(error / size);
  std::printf("%-6s relative error %.1e, at most %.0e\n", name, relative, bound);
  failed |= !(relative <= bound);
}

struct Data {
  std::vector<float> q, k, v, g, beta, dO;
};

Data make_data() {
  std::mt19937 engine(1);
  const auto fill = [&](std::int64_t count, double low, double high) {
    std::uniform_real_distribution<float> uniform(static_cast<float>(low),
                                                  static_cast<float>(high));
    std::vector<float> x(static_cast<std::size_t>(count));
    for (float& value : x) value = uniform(engine);
    return x;
  };
  const double key = 1 / std::sqrt(double{K});  // keys of at most unit norm
  return {fill(T * H * K, -1, 1), fill(T * H * K, -key, key), fill(T * H * V, -1, 1),
          fill(T * H, -0.5, 0),   fill(T * H, 0, 1),          fill(T * H * V, -1, 1)};
}

struct Expected {
  Row o = Row(T * H * V), dq = Row(T * H * K), dk = Row(T * H * K), dv = Row(T * H * V),
      dg = Row(T * H), dbeta = Row(T * H), final_state;
};

Expected expect(const Data& data) {
  const auto row = [](const std::vector<float>& x, std::int64_t i, std::int64_t width) {
    return Row(x.begin() + i * width, x.begin() + (i + 1) * width);
  };
  const double scale = 1 / std::sqrt(double{K});
  Expected x;
  for (std::size_t n = 0; n + 1 < kOffsets.size(); ++n) {
    for (std::int64_t h = 0; h < H; ++h) {
      std::vector<Token> tokens;
      for (std::int64_t t = kOffsets[n]; t < kOffsets[n + 1]; ++t) {
        const std::int64_t i = t * H + h;
        Token token{};
        token.q = row(data.q, i, K), token.k = row(data.k, i, K), token.v = row(data.v, i, V);
        token.g = data.g[i], token.beta = data.beta[i], token.dO = row(data.dO, i, V);
        tokens.push_back(token);
      }
      const Row state = run_forward(tokens, K, V, scale);
      x.final_state.insert(x.final_state.end(), state.begin(), state.end());
      run_backward(tokens, K, V, scale);
      for (std::int64_t t = kOffsets[n]; t < kOffsets[n + 1]; ++t) {
        const std::int64_t i = t * H + h;
        const Token& token = tokens[t - kOffsets[n]];
        std::copy(token.o.begin(), token.o.end(), x.o.begin() + i * V);
        std::copy(token.dq.begin(), token.dq.end(), x.dq.begin() + i * K);
        std::copy(token.dk.begin(), token.dk.end(), x.dk.begin() + i * K);
        std::copy(token.dv.begin(), token.dv.end(), x.dv.begin() + i * V);
        x.dg[i] = token.dg, x.dbeta[i] = token.dbeta;
      }
    }
  }
  return x;
}

// Whether f() throws an error of that status.
template <class F>
bool throws(Status status, F&& f) {
  try {
    f();
  } catch (const deltaworks::Error& error) {
    std::printf("  %s\n", error.what());
    return error.status() == status && error.what()[0] != '\0';
  }
  return false;
}

void check_backward(const GatedDeltaNetForward& forward, const Data& data, const Expected& expected,
                    Workspace& workspace) {
  std::vector<float> dq(T * H * K), dk(T * H * K), dv(T * H * V), dg(T * H), dbeta(T * H);
  deltaworks::gated_delta_net_backward({.q = forward.q,
                                        .k = forward.k,
                                        .v = forward.v,
                                        .g = forward.g,
                                        .beta = forward.beta,
                                        .cu_seqlens = forward.cu_seqlens,
                                        .dO = view(data.dO.data(), {T, H, V}),
                                        .dq = view(dq.data(), {T, H, K}),
                                        .dk = view(dk.data(), {T, H, K}),
                                        .dv = view(dv.data(), {T, H, V}),
                                        .dg = view(dg.data(), {T, H}),
                                        .dbeta = view(dbeta.data(), {T, H})},
                                       workspace);
  check_close("dq", dq, expected.dq, kBackward);
  check_close("dk", dk, expected.dk, kBackward);
  check_close("dv", dv, expected.dv, kBackward);
  check_close("dg", dg, expected.dg, kBackward);
  check_close("dbeta", dbeta, expected.dbeta, kBackward);
}

// `o` is where the call writes; it holds its result.
void check_plan(const GatedDeltaNetForward& call, std::vector<float>& o, Workspace& workspace) {
  const deltaworks::Problem problem = call.problem();
  const deltaworks::Plan plan = deltaworks::find_plan(problem);
  std::printf("%s: %s\n", plan.name().c_str(), plan.configuration().c_str());
  check("the CPU engine answers", plan.name() == "gdn_cpu");
  const std::vector<float> first = o;
  std::fill(o.begin(), o.end(), 0.0f);
  plan.execute(call.pack(), workspace.reserve(plan.workspace_bytes()));
  check("a plan executed by hand gives the same bits", o == first);

  std::string accepting;
  for (const deltaworks::Verdict& verdict : deltaworks::explain(problem)) {
    if (verdict.accepts() && accepting.empty()) accepting = verdict.plan_name;
  }
  check("explain names the plan", accepting == plan.name());

  const std::string text = "gdn:fwd:fp32:N2T70H2K8V5:final";
  check("the call is written as a string", deltaworks::to_string(problem) == text);
  check("the string is read as the call", deltaworks::parse_problem(text) == problem);
}

void check_errors(GatedDeltaNetForward call, const std::vector<float>& o, Workspace& workspace) {
  const std::vector<float> first = o;
  const auto parse = [] { deltaworks::parse_problem("gdn:sideways"); };
  const auto run = [&] { deltaworks::gated_delta_net_forward(call, workspace); };
  check("a string that is none is an error", throws(Status::kInvalidValue, parse));
  const std::vector<std::int32_t> decreasing = {0, 70, 3};
  call.cu_seqlens = view(decreasing.data(), {3});
  check("cu_seqlens that decrease are an error", throws(Status::kInvalidValue, run));
  call.g.desc.dtype = deltaworks::DType::kInt32;
  check("a dtype that g may not have is an error", throws(Status::kInvalidType, run));
  check("errors leave the output alone", o == first);
}

}  // namespace

int main() {
  const Data data = make_data();
  const Expected expected = expect(data);
  Workspace workspace;
  std::vector<float> o(T * H * V), final_state(expected.final_state.size());
  const GatedDeltaNetForward call{.q = view(data.q.data(), {T, H, K}),
                                  .k = view(data.k.data(), {T, H, K}),
                                  .v = view(data.v.data(), {T, H, V}),
                                  .g = view(data.g.data(), {T, H}),
                                  .beta = view(data.beta.data(), {T, H}),
                                  .cu_seqlens = view(kOffsets.data(), {3}),
                                  .o = view(o.data(), {T, H, V}),
                                  .final_state = view(final_state.data(), {2, H, V, K})};
  deltaworks::gated_delta_net_forward(call, workspace);
  check_close("o", o, expected.o, kForward);
  check_close("state", final_state, expected.final_state, kForward);
  check_backward(call, data, expected, workspace);
  check_plan(call, o, workspace);
  check_errors(call, o, workspace);
  return failed ? 1 : 0;
}
