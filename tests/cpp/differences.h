// Calls of every operation that between them have every option, small enough that each element of
// each gradient can be held against central differences of the forward.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kit.h"

namespace deltaworks::kit {

struct SmallCall {
  std::string name;
  Call call;
};

// float64; 9 tokens of which sequences take 5, 0 and 3, and the last one belongs to none.
inline Call small_call(Op op, Options options = {}) {
  Call call{.dims = make_dims(9, 2, 2, 4, 3, 2),
            .offsets = {0, 5, 5, 8},
            .options = options,
            .types = all(DType::kFloat64),
            .op = op};
  call.dims.n = std::max<std::int64_t>(options.num_householder, 1);
  return call;
}

inline std::vector<SmallCall> small_calls() {
  using enum Op;
  std::vector<SmallCall> calls;
  const auto add = [&](Op op, const char* what, Options options, bool parameters = false) -> Call& {
    if (op == kGatedDeltaProduct) options.num_householder = 3;
    Call call = small_call(op, options);
    call.a_log = call.dt_bias = parameters;
    return calls.emplace_back(SmallCall{op_name(op) + (", " + std::string(what)), call}).call;
  };
  for (Op op : {kGatedDeltaNet, kKimiDeltaAttention, kGatedDeltaNetV2, kGatedDeltaProduct}) {
    add(op, "plain", {});
    add(op, "norm", {.scale = 0.7, .use_qk_l2norm = true}).initial_state = false;
    add(op, "sigmoid", {.use_beta_sigmoid = true});
    add(op, "norm, twice a sigmoid",
        {.use_qk_l2norm = true, .use_beta_sigmoid = true, .allow_neg_eigval = true});
    add(op, "safe gate", {.safe_gate = true});
    add(op, "safe gate, parameters", {.safe_gate = true}, true);
    add(op, "linear", {.gate_domain = GateDomain::kLinear});
    if (!spec_of(op).takes(Taken::kChannelGate)) continue;
    add(op, "lower bound", {.safe_gate = true, .gate_lower_bound = -2}, true);
    add(op, "softplus", {.safe_gate = true, .gate = GateKind::kSoftplus}, true);
  }
  for (int i = 0; i < 2; ++i) {
    const Options plain, all{.use_qk_l2norm = true, .use_beta_sigmoid = true, .safe_gate = true};
    Call& apart = add(kGatedDeltaProduct, "sub-steps apart", i == 0 ? plain : all, i == 1);
    apart.steps_apart = true;
    if (i == 1) apart.dims = {.T = 9, .K = 2, .V = 3, .H = 4, .HK = 2, .HV = 2, .HO = 4, .n = 3};
  }
  add(kMamba2, "plain", {});
  add(kMamba2, "D a head", {}).D_rank = 1;
  add(kMamba2, "D a value, bias", {}, true).D_rank = 2;
  add(kMamba2, "z", {}, true).z = true;
  add(kMamba2, "no softplus", {.dt_softplus = false}, true);
  for (int rank : {1, 2}) {
    Call& clamped = add(kMamba2, "D, z, clamp", {.dt_min = 0.5, .dt_max = 1.5}, true);
    clamped.D_rank = rank;
    clamped.z = true;
  }
  return calls;
}

// One call an operation, with as many options as go together.
inline std::vector<SmallCall> rich_calls() {
  std::vector<SmallCall> calls;
  for (const SmallCall& small : small_calls()) {
    if (calls.empty() || calls.back().call.op != small.call.op) calls.push_back(small);
    if (small.call.options.use_qk_l2norm || small.call.z) calls.back() = small;
  }
  return calls;
}

// <o, dO> + <final_state, d_final_state>
inline double loss(const Tensors& outputs, const Tensors& inputs) {
  double sum = 0;
  for (const auto& [out, flow] :
       {std::pair{Port::kO, Port::kDO}, {Port::kFinalState, Port::kDFinalState}}) {
    const auto d = inputs.find(flow);
    if (d == inputs.end()) continue;
    const Buffer& x = outputs.at(out);
    for (std::int64_t i = 0; i < x.count(); ++i) {
      if (d->second.get(i) != 0) sum += x.get(i) * d->second.get(i);
    }
  }
  return sum;
}

// Every gradient that run(call, pass, inputs) gives, element by element. The inputs are as before
// when it returns.
template <class Run>
void expect_gradients(const Run& run, const Call& call, Tensors& inputs) {
  const Tensors gradients = run(call, Pass::kBackward, inputs);
  ASSERT_FALSE(gradients.empty());
  for (const auto& [port, gradient] : gradients) {
    Buffer& x = inputs.at(spec_of(port, call.op).primal);
    ASSERT_EQ(gradient.desc.shape, x.desc.shape) << name(call.op, port);
    double largest = 0;
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const double middle = x.get(i), h = 1e-5;
      x.set(i, middle + h);
      const double above = loss(run(call, Pass::kForward, inputs), inputs);
      x.set(i, middle - h);
      const double below = loss(run(call, Pass::kForward, inputs), inputs);
      x.set(i, middle);
      const double expected = (above - below) / (2 * h);
      ASSERT_NEAR(gradient.get(i), expected, 1e-7 * (1 + std::abs(expected)))
          << name(call.op, port) << " at " << i;
      largest = std::max(largest, std::abs(expected));
    }
    EXPECT_GT(largest, 1e-3) << name(call.op, port) << " is not tested by this loss";
  }
}

}  // namespace deltaworks::kit
