// See defects.h. In the order in which validation asks.
#include "defects.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "problem/ports.h"
#include "random_problem.h"

namespace deltaworks::fuzz {
namespace {

using P = const Problem&;

bool always(P) { return true; }
bool is_forward(P p) { return p.pass == Pass::kForward; }
bool is_backward(P p) { return p.pass == Pass::kBackward; }
bool has_state(P p) { return p.has(Port::kInitialState); }
bool has_no_state(P p) { return !has_state(p); }
bool is_float64(P p) { return p[Port::kQ].dtype == DType::kFloat64; }
bool is_not_float64(P p) { return !is_float64(p); }
bool is_delta(P p) { return p.op != Op::kMamba2; }
bool is_mamba2(P p) { return !is_delta(p); }
Port first(P p) { return ports(p.op).front().port; }  // whose dtype the others follow
bool is_product(P p) { return p.op == Op::kGatedDeltaProduct; }
bool has_channel_gate(P p) { return spec_of(p.op).takes(Taken::kChannelGate); }
bool has_guard(P p) { return spec_of(p.op).takes(Taken::kBetaGuard); }

template <class Condition>
std::vector<Port> ports_where(P p, Condition&& condition) {
  std::vector<Port> ports;
  for (int port = 0; port < kPortCount; ++port) {
    if (p.tensors[port].present() && condition(static_cast<Port>(port))) {
      ports.push_back(static_cast<Port>(port));
    }
  }
  return ports;
}
template <class Condition>
Port pick_where(P p, Random& random, Condition&& condition) {
  const std::vector<Port> ports = ports_where(p, condition);
  return ports[static_cast<std::size_t>(
      random.between(0, static_cast<std::int64_t>(ports.size()) - 1))];
}

std::int64_t elements(const TensorDesc& tensor) {
  std::int64_t count = 1;
  for (int axis = 0; axis < tensor.rank; ++axis) count *= tensor.shape[axis];
  return count;
}
// An axis that a zero stride would make the elements of an output share.
int long_axis(P p, Port port) {
  if (!(is_written(port) || is_overwritten(p, port)) || elements(p[port]) == 0) return -1;
  for (int axis = 0; axis < p[port].rank; ++axis) {
    if (p[port].shape[axis] > 1) return axis;
  }
  return -1;
}

std::int64_t output_heads(P p) {
  const TensorDesc& v = p[Port::kV];
  return std::max(p[Port::kQ].shape[1], v.shape[v.rank - 2]);
}
// A tensor of one head parameter, or of one a channel.
TensorDesc parameter(P p, Port port, DType dtype) {
  const std::int64_t HO = output_heads(p);
  return port == Port::kDtBias && has_channel_gate(p)
             ? contiguous(dtype, {HO, p[Port::kQ].shape[2]})
             : contiguous(dtype, {HO});
}
void remove_parameters(Problem& p) {
  p[Port::kALog] = p[Port::kDALog] = p[Port::kDtBias] = p[Port::kDDtBias] = TensorDesc{};
}
TensorDesc indices(P p, DType dtype) {
  return contiguous(dtype, {p[Port::kCuSeqlens].shape[0] - 1});
}
DType parameter_dtype(P p) { return is_float64(p) ? DType::kFloat64 : DType::kFloat32; }

void drop(Problem& p, Port port, Port gradient) { p[port] = p[gradient] = TensorDesc{}; }

constexpr Defect kDefects[] = {
    {Rule::kMissing, always,
     [](Problem& p, Random& r) {
       p[pick_where(p, r, [&p](Port port) {
         for (const PortSpec& spec : ports(p.op)) {
           if (spec.port != port) continue;
           return spec.role == Role::kInput || (is_forward(p) && port == Port::kO);
         }
         return false;
       })] = TensorDesc{};
     }},
    {Rule::kPass, is_forward,
     [](Problem& p, Random& r) {
       p[r.pick({Port::kDO, Port::kDFinalState, Port::kDQ, Port::kDALog, Port::kDInitialState})] =
           contiguous(DType::kFloat32, {1});
     }},
    {Rule::kPass, is_backward,
     [](Problem& p, Random& r) {
       p[r.pick({Port::kO, Port::kFinalState, Port::kStateIndices})] =
           contiguous(DType::kFloat32, {1});
     }},
    {Rule::kRank, always,
     [](Problem& p, Random& r) {
       TensorDesc& tensor = p[pick_where(p, r, [](Port) { return true; })];
       std::int32_t rank = tensor.rank;
       if (r.chance(0.9)) rank = static_cast<std::int32_t>(r.pick({0, 5, 6}));
       if (rank != tensor.rank) {
         tensor.rank = rank;
       } else if (rank > 0) {
         tensor.shape[r.between(0, rank - 1)] = -1;
       }
     }},
    {Rule::kSize, always,
     [](Problem& p, Random& r) {
       TensorDesc& tensor = p[pick_where(p, r, [](Port) { return true; })];
       const auto axis = r.between(0, tensor.rank - 1);
       tensor.shape[axis] = std::int64_t{1} << r.between(49, 62);
       tensor.stride[axis] =
           r.pick({std::int64_t{0}, std::int64_t{1} << 20, -(std::int64_t{1} << 62)});
     }},
    {Rule::kGradientOfAbsent, is_backward,
     [](Problem& p, Random& r) {
       if (r.chance(0.5)) {
         p[Port::kDtBias] = TensorDesc{};
         p[Port::kDDtBias] = parameter(p, Port::kDtBias, DType::kFloat32);
       } else {
         p[Port::kInitialState] = TensorDesc{};
         p[Port::kDInitialState] = contiguous(DType::kFloat32, {1, 1, 1, 1});
       }
     }},
    {Rule::kSequences, always, [](Problem& p, Random&) { p[Port::kCuSeqlens].shape[0] = 0; }},
    {Rule::kKeyDim, always,
     [](Problem& p, Random& r) {
       p[Port::kQ].shape[2] = r.pick({0, 513, 1 << 16});
       p[Port::kQ].stride[2] = 1;  // an axis of one element may have any
     }},
    {Rule::kValueDim, always,
     [](Problem& p, Random& r) {
       TensorDesc& v = p[Port::kV];
       v.shape[v.rank - 1] = r.pick({0, 513, 1 << 16});
       v.stride[v.rank - 1] = 1;  // an axis of one element may have any
     }},
    {Rule::kKeyHeads, always,
     [](Problem& p, Random& r) {
       TensorDesc& k = p[Port::kK];
       k.shape[k.rank - 2] = output_heads(p) + r.between(1, 3);
     }},
    {Rule::kHeadGroups, always,
     [](Problem& p, Random& r) {
       TensorDesc &k = p[Port::kK], &v = p[Port::kV];
       p[Port::kQ].shape[1] = k.shape[k.rank - 2] = r.pick({0, 2, 5});
       v.shape[v.rank - 2] = 3;
     }},
    {Rule::kShape, always,
     [](Problem& p, Random& r) {
       // Not of those that the sizes are read from.
       const Port port = pick_where(p, r, [&p](Port each) {
         return (index(each) > index(Port::kV) && each != Port::kCuSeqlens &&
                 !(each == Port::kInitialState && p.has(Port::kStateIndices)));
       });
       p[port].shape[r.between(0, p[port].rank - 1)] += r.between(1, 2);
     }},
    {Rule::kShape, always,
     [](Problem& p, Random& r) {
       p[r.pick({Port::kK, Port::kV})].shape[0] += r.between(1, 2);
     }},
    {Rule::kOverlap,
     [](P p) {
       return !ports_where(p, [&](Port port) { return long_axis(p, port) >= 0; }).empty();
     },
     [](Problem& p, Random& r) {
       const Port port = pick_where(p, r, [&p](Port each) { return long_axis(p, each) >= 0; });
       p[port].stride[long_axis(p, port)] = 0;
     }},
    {Rule::kDevice, always,
     [](Problem& p, Random& r) {
       p[pick_where(p, r, [](Port) { return true; })].device =
           r.pick({Device{DeviceType::kCuda, 0}, Device{DeviceType::kCpu, 1},
                   Device{DeviceType::kOther, 0}});
     }},
    {Rule::kIoDtype, always,
     [](Problem& p, Random& r) {
       p[first(p)].dtype = r.pick({DType::kInt32, DType::kBool, DType::kOther});
     }},
    {Rule::kOffsetDtype, always,
     [](Problem& p, Random& r) {
       p[Port::kCuSeqlens].dtype = r.pick({DType::kFloat32, DType::kInt16, DType::kOther});
     }},
    {Rule::kIndexDtype, is_forward,
     [](Problem& p, Random& r) {
       p[Port::kStateIndices] = indices(p, r.pick({DType::kInt64, DType::kFloat32}));
     }},
    {Rule::kFloat64Alike, is_float64,
     [](Problem& p, Random& r) {
       p[pick_where(p, r, [&p](Port port) {
         return port != first(p) && p[port].dtype == DType::kFloat64;
       })].dtype = r.pick({DType::kFloat32, DType::kInt64});
     }},
    {Rule::kGradientDtype,
     [](P p) { return is_not_float64(p) && !ports_where(p, is_gradient).empty(); },
     [](Problem& p, Random& r) {
       p[pick_where(p, r, is_gradient)].dtype = r.pick({DType::kFloat64, DType::kInt32});
     }},
    {Rule::kIoAlike, is_not_float64,
     [](Problem& p, Random& r) {
       p[r.pick({Port::kK, is_delta(p) ? Port::kV : Port::kQ})].dtype = DType::kFloat64;
     }},
    {Rule::kIoAlike, [](P p) { return is_not_float64(p) && is_forward(p); },
     [](Problem& p, Random& r) {
       p[Port::kO].dtype = p[Port::kQ].dtype == DType::kFloat32
                               ? r.pick({DType::kFloat64, DType::kBFloat16})
                               : DType::kFloat32;
     }},
    {Rule::kBetaDtype, [](P p) { return is_not_float64(p) && is_delta(p); },
     [](Problem& p, Random& r) {
       p[Port::kBeta].dtype = r.pick({DType::kFloat64, DType::kInt8});
     }},
    {Rule::kGateDtype, is_not_float64,
     [](Problem& p, Random& r) {
       p[Port::kG].dtype = r.pick({DType::kFloat64, DType::kInt32});
     }},
    {Rule::kParameterDtype, is_not_float64,
     [](Problem& p, Random& r) {
       const Port port = r.pick({Port::kALog, Port::kDtBias});
       p[port] = parameter(p, port, DType::kFloat64);
     }},
    {Rule::kStateDtype, [](P p) { return is_not_float64(p) && has_state(p); },
     [](Problem& p, Random& r) {
       p[Port::kInitialState].dtype = r.pick({DType::kFloat64, DType::kUInt8});
     }},
    {Rule::kStatesAlike,
     [](P p) {
       return is_not_float64(p) && (p.has(Port::kFinalState) || p.has(Port::kDFinalState));
     },
     [](Problem& p, Random& r) {
       DType& dtype = p[p.has(Port::kFinalState) ? Port::kFinalState : Port::kDFinalState].dtype;
       dtype =
           dtype == DType::kFloat32 ? r.pick({DType::kBFloat16, DType::kFloat16}) : DType::kFloat32;
     }},
    {Rule::kThreads, always,
     [](Problem& p, Random& r) { p.threads = static_cast<std::int32_t>(-r.between(1, 1 << 30)); }},
    {Rule::kScale, is_delta,
     [](Problem& p, Random& r) {
       p.options.scale = r.pick(
           {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()});
     }},
    {Rule::kNegEigvalNeedsSigmoid, is_delta,
     [](Problem& p, Random&) {
       p.options.allow_neg_eigval = true;
       p.options.use_beta_sigmoid = false;
     }},
    {Rule::kALogNeedsSafeGate, is_delta,
     [](Problem& p, Random&) {
       p.options.safe_gate = false;
       drop(p, Port::kALog, Port::kDALog);
       p[Port::kALog] = parameter(p, Port::kALog, parameter_dtype(p));
     }},
    {Rule::kDtBiasNeedsSafeGate, is_delta,
     [](Problem& p, Random&) {
       p.options.safe_gate = false;
       drop(p, Port::kALog, Port::kDALog);
       drop(p, Port::kDtBias, Port::kDDtBias);
       p[Port::kDtBias] = parameter(p, Port::kDtBias, parameter_dtype(p));
     }},
    {Rule::kOptionOfOther, always,
     [](Problem& p, Random& r) {
       if (is_delta(p)) {
         p.options.dt_min = r.uniform() + 0.1;
       } else {
         p.options.use_qk_l2norm = true;
       }
     }},
    {Rule::kGateNeedsSafeGate, has_channel_gate,
     [](Problem& p, Random&) {
       remove_parameters(p);
       p.options.safe_gate = false;
       p.options.gate = GateKind::kSoftplus;
     }},
    {Rule::kLowerBoundNeedsSafeGate, has_channel_gate,
     [](Problem& p, Random&) {
       remove_parameters(p);
       p.options.safe_gate = false;
       p.options.gate = GateKind::kSigmoid;
       p.options.gate_lower_bound = -1;
     }},
    {Rule::kLowerBoundExcludesSoftplus, has_channel_gate,
     [](Problem& p, Random&) {
       p.options.safe_gate = true;
       p.options.gate = GateKind::kSoftplus;
       p.options.gate_lower_bound = -1;
     }},
    {Rule::kLowerBound, has_channel_gate,
     [](Problem& p, Random& r) {
       p.options.safe_gate = true;
       p.options.gate = GateKind::kSigmoid;
       p.options.gate_lower_bound = r.pick({0.0, 3.0, -std::numeric_limits<double>::infinity()});
     }},
    {Rule::kGuardNeedsNorm, has_guard,
     [](Problem& p, Random&) {
       p.options.beta_guard = true;
       p.options.use_qk_l2norm = false;
     }},
    {Rule::kHouseholder, is_product,
     [](Problem& p, Random& r) { p.options.num_householder = -r.between(0, 9); }},
    {Rule::kStepBounds, is_mamba2,
     [](Problem& p, Random& r) {
       p.options.dt_min = 1 + r.uniform();
       p.options.dt_max = r.pick({0.5, std::numeric_limits<double>::quiet_NaN()});
     }},
    {Rule::kLinearExcludesSafeGate, is_delta,
     [](Problem& p, Random&) {
       p.options.safe_gate = true;
       p.options.gate = GateKind::kSigmoid;
       p.options.gate_domain = GateDomain::kLinear;
     }},
    {Rule::kCadence, always,
     [](Problem& p, Random& r) { p.options.checkpoint_every_n_tokens = -r.between(1, 64); }},
    {Rule::kCheckpointDtype, always,
     [](Problem& p, Random& r) {
       p.options.checkpoint_dtype = r.pick({DType::kInt64, DType::kOther});
     }},
    {Rule::kPoolNeedsState, [](P p) { return has_no_state(p) && is_forward(p); },
     [](Problem& p, Random&) { p[Port::kStateIndices] = indices(p, DType::kInt32); }},
    {Rule::kOverwriteNeedsState, has_no_state,
     [](Problem& p, Random&) { p.options.overwrite_initial_state = true; }},
    {Rule::kPoolExcludesAutograd, [](P p) { return has_state(p) && is_forward(p); },
     [](Problem& p, Random&) {
       p[Port::kStateIndices] = indices(p, DType::kInt32);
       p.requires_gradient = true;
     }},
    {Rule::kOverwriteExcludesAutograd,
     [](P p) { return has_state(p) && !p.has(Port::kStateIndices); },
     [](Problem& p, Random&) {
       TensorDesc& state = p[Port::kInitialState];
       state = contiguous(state.dtype, state.shape);  // or its overlap is found first
       p.options.overwrite_initial_state = p.requires_gradient = true;
     }},
    {Rule::kPoolExcludesCheckpoints, [](P p) { return has_state(p) && is_forward(p); },
     [](Problem& p, Random& r) {
       p[Port::kStateIndices] = indices(p, DType::kInt32);
       p.requires_gradient = false;
       p.options.checkpoint_every_n_tokens = r.between(1, 64);
     }},
    {Rule::kFinalStateMissing,
     [](P p) { return is_forward(p) && !p.options.overwrite_initial_state; },
     [](Problem& p, Random&) {
       p.options.output_final_state = true;
       p[Port::kFinalState] = TensorDesc{};
     }},
    {Rule::kFinalStateUnasked, [](P p) { return p.has(Port::kFinalState); },
     [](Problem& p, Random&) { p.options.output_final_state = false; }},
    {Rule::kPlanName, always,
     [](Problem& p, Random& r) {
       p.plan_name = r.pick({"gdn_gpu", "cpu", "kda_cpu.", "mamba2"});
     }},
};

}  // namespace

std::span<const Defect> defects() { return kDefects; }

}  // namespace deltaworks::fuzz
