// The operators on strided views of memory that belongs to the caller.
//
// Gated DeltaNet: for each token of each (sequence, head), with one state S [K, V]
// (arXiv:2412.06464)
//
//   S <- exp(g) S;   S <- S + beta k (v - S^T k)^T;   o = scale S^T q
//
// T tokens in N sequences; H, HK, HV heads of q, k, v; HO = max(H, HV); head i of HO reads head
// i / (HO / Hx). HK is H or HV, and the larger of H and HV is a multiple of the smaller.
//
//   Workspace workspace;                                   // grows to what calls need, and stays
//   gated_delta_net_forward({.q = view(q, {T, H, K}),
//                            .k = view(k, {T, H, K}),
//                            .v = view(v, {T, H, V}),
//                            .g = view(g, {T, H}),
//                            .beta = view(beta, {T, H}),
//                            .cu_seqlens = view(offsets, {N + 1}),
//                            .o = view(o, {T, H, V})},
//                           workspace);
//
// To plan once and run many times, take the same struct apart: find_plan(call.problem()), then
// plan.execute(call.pack(), workspace) (plan.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "deltaworks/plan.h"

namespace deltaworks {

// Memory of the host that calls share, one call at a time. Grows where a plan asks for more.
class Workspace {
 public:
  void* reserve(std::size_t bytes) {
    if (bytes > size_) {
      memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      size_ = bytes;
    }
    return memory_.get();
  }
  std::size_t size() const { return size_; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t size_ = 0;
};

// One call of the forward. Shapes and dtypes of the tensors: enum Port in problem.h.
struct GatedDeltaNetForward {
  Tensor q, k, v, g, beta, cu_seqlens;
  Tensor a_log = {}, dt_bias = {};  // absent: zeros; need options.safe_gate
  Tensor initial_state = {};        // absent: zeros; written with overwrite_initial_state
  Tensor o;                         // written
  Tensor final_state = {};          // written; absent: not wanted, or in initial_state
  // output_final_state follows from final_state.
  Options options = {};
  std::string plan_name = {};  // pins an engine; empty: the first that accepts
  std::int32_t threads = 0;    // upper bound; 0: the process's default

  Problem problem() const;
  Pack pack() const;
};

// One call of the backward. A gradient is computed where a tensor for it is given, in the shape and
// dtype of its input; gradients that flow in and are absent count as zeros.
struct GatedDeltaNetBackward {
  Tensor q, k, v, g, beta, cu_seqlens;
  Tensor a_log = {}, dt_bias = {}, initial_state = {};
  Tensor dO = {}, d_final_state = {};                       // flow in
  Tensor dq = {}, dk = {}, dv = {}, dg = {}, dbeta = {};    // written
  Tensor da_log = {}, ddt_bias = {}, d_initial_state = {};  // written
  Options options = {};
  std::string plan_name = {};
  std::int32_t threads = 0;

  Problem problem() const;
  Pack pack() const;
};

namespace detail {

inline Plan find_host_plan(const Problem& problem) {
  if (problem[Port::kQ].device.type != DeviceType::kCpu) {
    throw Error(
        Status::kInvalidValue,
        "a Workspace is memory of the host: find_plan and Plan::execute take a workspace in "
        "the memory of the tensors");
  }
  return find_plan(problem);
}

}  // namespace detail

// Run a call on the CPU. Throw Error before anything is written: kInvalidValue for shapes,
// combinations and malformed cu_seqlens, kInvalidType for dtypes, kNotSupported with every engine's
// reasons. Tensors on a card: find_plan and Plan::execute.
inline void gated_delta_net_forward(const GatedDeltaNetForward& call, Workspace& workspace,
                                    void* stream = nullptr) {
  const Plan plan = detail::find_host_plan(call.problem());
  plan.execute(call.pack(), workspace.reserve(plan.workspace_bytes()), stream);
}
// As gated_delta_net_forward.
inline void gated_delta_net_backward(const GatedDeltaNetBackward& call, Workspace& workspace,
                                     void* stream = nullptr) {
  const Plan plan = detail::find_host_plan(call.problem());
  plan.execute(call.pack(), workspace.reserve(plan.workspace_bytes()), stream);
}

namespace detail {

// Calls f(port, tensor) for every tensor of a call.
template <class Call, class F>
void for_inputs(const Call& c, F&& f) {
  f(Port::kQ, c.q);
  f(Port::kK, c.k);
  f(Port::kV, c.v);
  f(Port::kG, c.g);
  f(Port::kBeta, c.beta);
  f(Port::kCuSeqlens, c.cu_seqlens);
  f(Port::kALog, c.a_log);
  f(Port::kDtBias, c.dt_bias);
  f(Port::kInitialState, c.initial_state);
}
template <class F>
void for_tensors(const GatedDeltaNetForward& c, F&& f) {
  for_inputs(c, f);
  f(Port::kO, c.o);
  f(Port::kFinalState, c.final_state);
}
template <class F>
void for_tensors(const GatedDeltaNetBackward& c, F&& f) {
  for_inputs(c, f);
  f(Port::kDO, c.dO);
  f(Port::kDFinalState, c.d_final_state);
  f(Port::kDQ, c.dq);
  f(Port::kDK, c.dk);
  f(Port::kDV, c.dv);
  f(Port::kDG, c.dg);
  f(Port::kDBeta, c.dbeta);
  f(Port::kDALog, c.da_log);
  f(Port::kDDtBias, c.ddt_bias);
  f(Port::kDInitialState, c.d_initial_state);
}

template <class Call>
Problem problem_of_call(const Call& call, Pass pass) {
  Problem problem;
  problem.op = Op::kGatedDeltaNet;
  problem.pass = pass;
  problem.options = call.options;
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

}  // namespace detail

inline Problem GatedDeltaNetForward::problem() const {
  Problem problem = detail::problem_of_call(*this, Pass::kForward);
  problem.options.output_final_state = final_state.desc.present();
  return problem;
}
inline Pack GatedDeltaNetForward::pack() const { return detail::pack_of_call(*this); }
inline Problem GatedDeltaNetBackward::problem() const {
  return detail::problem_of_call(*this, Pass::kBackward);
}
inline Pack GatedDeltaNetBackward::pack() const { return detail::pack_of_call(*this); }

}  // namespace deltaworks
