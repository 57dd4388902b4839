// The table of problem_rows.h, in the order in which validation asks.
#include "problem_rows.h"

#include <algorithm>
#include <limits>

#include "kit.h"
#include "row_changes.h"

namespace deltaworks::kit {

Problem valid_problem(Pass pass, Op op) {
  Call call{.dims = make_dims(12, 2, 2, 4, 16, 8),
            .offsets = {0, 5, 12},
            .options = {.safe_gate = op != Op::kMamba2},
            .a_log = true,
            .dt_bias = true,
            .types = {.io = DType::kBFloat16, .beta = DType::kBFloat16},
            .op = op,
            .D_rank = 1,
            .z = true};
  if (op == Op::kGatedDeltaProduct) call.options.num_householder = call.dims.n = 2;
  Tensors inputs = make_inputs(call, 0);
  return prepare("", call, pass, inputs).problem;
}

namespace {

Breaks every_float(DType dtype) {
  return [dtype](Problem& p) {
    for (TensorDesc& x : p.tensors) {
      if (x.present() && x.dtype != DType::kInt64) x.dtype = dtype;
    }
  };
}

}  // namespace

std::vector<ProblemRow> problem_rows() {
  constexpr Pass kForward = Pass::kForward, kBackward = Pass::kBackward;
  constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16, kF16 = DType::kFloat16,
                  kF64 = DType::kFloat64;
  std::vector<ProblemRow> rows;
  Rule rule{};  // of the rows that follow
  const auto value = [&](Pass pass, Breaks breaks, const std::string& text) {
    rows.push_back(
        {rule, pass, std::move(breaks), Status::kInvalidValue, "gated_delta_net: " + text});
  };
  const auto type = [&](Pass pass, Breaks breaks, const std::string& text) {
    rows.push_back(
        {rule, pass, std::move(breaks), Status::kInvalidType, "gated_delta_net: " + text});
  };
  const auto option = [&value](auto set, const std::string& text) {
    value(
        kForward, [set](Problem& p) { set(p, p.options); }, text);
  };
  using O = Options;
  const Breaks pool =
      all_of({reshape(Port::kStateIndices, {2}), retype(Port::kStateIndices, DType::kInt32)});

  // presence and ranks
  rule = Rule::kMissing;
  for (Port port : {Port::kQ, Port::kK, Port::kV, Port::kG, Port::kBeta, Port::kCuSeqlens}) {
    value(kForward, drop(port), std::string(name(port)) + " is missing");
    value(kBackward, drop(port), std::string(name(port)) + " is missing");
  }
  value(kForward, drop(Port::kO), "o is missing");
  rule = Rule::kPass;
  value(kForward, reshape(Port::kDO, {12, 4, 8}), "dO does not belong to this pass");
  value(kForward, reshape(Port::kDQ, {12, 2, 16}), "dq does not belong to this pass");
  value(kBackward, reshape(Port::kO, {12, 4, 8}), "o does not belong to this pass");
  value(kBackward, reshape(Port::kFinalState, {2, 4, 8, 16}),
        "final_state does not belong to this pass");
  rule = Rule::kRank;
  value(kForward, reshape(Port::kQ, {12, 32}), "q must have shape [T, H, K], got [12, 32]");
  value(kForward, reshape(Port::kQ, {12, 2, 16, 1, 1}),
        "q must have shape [T, H, K], got [12, 2, 16, 1, ...]");
  value(kForward, reshape(Port::kK, {12, 2, 4, 4}),
        "k must have shape [T, HK, K], got [12, 2, 4, 4]");
  value(kForward, reshape(Port::kV, {12}), "v must have shape [T, HV, V], got [12]");
  value(kForward, reshape(Port::kG, {12, 4, 16}), "g must have shape [T, HO], got [12, 4, 16]");
  value(kForward, reshape(Port::kBeta, {12}), "beta must have shape [T, HO], got [12]");
  value(kForward, reshape(Port::kCuSeqlens, {}), "cu_seqlens must have shape [N+1], got []");
  value(kForward, reshape(Port::kALog, {1, 4}), "a_log must have shape [HO], got [1, 4]");
  value(kForward, reshape(Port::kDtBias, {}), "dt_bias must have shape [HO], got []");
  value(kForward, reshape(Port::kInitialState, {4, 8, 16}),
        "initial_state must have shape [N, HO, V, K], got [4, 8, 16]");
  value(kForward, reshape(Port::kO, {12, 32}), "o must have shape [T, HO, V], got [12, 32]");
  value(kForward, reshape(Port::kFinalState, {4, 8, 16}),
        "final_state must have shape [N, HO, V, K], got [4, 8, 16]");
  value(kBackward, reshape(Port::kDO, {12, 32}), "dO must have shape [T, HO, V], got [12, 32]");
  value(kBackward, reshape(Port::kDFinalState, {4, 8, 16}),
        "d_final_state must have shape [N, HO, V, K], got [4, 8, 16]");
  value(kBackward, reshape(Port::kDQ, {12}), "dq must have shape [T, H, K], got [12]");
  value(kBackward, reshape(Port::kStateIndices, {2}), "state_indices does not belong to this pass");
  rows.back().rule = Rule::kPass;
  rule = Rule::kSize;
  value(
      kForward,
      [](Problem& p) {
        p[Port::kQ].shape[0] = std::int64_t{1} << 45;
        p[Port::kQ].stride = {};
      },
      "q must have and span at most 2^48 elements, got shape [35184372088832, 2, 16] with strides "
      "[0, 0, 0]");
  value(
      kForward, [](Problem& p) { p[Port::kV].stride[1] = std::int64_t{1} << 50; },
      "v must have and span at most 2^48 elements, got shape [12, 4, 8] with strides "
      "[32, 1125899906842624, 1]");
  rule = Rule::kGradientOfAbsent;
  value(kBackward, drop(Port::kALog), "da_log needs a_log");
  value(kBackward, drop(Port::kDtBias), "ddt_bias needs dt_bias");
  value(kBackward, drop(Port::kInitialState), "d_initial_state needs initial_state");

  // dimensions
  rule = Rule::kSequences;
  value(kForward, reshape(Port::kCuSeqlens, {0}), "cu_seqlens must have shape [N+1], got [0]");
  rule = Rule::kKeyDim;
  value(kForward, reshape(Port::kQ, {12, 2, 0}), "key dimension of q must be in 1..512, got 0");
  value(kForward, reshape(Port::kQ, {12, 2, 513}), "key dimension of q must be in 1..512, got 513");
  rule = Rule::kValueDim;
  value(kForward, reshape(Port::kV, {12, 4, 0}), "value dimension of v must be in 1..512, got 0");
  value(kForward, reshape(Port::kV, {12, 4, 513}),
        "value dimension of v must be in 1..512, got 513");
  rule = Rule::kKeyHeads;
  value(kForward, reshape(Port::kK, {12, 1, 16}),
        "k must have as many heads as q (2) or v (4), got 1");
  rule = Rule::kHeadGroups;
  value(kForward, reshape(Port::kV, {12, 3, 8}),
        "the larger of the head counts of q and v must be a multiple of the smaller, got 2 and 3");
  value(kForward, all_of({reshape(Port::kQ, {12, 0, 16}), reshape(Port::kK, {12, 0, 16})}),
        "the larger of the head counts of q and v must be a multiple of the smaller, got 0 and 4");

  // shapes
  rule = Rule::kShape;
  value(kForward, reshape(Port::kK, {11, 2, 16}),
        "k must have shape [T, HK, K] = [12, 2, 16], got [11, 2, 16]");
  value(kForward, reshape(Port::kK, {12, 2, 15}),
        "k must have shape [T, HK, K] = [12, 2, 16], got [12, 2, 15]");
  value(kForward, reshape(Port::kV, {13, 4, 8}),
        "v must have shape [T, HV, V] = [12, 4, 8], got [13, 4, 8]");
  value(kForward, reshape(Port::kG, {12, 2}), "g must have shape [T, HO] = [12, 4], got [12, 2]");
  value(kForward, reshape(Port::kG, {11, 4}), "g must have shape [T, HO] = [12, 4], got [11, 4]");
  value(kForward, reshape(Port::kBeta, {12, 2}),
        "beta must have shape [T, HO] = [12, 4], got [12, 2]");
  value(kForward, reshape(Port::kBeta, {13, 4}),
        "beta must have shape [T, HO] = [12, 4], got [13, 4]");
  value(kForward, reshape(Port::kALog, {2}), "a_log must have shape [HO] = [4], got [2]");
  value(kForward, reshape(Port::kDtBias, {5}), "dt_bias must have shape [HO] = [4], got [5]");
  const std::string state = " must have shape [N, HO, V, K] = [2, 4, 8, 16], got ";
  value(kForward, reshape(Port::kInitialState, {3, 4, 8, 16}),
        "initial_state" + state + "[3, 4, 8, 16]");
  value(kForward, reshape(Port::kInitialState, {2, 2, 8, 16}),
        "initial_state" + state + "[2, 2, 8, 16]");
  value(kForward, reshape(Port::kInitialState, {2, 4, 16, 8}),
        "initial_state" + state + "[2, 4, 16, 8]");
  value(kForward, reshape(Port::kFinalState, {2, 4, 8, 15}),
        "final_state" + state + "[2, 4, 8, 15]");
  value(kForward, reshape(Port::kO, {12, 2, 8}),
        "o must have shape [T, HO, V] = [12, 4, 8], got [12, 2, 8]");
  value(kBackward, reshape(Port::kDO, {12, 4, 9}),
        "dO must have shape [T, HO, V] = [12, 4, 8], got [12, 4, 9]");
  value(kBackward, reshape(Port::kDFinalState, {1, 4, 8, 16}),
        "d_final_state" + state + "[1, 4, 8, 16]");
  value(kBackward, reshape(Port::kDQ, {12, 4, 16}),
        "dq must have shape [T, H, K] = [12, 2, 16], got [12, 4, 16]");
  value(kBackward, reshape(Port::kDK, {12, 4, 16}),
        "dk must have shape [T, HK, K] = [12, 2, 16], got [12, 4, 16]");
  value(kBackward, reshape(Port::kDV, {12, 4, 7}),
        "dv must have shape [T, HV, V] = [12, 4, 8], got [12, 4, 7]");
  value(kBackward, reshape(Port::kDG, {1, 4}), "dg must have shape [T, HO] = [12, 4], got [1, 4]");
  value(kBackward, reshape(Port::kDBeta, {12, 1}),
        "dbeta must have shape [T, HO] = [12, 4], got [12, 1]");
  value(kBackward, reshape(Port::kDALog, {1}), "da_log must have shape [HO] = [4], got [1]");
  value(kBackward, reshape(Port::kDDtBias, {3}), "ddt_bias must have shape [HO] = [4], got [3]");
  value(kBackward, reshape(Port::kDInitialState, {2, 4, 8, 1}),
        "d_initial_state" + state + "[2, 4, 8, 1]");
  rule = Rule::kOverlap;
  const auto overlap = [&](Pass pass, Port port, int axis, std::int64_t stride, const char* got) {
    value(
        pass, [=](Problem& p) { p[port].stride[axis] = stride; },
        std::string(name(port)) + " is written and must not overlap itself, got shape " + got);
  };
  overlap(kForward, Port::kO, 0, 0, "[12, 4, 8] with strides [0, 8, 1]");
  overlap(kForward, Port::kO, 1, 7, "[12, 4, 8] with strides [32, 7, 1]");
  overlap(kForward, Port::kO, 0, -31, "[12, 4, 8] with strides [-31, 8, 1]");
  overlap(kForward, Port::kFinalState, 3, 8, "[2, 4, 8, 16] with strides [512, 128, 16, 8]");
  const auto overwrite = [](Problem& p) {
    p.options.overwrite_initial_state = true;
    p[Port::kFinalState] = TensorDesc{};
  };
  for (const auto& [stride, got] : {std::pair{0, "[0, 128, 16, 1]"}, {511, "[511, 128, 16, 1]"}}) {
    overlap(kForward, Port::kInitialState, 0, stride, "");
    rows.back().breaks = all_of({overwrite, rows.back().breaks});
    rows.back().text += std::string("[2, 4, 8, 16] with strides ") + got;
  }
  overlap(kBackward, Port::kDK, 0, 1, "[12, 2, 16] with strides [1, 16, 1]");
  overlap(kBackward, Port::kDALog, 0, 0, "[4] with strides [0]");

  rule = Rule::kShape;
  value(kForward, reshape(Port::kStateIndices, {3}),
        "state_indices must have shape [N] = [2], got [3]");
  value(kForward, all_of({pool, reshape(Port::kInitialState, {9, 4, 8, 15})}),
        "initial_state" + state + "[9, 4, 8, 15]");

  // devices
  rule = Rule::kDevice;
  const auto move = [](Port port, Device device) {
    return [port, device](Problem& p) { p[port].device = device; };
  };
  value(kForward, move(Port::kV, {DeviceType::kCuda, 1}),
        "v must be on q's device (cpu), got cuda:1");
  value(kForward, move(Port::kQ, {DeviceType::kCuda, 0}),
        "k must be on q's device (cuda:0), got cpu");
  value(kForward, move(Port::kCuSeqlens, {DeviceType::kOther, 0}),
        "cu_seqlens must be on q's device (cpu), got another device");
  value(kForward, move(Port::kO, {DeviceType::kCuda, 3}),
        "o must be on q's device (cpu), got cuda:3");

  // dtypes
  rule = Rule::kIoDtype;
  type(kForward, retype(Port::kQ, DType::kInt32),
       "q must be bfloat16, float16, float32 or float64, got int32");
  type(kForward, retype(Port::kQ, DType::kOther),
       "q must be bfloat16, float16, float32 or float64, got an unsupported dtype");
  rule = Rule::kOffsetDtype;
  value(kForward, retype(Port::kCuSeqlens, kF32), "cu_seqlens must be int32 or int64, got float32");
  rule = Rule::kIndexDtype;
  type(kForward, all_of({pool, retype(Port::kStateIndices, DType::kInt64)}),
       "state_indices must be int32, got int64");
  rule = Rule::kFloat64Alike;
  type(kForward, all_of({every_float(kF64), retype(Port::kG, kF32)}),
       "g must be float64 as q is, got float32");
  type(kForward, all_of({every_float(kF64), retype(Port::kFinalState, kF32)}),
       "final_state must be float64 as q is, got float32");
  rule = Rule::kGradientDtype;
  type(kBackward, retype(Port::kDQ, kF32), "dq must have the dtype of q (bfloat16), got float32");
  type(kBackward, retype(Port::kDG, kBf16), "dg must have the dtype of g (float32), got bfloat16");
  type(kBackward, retype(Port::kDInitialState, kBf16),
       "d_initial_state must have the dtype of initial_state (float32), got bfloat16");
  rule = Rule::kIoAlike;
  type(kForward, retype(Port::kK, kF32), "k must be bfloat16 as q is, got float32");
  type(kForward, retype(Port::kV, kF16), "v must be bfloat16 as q is, got float16");
  type(kForward, retype(Port::kO, kF32), "o must be bfloat16 as q is, got float32");
  type(kBackward, retype(Port::kDO, kF32), "dO must be bfloat16 as q is, got float32");
  rule = Rule::kBetaDtype;
  type(kForward, retype(Port::kBeta, kF16), "beta must be float32 or bfloat16, got float16");
  type(kForward, all_of({every_float(kF32), retype(Port::kBeta, kBf16)}),
       "beta must be float32, got bfloat16");
  rule = Rule::kGateDtype;
  type(kForward, retype(Port::kG, kF64), "g must be float32, bfloat16 or float16, got float64");
  rule = Rule::kParameterDtype;
  type(kForward, retype(Port::kALog, DType::kInt64),
       "a_log must be float32, bfloat16 or float16, got int64");
  type(kForward, retype(Port::kDtBias, kF64),
       "dt_bias must be float32, bfloat16 or float16, got float64");
  rule = Rule::kStateDtype;
  type(kForward, retype(Port::kInitialState, kF64),
       "initial_state must be float32, bfloat16 or float16, got float64");
  rule = Rule::kStatesAlike;
  type(kForward, retype(Port::kFinalState, kBf16),
       "final_state must be float32 as initial_state is, got bfloat16");
  type(kForward, all_of({drop(Port::kInitialState), retype(Port::kFinalState, kBf16)}),
       "final_state must be float32 without initial_state, got bfloat16");
  type(kBackward, retype(Port::kDFinalState, kF16),
       "d_final_state must be float32 as initial_state is, got float16");

  // options
  rule = Rule::kThreads;
  value(
      kForward, [](Problem& p) { p.threads = -1; }, "threads must be >= 0, got -1");
  const double infinity = std::numeric_limits<double>::infinity();
  rule = Rule::kScale;
  option([infinity](Problem&, O& o) { o.scale = infinity; }, "scale must be finite, got inf");
  rule = Rule::kNegEigvalNeedsSigmoid;
  option([](Problem&, O& o) { o.allow_neg_eigval = true; },
         "allow_neg_eigval needs use_beta_sigmoid_in_kernel");
  rule = Rule::kALogNeedsSafeGate;
  option([](Problem&, O& o) { o.safe_gate = false; }, "a_log needs safe_gate");
  rule = Rule::kDtBiasNeedsSafeGate;
  option(
      [](Problem& p, O& o) {
        o.safe_gate = false;
        p[Port::kALog] = TensorDesc{};
      },
      "dt_bias needs safe_gate");
  rule = Rule::kLinearExcludesSafeGate;
  option([](Problem&, O& o) { o.gate_domain = GateDomain::kLinear; },
         "gate_domain='linear' excludes safe_gate");
  rule = Rule::kCadence;
  option([](Problem&, O& o) { o.checkpoint_every_n_tokens = -1; },
         "checkpoint_every_n_tokens must be >= 0, got -1");
  rule = Rule::kCheckpointDtype;
  option([](Problem&, O& o) { o.checkpoint_dtype = DType::kFloat16; },
         "checkpoint_dtype must be bfloat16 as q is or float32, got float16");
  option([](Problem&, O& o) { o.checkpoint_dtype = DType::kInt64; },
         "checkpoint_dtype must be bfloat16 as q is or float32, got int64");
  rule = Rule::kPoolNeedsState;
  value(kForward, all_of({pool, drop(Port::kInitialState)}), "state_indices needs initial_state");
  rule = Rule::kOverwriteNeedsState;
  option(
      [](Problem& p, O& o) {
        o.overwrite_initial_state = true;
        p[Port::kInitialState] = TensorDesc{};
      },
      "overwrite_initial_state needs initial_state");
  rule = Rule::kPoolExcludesAutograd;
  value(kForward, all_of({pool, [](Problem& p) { p.requires_gradient = true; }}),
        "state_indices excludes autograd");
  rule = Rule::kOverwriteExcludesAutograd;
  option([](Problem& p, O& o) { o.overwrite_initial_state = p.requires_gradient = true; },
         "overwrite_initial_state excludes autograd");
  value(
      kBackward, [](Problem& p) { p.options.overwrite_initial_state = true; },
      "overwrite_initial_state excludes autograd");
  rule = Rule::kPoolExcludesCheckpoints;
  value(kForward, all_of({pool, [](Problem& p) { p.options.checkpoint_every_n_tokens = 64; }}),
        "state_indices excludes checkpoints (checkpoint_every_n_tokens = 64)");
  rule = Rule::kFinalStateMissing;
  option([](Problem& p, O&) { p[Port::kFinalState] = TensorDesc{}; },
         "final_state is missing (output_final_state is set)");
  rule = Rule::kFinalStateUnasked;
  option([](Problem&, O& o) { o.output_final_state = false; },
         "final_state needs output_final_state");
  option([](Problem&, O& o) { o.overwrite_initial_state = true; },
         "final_state must be absent (overwrite_initial_state is set)");

  rule = Rule::kPlanName;
  value(
      kForward, [](Problem& p) { p.plan_name = "gdn_sm100"; },
      "plan_name must be one of " + plan_list("gdn") + ", got gdn_sm100");
  rule = Rule::kGateDomain;
  option([](Problem&, O& o) { o.safe_gate = false; },
         "gate_domain must be 'log' or 'linear', got 'cubic'");
  rows.back().gate_domain = "cubic";

  // data
  const auto offsets = [&](Rule broken, std::vector<std::int64_t> values, const char* text) {
    rule = broken;
    for (Pass pass : {kForward, kBackward}) {
      value(
          pass, [](Problem&) {}, text);
      rows.back().offsets = values;
    }
  };
  offsets(Rule::kOffsetsStart, {1, 5, 12}, "cu_seqlens must start at 0, got 1");
  offsets(Rule::kOffsetsDecrease, {0, 5, 4},
          "cu_seqlens must not decrease, got 5 then 4 at sequence 1");
  offsets(Rule::kOffsetsEnd, {0, 5, 13}, "cu_seqlens must end at most at T = 12, got 13");
  rule = Rule::kMemory;
  for (Port port : {Port::kQ, Port::kO}) {
    value(
        kForward, [](Problem&) {}, std::string(name(port)) + " has no memory (null pointer)");
    rows.back().without_memory = port;
  }

  // The first broken rule is reported: shapes before dtypes before options.
  rule = Rule::kShape;
  value(kForward,
        all_of({retype(Port::kQ, DType::kInt32), reshape(Port::kG, {12, 2}),
                [](Problem& p) { p.options.safe_gate = false; }}),
        "g must have shape [T, HO] = [12, 4], got [12, 2]");
  rule = Rule::kIoAlike;
  type(kForward, all_of({retype(Port::kV, kF32), [](Problem& p) { p.options.safe_gate = false; }}),
       "v must be bfloat16 as q is, got float32");
  for (ProblemRow& row : operation_rows()) rows.push_back(std::move(row));
  return rows;
}

}  // namespace deltaworks::kit
