// Operations that are one another's special cases, on the reference engine, bit for bit.
#include <gtest/gtest.h>

#include "differences.h"
#include "reference_run.h"

namespace deltaworks {
namespace {

using namespace kit;

// Inputs of `call`, each element of which is element(from, port, its position).
template <class Element>
Tensors inputs_from(const Call& call, const Tensors& from, const Element& element) {
  Tensors inputs = make_inputs(call, 1);
  for (auto& [port, tensor] : inputs) {
    for (std::int64_t i = 0; i < tensor.count(); ++i) tensor.set(i, element(from, port, i));
  }
  return inputs;
}

// Of the outputs that both have in one size.
void expect_same_outputs(const Tensors& a, const Tensors& b) {
  int shared = 0;
  for (const auto& [port, tensor] : a) {
    if (!b.contains(port) || b.at(port).count() != tensor.count()) continue;
    ++shared;
    for (std::int64_t i = 0; i < tensor.count(); ++i) {
      ASSERT_TRUE(same_bits(tensor, b.at(port), i)) << name(port) << " at " << i;
    }
  }
  EXPECT_GE(shared, 2);
}

TEST(ReferenceIdentities, OneSubStepIsGatedDeltaNet) {
  Options options{.use_qk_l2norm = true, .use_beta_sigmoid = true, .safe_gate = true};
  const Call net = small_call(Op::kGatedDeltaNet, options);
  options.num_householder = 1;
  for (bool apart : {false, true}) {
    Call product = small_call(Op::kGatedDeltaProduct, options);
    product.steps_apart = apart;
    const Tensors inputs = make_inputs(net, 20);
    const Tensors same = inputs_from(product, inputs, [](const Tensors& from, Port port, auto i) {
      return from.at(port).get(i);
    });
    for (Pass pass : {Pass::kForward, Pass::kBackward}) {
      expect_same_bits(run_reference(net, pass, inputs), run_reference(product, pass, same));
    }
  }
}

TEST(ReferenceIdentities, BothLayoutsOfSubSteps) {
  const Call minor = small_call(Op::kGatedDeltaProduct, {.num_householder = 3});
  Call apart = minor;
  apart.steps_apart = true;
  const Tensors inputs = make_inputs(minor, 21), same = make_inputs(apart, 21);
  for (Pass pass : {Pass::kForward, Pass::kBackward}) {
    expect_same_bits(run_reference(minor, pass, inputs), run_reference(apart, pass, same));
  }
}

TEST(ReferenceIdentities, EqualChannelsAreOne) {
  const Call net = small_call(Op::kGatedDeltaNet, {.use_qk_l2norm = true});
  const Call kimi = small_call(Op::kKimiDeltaAttention, net.options);
  const Call second = small_call(Op::kGatedDeltaNetV2, net.options);
  const std::int64_t K = net.dims.K, V = net.dims.V;
  const Tensors inputs = make_inputs(net, 22);
  const auto by_channel = [&](bool beta_too) {
    return [=](const Tensors& from, Port port, std::int64_t i) {
      if (port == Port::kW) return from.at(Port::kBeta).get(i / V);
      const bool channels = port == Port::kG || (port == Port::kBeta && beta_too);
      return from.at(port).get(channels ? i / K : i);
    };
  };
  const Tensors kimi_inputs = inputs_from(kimi, inputs, by_channel(false));
  const Tensors second_inputs = inputs_from(second, inputs, by_channel(true));
  for (Pass pass : {Pass::kForward, Pass::kBackward}) {
    const Tensors expected = run_reference(net, pass, inputs);
    expect_same_outputs(expected, run_reference(kimi, pass, kimi_inputs));
    expect_same_outputs(expected, run_reference(second, pass, second_inputs));
  }
}

}  // namespace
}  // namespace deltaworks
