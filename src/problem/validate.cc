// The only place where shapes, dtypes and combinations are judged.
// Order: tensors present and their ranks, the dimensions they agree on, every shape, devices,
// dtypes, options. The first broken rule is reported.
#include "problem/validate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/strings.h"
#include "problem/ports.h"
#include "problem/rules.h"

namespace deltaworks {
namespace {

constexpr std::int64_t kMaxHeadDim = 512;
constexpr double kMaxElements = 0x1p48;

class Validator {
 public:
  explicit Validator(const Problem& problem)
      : p_(problem), op_(spec_of(problem.op)), specs_(op_.ports) {}

  Dims run() {
    check_presence_and_ranks();
    agree_on_dims();
    check_shapes();
    check_devices();
    check_dtypes();
    check_options();
    return dims_;
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(Rule rule, Status status, const Parts&... parts) const {
    throw RuleError(rule, status, cat(op_.name, ": ", parts...));
  }
  template <class... Parts>
  void require(Rule rule, bool met, const Parts&... parts) const {
    if (!met) fail(rule, Status::kInvalidValue, parts...);
  }
  template <class... Parts>
  void require_type(Rule rule, bool met, const Parts&... parts) const {
    if (!met) fail(rule, Status::kInvalidType, parts...);
  }

  bool belongs(const PortSpec& spec) const {
    if (spec.port == Port::kStateIndices) return p_.pass == Pass::kForward;  // has no gradient
    switch (spec.role) {
      case Role::kInput:
      case Role::kOptional:
        return true;
      case Role::kOutput:
      case Role::kFinalState:
        return p_.pass == Pass::kForward;
      case Role::kFlow:
      case Role::kGradient:
        return p_.pass == Pass::kBackward;
    }
    return false;
  }

  void check_presence_and_ranks() const {
    for (int port = 0; port < kPortCount; ++port) {
      const bool known = std::any_of(specs_.begin(), specs_.end(), [port](const PortSpec& spec) {
        return index(spec.port) == port;
      });
      require(Rule::kPass, known || !p_.tensors[port].present(), name(static_cast<Port>(port)),
              " is no tensor of this operation");
    }
    for (const PortSpec& spec : specs_) {
      const TensorDesc& tensor = p_[spec.port];
      const bool must =
          spec.role == Role::kInput || (spec.role == Role::kOutput && p_.pass == Pass::kForward);
      require(Rule::kMissing, tensor.present() || !must, spec.name, " is missing");
      if (!tensor.present()) continue;
      require(Rule::kPass, belongs(spec), spec.name, " does not belong to this pass");
      require(Rule::kRank, tensor.rank == spec.shape(tensor.rank).rank, spec.name,
              " must have shape ", symbols(spec), ", got ", shape(tensor));
      for (int axis = 0; axis < tensor.rank; ++axis) {
        require(Rule::kRank, tensor.shape[axis] >= 0, spec.name, " must have shape ", symbols(spec),
                ", got ", shape(tensor));
      }
      require(Rule::kSize, is_addressable(tensor), spec.name,
              " must have and span at most 2^48 elements, got shape ", shape(tensor),
              " with strides ", numbers(tensor.stride, tensor.rank));
      require(Rule::kGradientOfAbsent, spec.role != Role::kGradient || p_.has(spec.primal),
              spec.name, " needs ", name(spec.primal));
    }
  }

  void agree_on_dims() {
    const TensorDesc &q = p_[Port::kQ], &k = p_[Port::kK], &v = p_[Port::kV];
    const TensorDesc& cu_seqlens = p_[Port::kCuSeqlens];
    require(Rule::kSequences, cu_seqlens.shape[0] >= 1,
            "cu_seqlens must have shape [N+1], got [0]");
    const Options& o = p_.options;
    require(Rule::kHouseholder, !op_.takes(Taken::kHouseholder) || o.num_householder >= 1,
            "num_householder must be >= 1, got ", o.num_householder);
    dims_ = {.T = q.shape[0],
             .N = cu_seqlens.shape[0] - 1,
             .K = q.shape[2],
             .V = v.shape[v.rank - 1],
             .H = q.shape[1],
             .HK = k.shape[k.rank - 2],
             .HV = v.shape[v.rank - 2],
             .HO = std::max(q.shape[1], v.shape[v.rank - 2]),
             .n = op_.takes(Taken::kHouseholder) ? o.num_householder : 1};
    const auto& [T, N, K, V, H, HK, HV, HO, n] = dims_;
    const char *q_name = name(Port::kQ), *k_name = name(Port::kK), *v_name = name(Port::kV);
    require(Rule::kKeyDim, K >= 1 && K <= kMaxHeadDim, "key dimension of ", q_name,
            " must be in 1..", kMaxHeadDim, ", got ", K);
    require(Rule::kValueDim, V >= 1 && V <= kMaxHeadDim, "value dimension of ", v_name,
            " must be in 1..", kMaxHeadDim, ", got ", V);
    require(Rule::kSize, static_cast<double>(T) * static_cast<double>(n) <= kMaxElements,
            "T n must be at most 2^48, got T = ", T, ", n = ", n);
    if (p_.op == Op::kMamba2) {
      require(Rule::kKeyHeads, HK == H, "B and C must have one number of groups, got ", HK, " and ",
              H);
      require(Rule::kHeadGroups, H == 0 ? HV == 0 : HV % H == 0 && HV >= H,
              "the heads of x must be a multiple of the groups of B and C, got ", HV, " and ", H);
    }
    require(Rule::kKeyHeads, HK == H || HK == HV, k_name, " must have as many heads as ", q_name,
            " (", H, ") or ", v_name, " (", HV, "), got ", HK);
    const double states = static_cast<double>(N) * static_cast<double>(HO) *
                          static_cast<double>(K) * static_cast<double>(V);
    require(Rule::kSize, states <= kMaxElements,
            "the states must have at most 2^48 elements, got N = ", N, ", HO = ", HO, ", V = ", V,
            ", K = ", K);
    const std::int64_t fewer = std::min(H, HV);
    require(Rule::kHeadGroups, fewer == 0 ? HO == 0 : HO % fewer == 0,
            "the larger of the head counts of ", q_name, " and ", v_name,
            " must be a multiple of the smaller, got ", H, " and ", HV);
  }

  void check_shapes() const {
    for (const PortSpec& spec : specs_) {
      const TensorDesc& tensor = p_[spec.port];
      if (!tensor.present()) continue;
      const bool written =
          (spec.role == Role::kGradient || spec.role == Role::kOutput ||
           spec.role == Role::kFinalState || spec.port == final_state_port(p_.options)) &&
          elements(tensor) > 0;
      const bool pool = spec.port == Port::kInitialState && p_.has(Port::kStateIndices);
      const Shape& wanted = spec.shape(tensor.rank);
      for (int axis = 0; axis < wanted.rank; ++axis) {
        const bool any = pool && axis == 0;  // a pool has rows as it likes
        require(Rule::kShape, any || tensor.shape[axis] == extent(dims_, wanted.axes[axis]),
                spec.name, " must have shape ", symbols(wanted), " = ", expected(wanted), ", got ",
                shape(tensor));
      }
      require(Rule::kShape, spec.role != Role::kGradient || tensor.rank == p_[spec.primal].rank,
              spec.name, " must have the shape of ", name(spec.primal), ", got ", shape(tensor));
      require(Rule::kOverlap, !written || !overlaps(tensor), spec.name,
              " is written and must not overlap itself, got shape ", shape(tensor),
              " with strides ", numbers(tensor.stride, tensor.rank));
    }
  }

  void check_devices() const {
    const Device first = p_[specs_.front().port].device;
    for (const PortSpec& spec : specs_) {
      const TensorDesc& tensor = p_[spec.port];
      require(Rule::kDevice, !tensor.present() || tensor.device == first, spec.name, " must be on ",
              specs_.front().name, "'s device (", device(first), "), got ", device(tensor.device));
    }
  }

  void check_dtypes() const {
    const Port first = specs_.front().port;
    const DType io = p_[first].dtype;
    const std::string alike = cat(" as ", specs_.front().name, " is");
    require_dtype(Rule::kIoDtype, first,
                  {DType::kBFloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64});
    DType state = DType::kOther;  // of the first state port seen
    for (const PortSpec& spec : specs_) {
      const TensorDesc& tensor = p_[spec.port];
      if (!tensor.present()) continue;
      const auto must_be = [&](Rule rule, DType dtype, const std::string& why) {
        require_type(rule, tensor.dtype == dtype, spec.name, " must be ", name(dtype), why,
                     ", got ", name(tensor.dtype));
      };
      if (spec.kind == Kind::kOffset) {
        require(Rule::kOffsetDtype, tensor.dtype == DType::kInt32 || tensor.dtype == DType::kInt64,
                spec.name, " must be int32 or int64, got ", name(tensor.dtype));
      } else if (spec.kind == Kind::kIndex) {
        must_be(Rule::kIndexDtype, DType::kInt32, "");
      } else if (io == DType::kFloat64) {
        must_be(Rule::kFloat64Alike, DType::kFloat64, alike);
      } else if (spec.role == Role::kGradient) {
        const DType primal = p_[spec.primal].dtype;
        require_type(Rule::kGradientDtype, tensor.dtype == primal, spec.name,
                     " must have the dtype of ", name(spec.primal), " (", name(primal), "), got ",
                     name(tensor.dtype));
      } else if (spec.kind == Kind::kIo) {
        must_be(Rule::kIoAlike, io, alike);
      } else if (spec.kind == Kind::kBeta) {
        if (io == DType::kFloat32) {
          require_dtype(Rule::kBetaDtype, spec.port, {DType::kFloat32});
        } else {
          require_dtype(Rule::kBetaDtype, spec.port, {DType::kFloat32, io});
        }
      } else {
        require_dtype(spec.kind == Kind::kGate    ? Rule::kGateDtype
                      : spec.kind == Kind::kParam ? Rule::kParameterDtype
                                                  : Rule::kStateDtype,
                      spec.port, {DType::kFloat32, DType::kBFloat16, DType::kFloat16});
        if (spec.kind != Kind::kState) continue;
        if (state == DType::kOther) {
          // Without an initial state the states are fp32.
          state = p_.has(Port::kInitialState) ? tensor.dtype : DType::kFloat32;
        }
        must_be(Rule::kStatesAlike, state,
                p_.has(Port::kInitialState) ? " as initial_state is" : " without initial_state");
      }
    }
  }

  void check_options() const {
    const Options& o = p_.options;
    const bool delta = op_.takes(Taken::kDelta);
    require(Rule::kThreads, p_.threads >= 0, "threads must be >= 0, got ", p_.threads);
    check_options_of_others();
    require(Rule::kScale, !o.scale || std::isfinite(*o.scale), "scale must be finite, got ",
            o.scale.value_or(0));
    require(Rule::kNegEigvalNeedsSigmoid, !o.allow_neg_eigval || o.use_beta_sigmoid,
            "allow_neg_eigval needs use_beta_sigmoid_in_kernel");
    require(Rule::kALogNeedsSafeGate, !delta || !p_.has(Port::kALog) || o.safe_gate,
            "a_log needs safe_gate");
    require(Rule::kDtBiasNeedsSafeGate, !delta || !p_.has(Port::kDtBias) || o.safe_gate,
            "dt_bias needs safe_gate");
    require(Rule::kGateNeedsSafeGate, o.gate == GateKind::kSigmoid || o.safe_gate,
            "gate='softplus' needs safe_gate");
    require(Rule::kLowerBoundNeedsSafeGate, !o.gate_lower_bound || o.safe_gate,
            "gate_lower_bound needs safe_gate");
    require(Rule::kLowerBoundExcludesSoftplus, !o.gate_lower_bound || o.gate == GateKind::kSigmoid,
            "gate_lower_bound excludes gate='softplus'");
    const double lower_bound = o.gate_lower_bound.value_or(-1);
    require(Rule::kLowerBound, std::isfinite(lower_bound) && lower_bound < 0,
            "gate_lower_bound must be finite and < 0, got ", lower_bound);
    require(Rule::kGuardNeedsNorm, !o.beta_guard || o.use_qk_l2norm,
            "beta_guard needs use_qk_l2norm_in_kernel");
    const double dt_max = o.dt_max.value_or(std::numeric_limits<double>::infinity());
    require(Rule::kStepBounds, o.dt_min <= dt_max, "dt_min must be <= dt_max, got ", o.dt_min,
            " and ", dt_max);
    require(Rule::kLinearExcludesSafeGate, !o.safe_gate || o.gate_domain == GateDomain::kLog,
            "gate_domain='linear' excludes safe_gate");
    require(Rule::kCadence, o.checkpoint_every_n_tokens >= 0,
            "checkpoint_every_n_tokens must be >= 0, got ", o.checkpoint_every_n_tokens);
    if (o.checkpoint_dtype) {
      const DType io = p_[Port::kQ].dtype;
      require(Rule::kCheckpointDtype,
              *o.checkpoint_dtype == io || *o.checkpoint_dtype == DType::kFloat32,
              "checkpoint_dtype must be ", name(io), " as ", specs_.front().name, " is",
              io == DType::kFloat32 ? "" : " or float32", ", got ", name(*o.checkpoint_dtype));
    }
    const bool state = p_.has(Port::kInitialState), pool = p_.has(Port::kStateIndices);
    require(Rule::kPoolNeedsState, !pool || state, "state_indices needs initial_state");
    require(Rule::kOverwriteNeedsState, !o.overwrite_initial_state || state,
            "overwrite_initial_state needs initial_state");
    require(Rule::kPoolExcludesAutograd, !pool || !p_.requires_gradient,
            "state_indices excludes autograd");
    require(Rule::kOverwriteExcludesAutograd,
            !o.overwrite_initial_state || (!p_.requires_gradient && p_.pass == Pass::kForward),
            "overwrite_initial_state excludes autograd");
    require(Rule::kPoolExcludesCheckpoints, !pool || o.checkpoint_every_n_tokens == 0,
            "state_indices excludes checkpoints (checkpoint_every_n_tokens = ",
            o.checkpoint_every_n_tokens, ")");
    if (p_.pass == Pass::kForward) {
      const bool final_state = p_.has(Port::kFinalState);
      require(Rule::kFinalStateMissing, !wants_final_state(o) || final_state,
              "final_state is missing (output_final_state is set)");
      require(Rule::kFinalStateUnasked, !o.overwrite_initial_state || !final_state,
              "final_state must be absent (overwrite_initial_state is set)");
      require(Rule::kFinalStateUnasked, o.output_final_state || !final_state,
              "final_state needs output_final_state");
    }
  }

  // Options that the operation does not have.
  void check_options_of_others() const {
    const Options& o = p_.options;
    const auto refuse = [&](Taken option, bool set, const char* name) {
      require(Rule::kOptionOfOther, !set || op_.takes(option), name,
              " is not an option of this operation");
    };
    refuse(Taken::kScale, o.scale.has_value(), "scale");
    refuse(Taken::kDelta, o.use_qk_l2norm, "use_qk_l2norm_in_kernel");
    refuse(Taken::kDelta, o.use_beta_sigmoid, "use_beta_sigmoid_in_kernel");
    refuse(Taken::kDelta, o.allow_neg_eigval, "allow_neg_eigval");
    refuse(Taken::kDelta, o.safe_gate, "safe_gate");
    refuse(Taken::kDelta, o.gate_domain != GateDomain::kLog, "gate_domain");
    refuse(Taken::kChannelGate, o.gate != GateKind::kSigmoid, "gate");
    refuse(Taken::kChannelGate, o.gate_lower_bound.has_value(), "gate_lower_bound");
    refuse(Taken::kBetaGuard, o.beta_guard, "beta_guard");
    refuse(Taken::kHouseholder, o.num_householder != 0, "num_householder");
    refuse(Taken::kStep, !o.dt_softplus, "dt_softplus");
    refuse(Taken::kStep, o.dt_min != 0, "dt_min");
    refuse(Taken::kStep, o.dt_max.has_value(), "dt_max");
  }

  const char* name(Port port) const { return deltaworks::name(p_.op, port); }
  static const char* name(DType dtype) { return deltaworks::name(dtype); }

  void require_dtype(Rule rule, Port port, std::initializer_list<DType> allowed) const {
    const DType got = p_[port].dtype;
    if (std::find(allowed.begin(), allowed.end(), got) != allowed.end()) return;
    std::string list;
    for (const DType* dtype = allowed.begin(); dtype != allowed.end(); ++dtype) {
      if (dtype != allowed.begin()) list += dtype + 1 == allowed.end() ? " or " : ", ";
      list += name(*dtype);
    }
    fail(rule, Status::kInvalidType, name(port), " must be ", list, ", got ", name(got));
  }

  static std::int64_t elements(const TensorDesc& tensor) {
    std::int64_t count = 1;
    for (int axis = 0; axis < tensor.rank; ++axis) count *= tensor.shape[axis];
    return count;
  }

  // Whether two elements may share memory: each axis must step over all that the axes of shorter
  // strides reach. (There are layouts without overlap that interleave axes; nobody makes them.)
  static bool overlaps(const TensorDesc& tensor) {
    std::vector<std::pair<std::int64_t, std::int64_t>> axes;  // stride, size
    for (int axis = 0; axis < tensor.rank; ++axis) {
      const std::int64_t size = tensor.shape[axis];
      if (size > 1) axes.emplace_back(std::abs(tensor.stride[axis]), size);
    }
    std::sort(axes.begin(), axes.end());
    std::int64_t reach = 0;
    for (const auto& [stride, size] : axes) {
      if (stride <= reach) return true;
      reach += stride * (size - 1);
    }
    return false;
  }

  // Beyond 2^48 elements no memory reaches, and sizes and offsets could overflow.
  static bool is_addressable(const TensorDesc& tensor) {
    double count = 1, span = 0;
    for (int axis = 0; axis < tensor.rank; ++axis) {
      const double size = static_cast<double>(tensor.shape[axis]);
      count *= std::max(size, 1.0);
      span += std::max(size - 1, 0.0) * std::abs(static_cast<double>(tensor.stride[axis]));
    }
    return count <= kMaxElements && span <= kMaxElements;
  }

  static std::string device(Device device) {
    const char* type = deltaworks::name(device.type);
    const bool indexed = device.type == DeviceType::kCuda || device.index != 0;
    return indexed ? cat(type, ":", device.index) : type;
  }

  static std::string shape(const TensorDesc& tensor) { return numbers(tensor.shape, tensor.rank); }

  static std::string numbers(const std::array<std::int64_t, kMaxRank>& values, int rank) {
    std::string text = "[";
    for (int axis = 0; axis < std::min(rank, kMaxRank); ++axis) {
      if (axis > 0) text += ", ";
      text += std::to_string(values[axis]);
    }
    return text + (rank > kMaxRank ? ", ...]" : "]");
  }

  // "[T, H, K]", or both shapes that would do.
  std::string symbols(const PortSpec& spec) const {
    const std::string first = symbols(static_cast<const Shape&>(spec));
    return spec.other.rank == 0 ? first : cat(first, " or ", symbols(spec.other));
  }
  std::string symbols(const Shape& shape) const {
    std::string text = "[";
    for (int axis = 0; axis < shape.rank; ++axis) {
      if (axis > 0) text += ", ";
      text += deltaworks::name(p_.op, shape.axes[axis]);
    }
    return text + "]";
  }

  std::string expected(const Shape& wanted) const {
    TensorDesc tensor;
    tensor.rank = wanted.rank;
    for (int axis = 0; axis < wanted.rank; ++axis) {
      tensor.shape[axis] = extent(dims_, wanted.axes[axis]);
    }
    return shape(tensor);
  }

  const Problem& p_;
  const OpSpec& op_;
  std::span<const PortSpec> specs_;
  Dims dims_;
};

template <class Int>
void check_offsets(const Problem& problem, const Dims& dims, const Int* offsets) {
  const std::int64_t stride = problem[Port::kCuSeqlens].stride[0];
  const auto fail = [&](Rule rule, auto... parts) {
    throw RuleError(rule, Status::kInvalidValue,
                    cat(op_name(problem.op), ": cu_seqlens must ", parts...));
  };
  if (offsets[0] != 0) fail(Rule::kOffsetsStart, "start at 0, got ", offsets[0]);
  for (std::int64_t n = 0; n < dims.N; ++n) {
    const Int begin = offsets[n * stride], end = offsets[(n + 1) * stride];
    if (end < begin) {
      fail(Rule::kOffsetsDecrease, "not decrease, got ", begin, " then ", end, " at sequence ", n);
    }
  }
  const Int last = offsets[dims.N * stride];
  if (last > dims.T) fail(Rule::kOffsetsEnd, "end at most at T = ", dims.T, ", got ", last);
}

}  // namespace

Dims judge(const Problem& problem) { return Validator(problem).run(); }

void judge_cu_seqlens(const Problem& problem, const Dims& dims, const void* cu_seqlens) {
  if (problem[Port::kCuSeqlens].dtype == DType::kInt32) {
    check_offsets(problem, dims, static_cast<const std::int32_t*>(cu_seqlens));
  } else {
    check_offsets(problem, dims, static_cast<const std::int64_t*>(cu_seqlens));
  }
}

}  // namespace deltaworks
