// The operators on strided views of memory that belongs to the caller: gated_delta_net,
// kimi_delta_attention, gated_delta_net_v2, gated_delta_product and mamba2, forward and backward.
// For each token of each (sequence, head), with one state S [K, V],
//
//   S <- D S;   S <- S + k (w - S^T e)^T;   o = scale S^T q
//
//   gated_delta_net       D = exp(g)         e = beta k   w = beta v    arXiv:2412.06464
//   kimi_delta_attention  D = Diag(exp(g))   e = beta k   w = beta v    arXiv:2510.26692
//   gated_delta_net_v2    D = Diag(exp(g))   e = beta*k   w = w*v       beta in R^K, w in R^V
//   gated_delta_product   n steps of gated_delta_net a token, the first decays   arXiv:2502.10297
//   mamba2                D = exp(A dt)      e = 0        w = dt x      arXiv:2405.21060
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

#include "deltaworks/detail/ports.h"
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

// Calls: which tensors each port takes, in which shapes and dtypes, says enum Port in problem.h. Of
// a forward, final_state that is given is wanted (output_final_state follows from it), plan_name
// pins an engine (empty: the first that accepts) and threads is an upper bound (0: the process's
// default). Of a backward, a gradient is computed where a tensor for it is given, in the shape and
// dtype of its input; gradients that flow in and are absent count as zeros.

// gated_delta_net, kimi_delta_attention and gated_delta_product, which needs
// options.num_householder.
template <Op kOp>
struct DeltaForward {
  static constexpr Op op = kOp;
  static constexpr Pass pass = Pass::kForward;

  Tensor q, k, v, g, beta, cu_seqlens;
  Tensor a_log = {}, dt_bias = {};  // absent: zeros; need options.safe_gate
  Tensor initial_state = {};        // absent: zeros; written with overwrite_initial_state
  Tensor state_indices = {};        // initial_state is a pool of states
  Tensor o;                         // written
  Tensor final_state = {};          // written; absent: not wanted, or in initial_state
  Options options = {};
  std::string plan_name = {};
  std::int32_t threads = 0;

  Problem problem() const { return detail::problem_of_call(*this); }
  Pack pack() const { return detail::pack_of_call(*this); }
};

// The gradients of such a call.
template <Op kOp>
struct DeltaBackward {
  static constexpr Op op = kOp;
  static constexpr Pass pass = Pass::kBackward;

  Tensor q, k, v, g, beta, cu_seqlens;
  Tensor a_log = {}, dt_bias = {}, initial_state = {};
  Tensor dO = {}, d_final_state = {};                       // flow in
  Tensor dq = {}, dk = {}, dv = {}, dg = {}, dbeta = {};    // written
  Tensor da_log = {}, ddt_bias = {}, d_initial_state = {};  // written
  Options options = {};
  std::string plan_name = {};
  std::int32_t threads = 0;

  Problem problem() const { return detail::problem_of_call(*this); }
  Pack pack() const { return detail::pack_of_call(*this); }
};

// gated_delta_net.
using GatedDeltaNetForward = DeltaForward<Op::kGatedDeltaNet>;
// Its gradients.
using GatedDeltaNetBackward = DeltaBackward<Op::kGatedDeltaNet>;
// kimi_delta_attention.
using KimiDeltaAttentionForward = DeltaForward<Op::kKimiDeltaAttention>;
// Its gradients.
using KimiDeltaAttentionBackward = DeltaBackward<Op::kKimiDeltaAttention>;
// gated_delta_product.
using GatedDeltaProductForward = DeltaForward<Op::kGatedDeltaProduct>;
// Its gradients.
using GatedDeltaProductBackward = DeltaBackward<Op::kGatedDeltaProduct>;

// gated_delta_net_v2.
struct GatedDeltaNetV2Forward {
  static constexpr Op op = Op::kGatedDeltaNetV2;
  static constexpr Pass pass = Pass::kForward;

  Tensor q, k, v, g, beta, w, cu_seqlens;
  Tensor a_log = {}, dt_bias = {}, initial_state = {}, state_indices = {};
  Tensor o, final_state = {};  // written
  Options options = {};
  std::string plan_name = {};
  std::int32_t threads = 0;

  Problem problem() const { return detail::problem_of_call(*this); }
  Pack pack() const { return detail::pack_of_call(*this); }
};

// Its gradients.
struct GatedDeltaNetV2Backward {
  static constexpr Op op = Op::kGatedDeltaNetV2;
  static constexpr Pass pass = Pass::kBackward;

  Tensor q, k, v, g, beta, w, cu_seqlens;
  Tensor a_log = {}, dt_bias = {}, initial_state = {};
  Tensor dO = {}, d_final_state = {};                              // flow in
  Tensor dq = {}, dk = {}, dv = {}, dg = {}, dbeta = {}, dw = {};  // written
  Tensor da_log = {}, ddt_bias = {}, d_initial_state = {};         // written
  Options options = {};
  std::string plan_name = {};
  std::int32_t threads = 0;

  Problem problem() const { return detail::problem_of_call(*this); }
  Pack pack() const { return detail::pack_of_call(*this); }
};

// mamba2: y = S^T C + D x, times silu(z) where there is a z.
struct Mamba2Forward {
  static constexpr Op op = Op::kMamba2;
  static constexpr Pass pass = Pass::kForward;

  Tensor x, dt, A, B, C, cu_seqlens;
  Tensor D = {}, dt_bias = {}, z = {}, initial_state = {}, state_indices = {};
  Tensor y, final_state = {};  // written
  Options options = {};
  std::string plan_name = {};
  std::int32_t threads = 0;

  Problem problem() const { return detail::problem_of_call(*this); }
  Pack pack() const { return detail::pack_of_call(*this); }
};

// Its gradients.
struct Mamba2Backward {
  static constexpr Op op = Op::kMamba2;
  static constexpr Pass pass = Pass::kBackward;

  Tensor x, dt, A, B, C, cu_seqlens;
  Tensor D = {}, dt_bias = {}, z = {}, initial_state = {};
  Tensor dy = {}, d_final_state = {};                            // flow in
  Tensor dx = {}, ddt = {}, dA = {}, dB = {}, dC = {};           // written
  Tensor dD = {}, ddt_bias = {}, dz = {}, d_initial_state = {};  // written
  Options options = {};
  std::string plan_name = {};
  std::int32_t threads = 0;

  Problem problem() const { return detail::problem_of_call(*this); }
  Pack pack() const { return detail::pack_of_call(*this); }
};

namespace detail {

template <class Call>
void run_on_host(const Call& call, Workspace& workspace, void* stream) {
  const Problem problem = call.problem();
  for (const TensorDesc& tensor : problem.tensors) {
    if (tensor.present() && tensor.device.type != DeviceType::kCpu) {
      throw Error(
          Status::kInvalidValue,
          "a Workspace is memory of the host: find_plan and Plan::execute take a workspace in "
          "the memory of the tensors");
    }
  }
  const Plan plan = find_plan(problem);
  plan.execute(call.pack(), workspace.reserve(plan.workspace_bytes()), stream);
}

}  // namespace detail

// Run a call on the CPU. Throw Error before anything is written: kInvalidValue for shapes,
// combinations and malformed cu_seqlens, kInvalidType for dtypes, kNotSupported with every engine's
// reasons. Tensors on a card: find_plan and Plan::execute.
inline void gated_delta_net_forward(const GatedDeltaNetForward& call, Workspace& workspace,
                                    void* stream = nullptr) {
  detail::run_on_host(call, workspace, stream);
}
// As gated_delta_net_forward.
inline void gated_delta_net_backward(const GatedDeltaNetBackward& call, Workspace& workspace,
                                     void* stream = nullptr) {
  detail::run_on_host(call, workspace, stream);
}
// As gated_delta_net_forward.
inline void kimi_delta_attention_forward(const KimiDeltaAttentionForward& call,
                                         Workspace& workspace, void* stream = nullptr) {
  detail::run_on_host(call, workspace, stream);
}
// As gated_delta_net_forward.
inline void kimi_delta_attention_backward(const KimiDeltaAttentionBackward& call,
                                          Workspace& workspace, void* stream = nullptr) {
  detail::run_on_host(call, workspace, stream);
}
// As gated_delta_net_forward.
inline void gated_delta_net_v2_forward(const GatedDeltaNetV2Forward& call, Workspace& workspace,
                                       void* stream = nullptr) {
  detail::run_on_host(call, workspace, stream);
}
// As gated_delta_net_forward.
inline void gated_delta_net_v2_backward(const GatedDeltaNetV2Backward& call, Workspace& workspace,
                                        void* stream = nullptr) {
  detail::run_on_host(call, workspace, stream);
}
// As gated_delta_net_forward.
inline void gated_delta_product_forward(const GatedDeltaProductForward& call, Workspace& workspace,
                                        void* stream = nullptr) {
  detail::run_on_host(call, workspace, stream);
}
// As gated_delta_net_forward.
inline void gated_delta_product_backward(const GatedDeltaProductBackward& call,
                                         Workspace& workspace, void* stream = nullptr) {
  detail::run_on_host(call, workspace, stream);
}
// As gated_delta_net_forward.
inline void mamba2_forward(const Mamba2Forward& call, Workspace& workspace,
                           void* stream = nullptr) {
  detail::run_on_host(call, workspace, stream);
}
// As gated_delta_net_forward.
inline void mamba2_backward(const Mamba2Backward& call, Workspace& workspace,
                            void* stream = nullptr) {
  detail::run_on_host(call, workspace, stream);
}

}  // namespace deltaworks
