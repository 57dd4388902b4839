// The only place where shapes, dtypes and combinations are judged.
// Order: tensors present and their ranks, the dimensions they agree on, every shape, devices,
// dtypes, options. The first broken rule is reported.
#include "problem/validate.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>

#include "core/strings.h"
#include "deltaworks/status.h"
#include "problem/ports.h"

namespace deltaworks {
namespace {

constexpr std::int64_t kMaxHeadDim = 512;

class Validator {
 public:
  explicit Validator(const Problem& problem) : p_(problem), specs_(ports(problem.op)) {}

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
  [[noreturn]] void fail(Status status, const Parts&... parts) const {
    throw Error(status, cat(op_name(p_.op), ": ", parts...));
  }
  template <class... Parts>
  void require(bool met, const Parts&... parts) const {
    if (!met) fail(Status::kInvalidValue, parts...);
  }

  bool belongs(Role role) const {
    switch (role) {
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
    for (const PortSpec& spec : specs_) {
      const TensorDesc& tensor = p_[spec.port];
      const bool must =
          spec.role == Role::kInput || (spec.role == Role::kOutput && p_.pass == Pass::kForward);
      require(tensor.present() || !must, name(spec.port), " is missing");
      if (!tensor.present()) continue;
      require(belongs(spec.role), name(spec.port), " does not belong to this pass");
      require(tensor.rank == spec.rank, name(spec.port), " must have shape ", symbols(spec),
              ", got ", shape(tensor));
      for (int axis = 0; axis < spec.rank; ++axis) {
        require(tensor.shape[axis] >= 0, name(spec.port), " must have shape ", symbols(spec),
                ", got ", shape(tensor));
      }
      require(spec.role != Role::kGradient || p_.has(spec.primal), name(spec.port), " needs ",
              name(spec.primal));
    }
  }

  void agree_on_dims() {
    const TensorDesc &q = p_[Port::kQ], &k = p_[Port::kK], &v = p_[Port::kV];
    const TensorDesc& cu_seqlens = p_[Port::kCuSeqlens];
    require(cu_seqlens.shape[0] >= 1, "cu_seqlens must have shape [N+1], got [0]");
    dims_ = {.T = q.shape[0],
             .N = cu_seqlens.shape[0] - 1,
             .K = q.shape[2],
             .V = v.shape[2],
             .H = q.shape[1],
             .HK = k.shape[1],
             .HV = v.shape[1],
             .HO = std::max(q.shape[1], v.shape[1])};
    const auto& [T, N, K, V, H, HK, HV, HO] = dims_;
    require(K >= 1 && K <= kMaxHeadDim, "key dimension of q must be in 1..", kMaxHeadDim, ", got ",
            K);
    require(V >= 1 && V <= kMaxHeadDim, "value dimension of v must be in 1..", kMaxHeadDim,
            ", got ", V);
    require(HK == H || HK == HV, "k must have as many heads as q (", H, ") or v (", HV, "), got ",
            HK);
    const std::int64_t fewer = std::min(H, HV);
    require(fewer == 0 ? HO == 0 : HO % fewer == 0,
            "the larger of the head counts of q and v must be a multiple of the smaller, got ", H,
            " and ", HV);
  }

  void check_shapes() const {
    for (const PortSpec& spec : specs_) {
      const TensorDesc& tensor = p_[spec.port];
      if (!tensor.present()) continue;
      const bool written = (spec.role == Role::kGradient || spec.role == Role::kOutput ||
                            spec.role == Role::kFinalState) &&
                           elements(tensor) > 0;
      for (int axis = 0; axis < spec.rank; ++axis) {
        require(tensor.shape[axis] == extent(dims_, spec.axes[axis]), name(spec.port),
                " must have shape ", symbols(spec), " = ", expected(spec), ", got ", shape(tensor));
        require(!written || tensor.shape[axis] <= 1 || tensor.stride[axis] != 0, name(spec.port),
                " is written and must not have a zero stride");
      }
    }
  }

  void check_devices() const {
    const Device q = p_[Port::kQ].device;
    for (const PortSpec& spec : specs_) {
      const TensorDesc& tensor = p_[spec.port];
      require(!tensor.present() || tensor.device == q, name(spec.port), " must be on q's device (",
              device(q), "), got ", device(tensor.device));
    }
  }

  void check_dtypes() const {
    const DType io = p_[Port::kQ].dtype;
    require_dtype(Port::kQ, {DType::kBFloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64});
    const bool f64 = io == DType::kFloat64;
    DType state = DType::kOther;  // of the first state port seen
    for (const PortSpec& spec : specs_) {
      const TensorDesc& tensor = p_[spec.port];
      if (!tensor.present()) continue;
      if (spec.kind == Kind::kOffset) {
        require(tensor.dtype == DType::kInt32 || tensor.dtype == DType::kInt64, name(spec.port),
                " must be int32 or int64, got ", name(tensor.dtype));
      } else if (f64) {
        if (tensor.dtype != DType::kFloat64) {
          fail(Status::kInvalidType, name(spec.port), " must be float64 as q is, got ",
               name(tensor.dtype));
        }
      } else if (spec.role == Role::kGradient) {
        if (tensor.dtype != p_[spec.primal].dtype) {
          fail(Status::kInvalidType, name(spec.port), " must have the dtype of ", name(spec.primal),
               " (", name(p_[spec.primal].dtype), "), got ", name(tensor.dtype));
        }
      } else if (spec.kind == Kind::kIo) {
        if (tensor.dtype != io) {
          fail(Status::kInvalidType, name(spec.port), " must be ", name(io), " as q is, got ",
               name(tensor.dtype));
        }
      } else if (spec.kind == Kind::kBeta) {
        if (io == DType::kFloat32) {
          require_dtype(spec.port, {DType::kFloat32});
        } else {
          require_dtype(spec.port, {DType::kFloat32, io});
        }
      } else {
        require_dtype(spec.port, {DType::kFloat32, DType::kBFloat16, DType::kFloat16});
        if (spec.kind != Kind::kState) continue;
        if (state == DType::kOther) {
          // Without an initial state the states are fp32.
          state = p_.has(Port::kInitialState) ? tensor.dtype : DType::kFloat32;
        }
        if (tensor.dtype != state) {
          fail(Status::kInvalidType, name(spec.port), " must be ", name(state),
               p_.has(Port::kInitialState) ? " as initial_state is" : " without initial_state",
               ", got ", name(tensor.dtype));
        }
      }
    }
  }

  void check_options() const {
    const Options& o = p_.options;
    require(!o.scale || std::isfinite(*o.scale), "scale must be finite, got ", o.scale.value_or(0));
    require(!o.allow_neg_eigval || o.use_beta_sigmoid,
            "allow_neg_eigval needs use_beta_sigmoid_in_kernel");
    for (Port port : {Port::kALog, Port::kDtBias}) {
      require(!p_.has(port) || o.safe_gate, name(port), " needs safe_gate");
    }
    require(!o.safe_gate || o.gate_domain == GateDomain::kLog,
            "gate_domain='linear' excludes safe_gate");
    require(o.checkpoint_every_n_tokens >= 0, "checkpoint_every_n_tokens must be >= 0, got ",
            o.checkpoint_every_n_tokens);
    const bool initial_state = p_.has(Port::kInitialState);
    require(!o.has_state_indices || initial_state, "state_indices needs initial_state");
    require(!o.overwrite_initial_state || initial_state,
            "overwrite_initial_state needs initial_state");
    require(!o.has_state_indices || !p_.requires_gradient, "state_indices excludes autograd");
    require(!o.overwrite_initial_state || !p_.requires_gradient,
            "overwrite_initial_state excludes autograd");
    require(!o.has_state_indices || o.checkpoint_every_n_tokens == 0,
            "state_indices excludes checkpoints (checkpoint_every_n_tokens = ",
            o.checkpoint_every_n_tokens, ")");
    if (p_.pass == Pass::kForward) {
      require(o.output_final_state == p_.has(Port::kFinalState),
              o.output_final_state ? "final_state is missing (output_final_state is set)"
                                   : "final_state needs output_final_state");
    }
  }

  void require_dtype(Port port, std::initializer_list<DType> allowed) const {
    const DType got = p_[port].dtype;
    if (std::find(allowed.begin(), allowed.end(), got) != allowed.end()) return;
    std::string list;
    for (const DType* dtype = allowed.begin(); dtype != allowed.end(); ++dtype) {
      if (dtype != allowed.begin()) list += dtype + 1 == allowed.end() ? " or " : ", ";
      list += name(*dtype);
    }
    fail(Status::kInvalidType, name(port), " must be ", list, ", got ", name(got));
  }

  static std::int64_t elements(const TensorDesc& tensor) {
    std::int64_t count = 1;
    for (int axis = 0; axis < tensor.rank; ++axis) count *= tensor.shape[axis];
    return count;
  }

  static std::string device(Device device) {
    switch (device.type) {
      case DeviceType::kCpu:
        return "cpu";
      case DeviceType::kCuda:
        return cat("cuda:", device.index);
      case DeviceType::kOther:
        break;
    }
    return "another device";
  }

  static std::string shape(const TensorDesc& tensor) {
    std::string text = "[";
    for (int axis = 0; axis < std::min(tensor.rank, kMaxRank); ++axis) {
      if (axis > 0) text += ", ";
      text += std::to_string(tensor.shape[axis]);
    }
    return text + (tensor.rank > kMaxRank ? ", ...]" : "]");
  }

  static std::string symbols(const PortSpec& spec) {
    std::string text = "[";
    for (int axis = 0; axis < spec.rank; ++axis) {
      if (axis > 0) text += ", ";
      text += name(spec.axes[axis]);
    }
    return text + "]";
  }

  std::string expected(const PortSpec& spec) const {
    TensorDesc tensor;
    tensor.rank = spec.rank;
    for (int axis = 0; axis < spec.rank; ++axis) {
      tensor.shape[axis] = extent(dims_, spec.axes[axis]);
    }
    return shape(tensor);
  }

  const Problem& p_;
  std::span<const PortSpec> specs_;
  Dims dims_;
};

template <class Int>
void check_offsets(const Problem& problem, const Dims& dims, const Int* offsets) {
  const std::int64_t stride = problem[Port::kCuSeqlens].stride[0];
  const auto fail = [&](auto... parts) {
    throw Error(Status::kInvalidValue, cat(op_name(problem.op), ": cu_seqlens must ", parts...));
  };
  if (offsets[0] != 0) fail("start at 0, got ", offsets[0]);
  for (std::int64_t n = 0; n < dims.N; ++n) {
    const Int begin = offsets[n * stride], end = offsets[(n + 1) * stride];
    if (end < begin) fail("not decrease, got ", begin, " then ", end, " at sequence ", n);
  }
  const Int last = offsets[dims.N * stride];
  if (last > dims.T) fail("end at most at T = ", dims.T, ", got ", last);
}

}  // namespace

Dims validate(const Problem& problem) { return Validator(problem).run(); }

void check_cu_seqlens(const Problem& problem, const Dims& dims, const void* cu_seqlens) {
  if (problem[Port::kCuSeqlens].dtype == DType::kInt32) {
    check_offsets(problem, dims, static_cast<const std::int32_t*>(cu_seqlens));
  } else {
    check_offsets(problem, dims, static_cast<const std::int64_t*>(cu_seqlens));
  }
}

}  // namespace deltaworks
