// What breaks the rules of the operations other than gated_delta_net: their shapes, their tensors,
// the options that not all of them take.
#include <limits>
#include <string>
#include <utility>

#include "problem/ports.h"
#include "problem_rows.h"
#include "row_changes.h"

namespace deltaworks::kit {
namespace {

constexpr Pass kForward = Pass::kForward, kBackward = Pass::kBackward;
constexpr Op kGdn = Op::kGatedDeltaNet, kKda = Op::kKimiDeltaAttention,
             kGdn2 = Op::kGatedDeltaNetV2, kGdp = Op::kGatedDeltaProduct, kMamba2 = Op::kMamba2;
constexpr DType kF32 = DType::kFloat32, kF16 = DType::kFloat16, kF64 = DType::kFloat64;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class Rows {
 public:
  Rows& rule(Rule rule) {
    rule_ = rule;
    return *this;
  }
  Rows& value(Op op, Breaks breaks, const std::string& text, Pass pass = kForward) {
    return add(op, pass, std::move(breaks), Status::kInvalidValue, text);
  }
  Rows& type(Op op, Breaks breaks, const std::string& text, Pass pass = kForward) {
    return add(op, pass, std::move(breaks), Status::kInvalidType, text);
  }
  ProblemRow& last() { return rows_.back(); }
  std::vector<ProblemRow> take() { return std::move(rows_); }

 private:
  Rows& add(Op op, Pass pass, Breaks breaks, Status status, const std::string& text) {
    rows_.push_back({rule_, pass, std::move(breaks), status, op_name(op) + (": " + text)});
    rows_.back().op = op;
    return *this;
  }

  Rule rule_{};
  std::vector<ProblemRow> rows_;
};

Breaks without_safe_gate(std::function<void(Options&)> set) {
  return all_of({drop(Port::kALog), drop(Port::kDtBias), option([set](Options& o) {
                   o.safe_gate = false;
                   set(o);
                 })});
}

void add_tensors(Rows& rows) {
  rows.rule(Rule::kPass)
      .value(kGdn, reshape(Port::kW, {12, 4, 8}), "w is no tensor of this operation")
      .value(kKda, reshape(Port::kZ, {12, 4, 8}), "z is no tensor of this operation")
      .value(kGdn2, reshape(Port::kD, {4}), "D is no tensor of this operation")
      .value(kGdp, reshape(Port::kDW, {12, 4, 8}), "dw is no tensor of this operation", kBackward)
      .value(kMamba2, reshape(Port::kBeta, {12, 4}), "beta is no tensor of this operation")
      .value(kMamba2, reshape(Port::kDY, {12, 4, 8}), "dy does not belong to this pass");
  rows.rule(Rule::kMissing).value(kGdn2, drop(Port::kW), "w is missing");
  for (Port port : {Port::kX, Port::kDt, Port::kA, Port::kB, Port::kC, Port::kY}) {
    rows.value(kMamba2, drop(port), name(kMamba2, port) + std::string(" is missing"));
  }
  rows.rule(Rule::kGradientOfAbsent)
      .value(kMamba2, drop(Port::kD), "dD needs D", kBackward)
      .value(kMamba2, drop(Port::kZ), "dz needs z", kBackward);
  rows.rule(Rule::kRank)
      .value(kKda, reshape(Port::kG, {12, 4}), "g must have shape [T, HO, K], got [12, 4]")
      .value(kKda, reshape(Port::kDtBias, {4}), "dt_bias must have shape [HO, K], got [4]")
      .value(kGdn2, reshape(Port::kBeta, {12, 4}), "beta must have shape [T, HO, K], got [12, 4]")
      .value(kGdp, reshape(Port::kK, {24, 32}),
             "k must have shape [T*n, HK, K] or [T, n, HK, K], got [24, 32]")
      .value(kGdp, reshape(Port::kBeta, {24}),
             "beta must have shape [T*n, HO] or [T, n, HO], got [24]")
      .value(kMamba2, reshape(Port::kX, {12}), "x must have shape [T, H, P], got [12]")
      .value(kMamba2, reshape(Port::kD, {}), "D must have shape [H] or [H, P], got []");
}

void add_shapes(Rows& rows) {
  rows.rule(Rule::kSize)
      .value(kGdp, option([](Options& o) { o.num_householder = std::int64_t{1} << 46; }),
             "T n must be at most 2^48, got T = 12, n = 70368744177664");
  rows.rule(Rule::kKeyDim)
      .value(kMamba2, reshape(Port::kC, {12, 2, 513}),
             "key dimension of C must be in 1..512, got 513");
  rows.rule(Rule::kValueDim)
      .value(kMamba2, reshape(Port::kX, {12, 4, 0}),
             "value dimension of x must be in 1..512, got 0");
  rows.rule(Rule::kKeyHeads)
      .value(kMamba2, reshape(Port::kB, {12, 1, 16}),
             "B and C must have one number of groups, got 1 and 2")
      .value(kMamba2, reshape(Port::kB, {12, 4, 16}),
             "B and C must have one number of groups, got 4 and 2");
  rows.rule(Rule::kHeadGroups);
  for (const auto& [heads, text] : {std::pair{3, "got 3 and 2"}, {1, "got 1 and 2"}}) {
    rows.value(kMamba2, reshape(Port::kX, {12, heads, 8}),
               std::string("the heads of x must be a multiple of the groups of B and C, ") + text);
  }
  rows.rule(Rule::kShape)
      .value(kKda, reshape(Port::kG, {12, 4, 8}),
             "g must have shape [T, HO, K] = [12, 4, 16], got [12, 4, 8]")
      .value(kKda, reshape(Port::kDtBias, {4, 8}),
             "dt_bias must have shape [HO, K] = [4, 16], got [4, 8]")
      .value(kGdn2, reshape(Port::kBeta, {12, 4, 8}),
             "beta must have shape [T, HO, K] = [12, 4, 16], got [12, 4, 8]")
      .value(kGdn2, reshape(Port::kW, {12, 4, 16}),
             "w must have shape [T, HO, V] = [12, 4, 8], got [12, 4, 16]")
      .value(kGdn2, reshape(Port::kDW, {12, 2, 8}),
             "dw must have shape [T, HO, V] = [12, 4, 8], got [12, 2, 8]", kBackward)
      .value(kGdp, reshape(Port::kK, {12, 2, 16}),
             "k must have shape [T*n, HK, K] = [24, 2, 16], got [12, 2, 16]")
      .value(kGdp, reshape(Port::kK, {12, 3, 2, 16}),
             "k must have shape [T, n, HK, K] = [12, 2, 2, 16], got [12, 3, 2, 16]")
      .value(kGdp, reshape(Port::kV, {24, 4, 4, 8}),
             "v must have shape [T, n, HV, V] = [12, 2, 4, 8], got [24, 4, 4, 8]")
      .value(kGdp, reshape(Port::kBeta, {12, 4}),
             "beta must have shape [T*n, HO] = [24, 4], got [12, 4]")
      .value(kGdp, reshape(Port::kBeta, {12, 4, 2}),
             "beta must have shape [T, n, HO] = [12, 2, 4], got [12, 4, 2]")
      .value(kGdp, reshape(Port::kG, {24, 4}), "g must have shape [T, HO] = [12, 4], got [24, 4]")
      .value(kGdp, reshape(Port::kDK, {12, 2, 2, 16}),
             "dk must have the shape of k, got [12, 2, 2, 16]", kBackward)
      .value(kMamba2, reshape(Port::kDt, {12, 2}),
             "dt must have shape [T, H] = [12, 4], got [12, 2]")
      .value(kMamba2, reshape(Port::kA, {2}), "A must have shape [H] = [4], got [2]")
      .value(kMamba2, reshape(Port::kB, {12, 2, 8}),
             "B must have shape [T, G, N_state] = [12, 2, 16], got [12, 2, 8]")
      .value(kMamba2, reshape(Port::kD, {4, 16}), "D must have shape [H, P] = [4, 8], got [4, 16]")
      .value(kMamba2, reshape(Port::kZ, {12, 2, 8}),
             "z must have shape [T, H, P] = [12, 4, 8], got [12, 2, 8]")
      .value(kMamba2, reshape(Port::kInitialState, {2, 4, 16, 8}),
             "initial_state must have shape [N, H, P, N_state] = [2, 4, 8, 16], got [2, 4, 16, 8]")
      .value(kMamba2, reshape(Port::kDD, {4, 8}), "dD must have the shape of D, got [4, 8]",
             kBackward);
}

void add_dtypes(Rows& rows) {
  rows.rule(Rule::kDevice)
      .value(
          kMamba2,
          [](Problem& p) {
            p[Port::kY].device = {DeviceType::kCuda, 3};
          },
          "y must be on x's device (cpu), got cuda:3");
  rows.rule(Rule::kIoDtype)
      .type(kMamba2, retype(Port::kX, DType::kInt32),
            "x must be bfloat16, float16, float32 or float64, got int32");
  rows.rule(Rule::kIoAlike)
      .type(kMamba2, retype(Port::kC, kF32), "C must be bfloat16 as x is, got float32")
      .type(kMamba2, retype(Port::kZ, kF32), "z must be bfloat16 as x is, got float32");
  rows.rule(Rule::kBetaDtype)
      .type(kGdn2, retype(Port::kBeta, kF16), "beta must be float32 or bfloat16, got float16")
      .type(kGdn2, retype(Port::kW, kF16), "w must be float32 or bfloat16, got float16");
  rows.rule(Rule::kGateDtype)
      .type(kMamba2, retype(Port::kDt, DType::kInt64),
            "dt must be float32, bfloat16 or float16, got int64");
  rows.rule(Rule::kParameterDtype)
      .type(kMamba2, retype(Port::kA, kF64), "A must be float32, bfloat16 or float16, got float64")
      .type(kMamba2, retype(Port::kD, kF64), "D must be float32, bfloat16 or float16, got float64");
  rows.rule(Rule::kGradientDtype)
      .type(kGdn2, retype(Port::kDW, kF32), "dw must have the dtype of w (bfloat16), got float32",
            kBackward);
}

void add_options_of_others(Rows& rows) {
  rows.rule(Rule::kOptionOfOther);
  const auto refuse = [&](std::initializer_list<Op> ops, const char* name,
                          std::function<void(Options&)> set) {
    for (Op op : ops) {
      rows.value(op, option(set), std::string(name) + " is not an option of this operation");
    }
  };
  refuse({kMamba2}, "scale", [](Options& o) { o.scale = 1; });
  refuse({kMamba2}, "use_qk_l2norm_in_kernel", [](Options& o) { o.use_qk_l2norm = true; });
  refuse({kMamba2}, "use_beta_sigmoid_in_kernel", [](Options& o) { o.use_beta_sigmoid = true; });
  refuse({kMamba2}, "allow_neg_eigval", [](Options& o) { o.allow_neg_eigval = true; });
  refuse({kMamba2}, "safe_gate", [](Options& o) { o.safe_gate = true; });
  refuse({kMamba2}, "gate_domain", [](Options& o) { o.gate_domain = GateDomain::kLinear; });
  refuse({kGdn, kGdp, kMamba2}, "gate", [](Options& o) { o.gate = GateKind::kSoftplus; });
  refuse({kGdn, kGdp, kMamba2}, "gate_lower_bound", [](Options& o) { o.gate_lower_bound = -1; });
  refuse({kGdn, kKda, kGdp, kMamba2}, "beta_guard", [](Options& o) { o.beta_guard = true; });
  refuse({kGdn, kKda, kGdn2, kMamba2}, "num_householder",
         [](Options& o) { o.num_householder = 1; });
  refuse({kGdn, kKda, kGdn2, kGdp}, "dt_softplus", [](Options& o) { o.dt_softplus = false; });
  refuse({kGdn, kKda, kGdn2, kGdp}, "dt_min", [](Options& o) { o.dt_min = 0.5; });
  refuse({kGdn, kKda, kGdn2, kGdp}, "dt_max", [](Options& o) { o.dt_max = 0.5; });
}

void add_options(Rows& rows) {
  const auto soft = [](Options& o) { o.gate = GateKind::kSoftplus; };
  const auto bound = [](double number) {
    return [number](Options& o) { o.gate_lower_bound = number; };
  };
  for (Op op : {kKda, kGdn2}) {
    rows.rule(Rule::kGateNeedsSafeGate)
        .value(op, without_safe_gate(soft), "gate='softplus' needs safe_gate");
    rows.rule(Rule::kLowerBoundNeedsSafeGate)
        .value(op, without_safe_gate(bound(-1)), "gate_lower_bound needs safe_gate");
    rows.rule(Rule::kLowerBoundExcludesSoftplus)
        .value(op, all_of({option(soft), option(bound(-1))}),
               "gate_lower_bound excludes gate='softplus'");
    rows.rule(Rule::kALogNeedsSafeGate)
        .value(op, option([](Options& o) { o.safe_gate = false; }), "a_log needs safe_gate");
  }
  rows.rule(Rule::kLowerBound);
  for (const auto& [number, got] :
       {std::pair{0.0, "0"}, {2.0, "2"}, {-kInfinity, "-inf"}, {kNan, "nan"}}) {
    rows.value(kKda, option(bound(number)),
               std::string("gate_lower_bound must be finite and < 0, got ") + got);
  }
  rows.rule(Rule::kGuardNeedsNorm)
      .value(kGdn2, option([](Options& o) { o.beta_guard = true; }),
             "beta_guard needs use_qk_l2norm_in_kernel");
  rows.rule(Rule::kHouseholder);
  for (const auto& [n, got] : {std::pair{0, "0"}, {-1, "-1"}}) {
    rows.value(kGdp, option([n = n](Options& o) { o.num_householder = n; }),
               std::string("num_householder must be >= 1, got ") + got);
  }
  rows.rule(Rule::kStepBounds)
      .value(kMamba2, option([](Options& o) {
               o.dt_min = 2;
               o.dt_max = 1;
             }),
             "dt_min must be <= dt_max, got 2 and 1")
      .value(kMamba2, option([](Options& o) { o.dt_max = -1; }),
             "dt_min must be <= dt_max, got 0 and -1")
      .value(kMamba2, option([](Options& o) { o.dt_max = kNan; }),
             "dt_min must be <= dt_max, got 0 and nan");
  rows.rule(Rule::kCheckpointDtype)
      .value(kMamba2, option([](Options& o) { o.checkpoint_dtype = kF16; }),
             "checkpoint_dtype must be bfloat16 as x is or float32, got float16");
  rows.rule(Rule::kPlanName)
      .value(
          kKda, [](Problem& p) { p.plan_name = "gdn_cpu"; },
          "plan_name must be one of " + plan_list("kda") + ", got gdn_cpu");
  rows.rule(Rule::kGate)
      .value(
          kKda, [](Problem&) {}, "gate must be 'sigmoid' or 'softplus', got 'relu'");
  rows.last().gate = "relu";
}

}  // namespace

std::vector<ProblemRow> operation_rows() {
  Rows rows;
  add_tensors(rows);
  add_shapes(rows);
  add_dtypes(rows);
  add_options_of_others(rows);
  add_options(rows);
  return rows.take();
}

}  // namespace deltaworks::kit
