// Which member of a call is which port. Not for use outside these headers.
#pragma once

#include "deltaworks/problem.h"
#include "deltaworks/types.h"

namespace deltaworks::detail {

// f(port, tensor) for every tensor of a call.
template <class Call, class F>
void for_inputs(const Call& c, F&& f) {
  if constexpr (Call::op == Op::kMamba2) {
    f(Port::kX, c.x);
    f(Port::kDt, c.dt);
    f(Port::kA, c.A);
    f(Port::kB, c.B);
    f(Port::kC, c.C);
    f(Port::kD, c.D);
    f(Port::kZ, c.z);
  } else {
    f(Port::kQ, c.q);
    f(Port::kK, c.k);
    f(Port::kV, c.v);
    f(Port::kG, c.g);
    f(Port::kBeta, c.beta);
    if constexpr (Call::op == Op::kGatedDeltaNetV2) f(Port::kW, c.w);
    f(Port::kALog, c.a_log);
  }
  f(Port::kCuSeqlens, c.cu_seqlens);
  f(Port::kDtBias, c.dt_bias);
  f(Port::kInitialState, c.initial_state);
}

template <class Call, class F>
void for_gradients(const Call& c, F&& f) {
  if constexpr (Call::op == Op::kMamba2) {
    f(Port::kDY, c.dy);
    f(Port::kDX, c.dx);
    f(Port::kDDt, c.ddt);
    f(Port::kDA, c.dA);
    f(Port::kDB, c.dB);
    f(Port::kDC, c.dC);
    f(Port::kDD, c.dD);
    f(Port::kDZ, c.dz);
  } else {
    f(Port::kDO, c.dO);
    f(Port::kDQ, c.dq);
    f(Port::kDK, c.dk);
    f(Port::kDV, c.dv);
    f(Port::kDG, c.dg);
    f(Port::kDBeta, c.dbeta);
    if constexpr (Call::op == Op::kGatedDeltaNetV2) f(Port::kDW, c.dw);
    f(Port::kDALog, c.da_log);
  }
  f(Port::kDFinalState, c.d_final_state);
  f(Port::kDDtBias, c.ddt_bias);
  f(Port::kDInitialState, c.d_initial_state);
}

template <class Call, class F>
void for_tensors(const Call& c, F&& f) {
  for_inputs(c, f);
  if constexpr (Call::pass == Pass::kBackward) {
    for_gradients(c, f);
  } else {
    f(Port::kStateIndices, c.state_indices);
    if constexpr (Call::op == Op::kMamba2) {
      f(Port::kY, c.y);
    } else {
      f(Port::kO, c.o);
    }
    f(Port::kFinalState, c.final_state);
  }
}

template <class Call>
Problem problem_of_call(const Call& call) {
  Problem problem;
  problem.op = Call::op;
  problem.pass = Call::pass;
  problem.options = call.options;
  if constexpr (Call::pass == Pass::kForward) {
    problem.options.output_final_state = call.final_state.desc.present();
  }
  problem.plan_name = call.plan_name;
  problem.threads = call.threads;
  for_tensors(call, [&](Port port, const Tensor& tensor) { problem[port] = tensor.desc; });
  return problem;
}

template <class Call>
Pack pack_of_call(const Call& call) {
  Pack pack;
  for_tensors(call, [&](Port port, const Tensor& tensor) { pack[port] = tensor.data; });
  return pack;
}

}  // namespace deltaworks::detail
