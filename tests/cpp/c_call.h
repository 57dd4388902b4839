// From a C++ problem and its pointers to the struct of the C interface.
#pragma once

#include "deltaworks/c_api.h"
#include "deltaworks/plan.h"

namespace deltaworks::kit {

// `problem` outlives the call: it holds the plan's name.
inline dw_call c_call(const Problem& problem, const Pack& pack = {}) {
  const Options& o = problem.options;
  dw_call call{};
  call.struct_size = sizeof call;
  call.op = DW_GATED_DELTA_NET;
  call.pass = problem.pass == Pass::kForward ? DW_FORWARD : DW_BACKWARD;
  const std::pair<bool, unsigned> flags[] = {
      {o.use_qk_l2norm, DW_L2NORM},
      {o.use_beta_sigmoid, DW_BETA_SIGMOID},
      {o.allow_neg_eigval, DW_ALLOW_NEG_EIGVAL},
      {o.safe_gate, DW_SAFE_GATE},
      {o.batch_invariant, DW_BATCH_INVARIANT},
      {o.output_final_state, DW_OUTPUT_FINAL_STATE},
      {o.overwrite_initial_state, DW_OVERWRITE_INITIAL_STATE},
      {problem.requires_gradient, DW_REQUIRES_GRADIENT},
      {o.scale.has_value(), DW_HAS_SCALE},
      {o.has_state_indices, DW_HAS_STATE_INDICES},
  };
  for (const auto& [set, bit] : flags) call.flags |= set ? bit : 0u;
  call.threads = problem.threads;
  call.scale = o.scale.value_or(0);
  call.checkpoint_every_n_tokens = o.checkpoint_every_n_tokens;
  call.gate_domain = o.gate_domain == GateDomain::kLinear ? "linear" : nullptr;
  call.plan_name = problem.plan_name.c_str();
  for (int port = 0; port < kPortCount; ++port) {
    const TensorDesc& from = problem.tensors[port];
    dw_tensor& to = call.tensors[port];
    to.data = pack.pointers[port];
    to.present = from.present();
    to.dtype = static_cast<std::int32_t>(from.dtype);
    to.device_type = static_cast<std::int32_t>(from.device.type);
    to.device_index = from.device.index;
    to.ndim = from.present() ? from.rank : 0;
    for (int axis = 0; axis < kMaxRank; ++axis) {
      to.shape[axis] = from.shape[axis];
      to.stride[axis] = from.stride[axis];
    }
  }
  return call;
}

}  // namespace deltaworks::kit
