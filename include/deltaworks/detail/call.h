// Between the C++ types and the structs of the C interface. Not for use outside these headers.
#pragma once

#include <algorithm>
#include <cstddef>

#include "deltaworks/c_api.h"
#include "deltaworks/problem.h"
#include "deltaworks/status.h"

namespace deltaworks::detail {

inline void require(dw_status status) {
  if (status != DW_OK) throw Error(static_cast<Status>(status), dw_last_error());
}

// A problem as the C interface takes it. The C++ problem outlives it: it holds the plan's name.
class CProblem {
 public:
  explicit CProblem(const Problem& problem) {
    const Options& o = problem.options;
    c_.struct_size = sizeof c_;
    c_.op = static_cast<std::int32_t>(problem.op);
    c_.pass = static_cast<std::int32_t>(problem.pass);
    flag(o.use_qk_l2norm, DW_L2NORM);
    flag(o.use_beta_sigmoid, DW_BETA_SIGMOID);
    flag(o.allow_neg_eigval, DW_ALLOW_NEG_EIGVAL);
    flag(o.safe_gate, DW_SAFE_GATE);
    flag(o.batch_invariant, DW_BATCH_INVARIANT);
    flag(o.output_final_state, DW_OUTPUT_FINAL_STATE);
    flag(o.overwrite_initial_state, DW_OVERWRITE_INITIAL_STATE);
    flag(problem.requires_gradient, DW_REQUIRES_GRADIENT);
    flag(o.scale.has_value(), DW_HAS_SCALE);
    flag(o.checkpoint_dtype.has_value(), DW_HAS_CHECKPOINT_DTYPE);
    flag(o.beta_guard, DW_BETA_GUARD);
    flag(o.gate_lower_bound.has_value(), DW_HAS_GATE_LOWER_BOUND);
    flag(!o.dt_softplus, DW_DT_LINEAR);
    flag(o.dt_max.has_value(), DW_HAS_DT_MAX);
    c_.threads = problem.threads;
    c_.scale = o.scale.value_or(0);
    c_.gate_domain = o.gate_domain == GateDomain::kLinear ? "linear" : "log";
    c_.plan_name = problem.plan_name.c_str();
    c_.checkpoint_every_n_tokens = o.checkpoint_every_n_tokens;
    c_.checkpoint_dtype = static_cast<std::int32_t>(o.checkpoint_dtype.value_or(DType::kFloat32));
    c_.gate = o.gate == GateKind::kSoftplus ? "softplus" : "sigmoid";
    c_.gate_lower_bound = o.gate_lower_bound.value_or(0);
    c_.num_householder = o.num_householder;
    c_.dt_min = o.dt_min;
    c_.dt_max = o.dt_max.value_or(0);
    for (int port = 0; port < kPortCount; ++port) {
      const TensorDesc& from = problem.tensors[port];
      if (!from.present()) continue;
      dw_tensor& to = tensors_[c_.tensor_count++];
      to.port = port;
      to.dtype = static_cast<std::int32_t>(from.dtype);
      to.device_type = static_cast<std::int32_t>(from.device.type);
      to.device_index = from.device.index;
      to.ndim = from.rank;
      std::copy(from.shape.begin(), from.shape.end(), to.shape);
      std::copy(from.stride.begin(), from.stride.end(), to.stride);
    }
    c_.tensors = tensors_;
  }
  CProblem(const CProblem&) = delete;
  CProblem& operator=(const CProblem&) = delete;

  const dw_problem* get() const { return &c_; }

 private:
  void flag(bool set, std::uint32_t bit) { c_.flags |= set ? bit : 0u; }

  dw_problem c_{};
  dw_tensor tensors_[kPortCount]{};
};

// The description that a dw_tensor holds. Numbers that name no dtype become kOther.
inline TensorDesc describe(const dw_tensor& from) {
  TensorDesc desc;
  desc.dtype =
      from.dtype >= 0 && from.dtype < DW_OTHER ? static_cast<DType>(from.dtype) : DType::kOther;
  const bool known = from.device_type == DW_CPU || from.device_type == DW_CUDA;
  desc.device = {known ? static_cast<DeviceType>(from.device_type) : DeviceType::kOther,
                 from.device_index};
  desc.rank = std::max(from.ndim, 0);
  std::copy_n(from.shape, std::min(desc.rank, kMaxRank), desc.shape.begin());
  std::copy_n(from.stride, std::min(desc.rank, kMaxRank), desc.stride.begin());
  return desc;
}

// Options and tensors of a problem whose numbers and words (op, pass, ports, gate_domain, gate) are
// known to be in range.
inline Problem problem_of(const dw_problem& c) {
  Problem problem;
  problem.op = static_cast<Op>(c.op);
  problem.pass = static_cast<Pass>(c.pass);
  for (std::size_t i = 0; i < c.tensor_count; ++i) {
    problem.tensors[c.tensors[i].port] = describe(c.tensors[i]);
  }
  Options& o = problem.options;
  if (c.flags & DW_HAS_SCALE) o.scale = c.scale;
  o.use_qk_l2norm = c.flags & DW_L2NORM;
  o.use_beta_sigmoid = c.flags & DW_BETA_SIGMOID;
  o.allow_neg_eigval = c.flags & DW_ALLOW_NEG_EIGVAL;
  o.safe_gate = c.flags & DW_SAFE_GATE;
  o.gate_domain = c.gate_domain != nullptr && c.gate_domain[0] == 'l' && c.gate_domain[1] == 'i'
                      ? GateDomain::kLinear
                      : GateDomain::kLog;
  o.batch_invariant = c.flags & DW_BATCH_INVARIANT;
  o.output_final_state = c.flags & DW_OUTPUT_FINAL_STATE;
  o.overwrite_initial_state = c.flags & DW_OVERWRITE_INITIAL_STATE;
  o.checkpoint_every_n_tokens = c.checkpoint_every_n_tokens;
  if (c.flags & DW_HAS_CHECKPOINT_DTYPE) {
    const bool known = c.checkpoint_dtype >= 0 && c.checkpoint_dtype < DW_OTHER;
    o.checkpoint_dtype = known ? static_cast<DType>(c.checkpoint_dtype) : DType::kOther;
  }
  o.gate = c.gate != nullptr && c.gate[0] == 's' && c.gate[1] == 'o' ? GateKind::kSoftplus
                                                                     : GateKind::kSigmoid;
  if (c.flags & DW_HAS_GATE_LOWER_BOUND) o.gate_lower_bound = c.gate_lower_bound;
  o.beta_guard = c.flags & DW_BETA_GUARD;
  o.num_householder = c.num_householder;
  o.dt_softplus = !(c.flags & DW_DT_LINEAR);
  o.dt_min = c.dt_min;
  if (c.flags & DW_HAS_DT_MAX) o.dt_max = c.dt_max;
  problem.requires_gradient = c.flags & DW_REQUIRES_GRADIENT;
  if (c.plan_name != nullptr) problem.plan_name = c.plan_name;
  problem.threads = c.threads;
  return problem;
}

}  // namespace deltaworks::detail
