// The oracle that judges the CPU engine, judged itself: its outputs by hand, its gradients by
// central differences of its own outputs.
#include "oracle.h"

#include <gtest/gtest.h>

#include <cmath>

namespace deltaworks {
namespace {

using namespace kit;

TEST(Oracle, TwoTokensByHand) {
  const Call call{.dims = make_dims(2, 1, 1, 1, 1, 1), .offsets = {0, 2}, .initial_state = false};
  Tensors inputs = make_inputs(call, 1);
  const std::pair<Port, std::array<double, 2>> values[] = {{Port::kQ, {1, 3}},
                                                           {Port::kK, {1, 2}},
                                                           {Port::kV, {4, 1}},
                                                           {Port::kG, {-1, 0}},
                                                           {Port::kBeta, {0.5, 0.25}}};
  for (const auto& [port, x] : values) {
    for (int i = 0; i < 2; ++i) inputs.at(port).set(i, x[i]);
  }
  // S = 1 * 0.5 * 4 = 2;  u = 0.25 (1 - 2 * 2) = -0.75, S = 2 - 0.75 * 2 = 0.5.
  const Tensors outputs = oracle<double>(call, Pass::kForward, inputs);
  EXPECT_EQ(outputs.at(Port::kO).get(0), 2);
  EXPECT_EQ(outputs.at(Port::kO).get(1), 1.5);
  EXPECT_EQ(outputs.at(Port::kFinalState).get(0), 0.5);
}

// <o, dO> + <final_state, d_final_state>
double loss(const Call& call, const Tensors& inputs) {
  const Tensors outputs = oracle<double>(call, Pass::kForward, inputs);
  double sum = 0;
  for (const auto& [out, flow] :
       {std::pair{Port::kO, Port::kDO}, {Port::kFinalState, Port::kDFinalState}}) {
    const Buffer &x = outputs.at(out), &d = inputs.at(flow);
    for (std::int64_t i = 0; i < x.count(); ++i) sum += x.get(i) * d.get(i);
  }
  return sum;
}

TEST(Oracle, GradientsAreThoseOfCentralDifferences) {
  const Options options[] = {
      {},
      {.scale = 0.7, .use_qk_l2norm = true},
      {.use_beta_sigmoid = true, .allow_neg_eigval = true},
      {.safe_gate = true},
      {.use_beta_sigmoid = true, .gate_domain = GateDomain::kLinear},
  };
  const Dims layouts[] = {make_dims(8, 2, 2, 2, 3, 2), make_dims(8, 2, 4, 4, 2, 3),
                          make_dims(8, 4, 2, 2, 3, 2), make_dims(8, 4, 4, 2, 2, 2),
                          make_dims(8, 1, 1, 3, 3, 1)};
  for (std::size_t i = 0; i < std::size(options); ++i) {
    SCOPED_TRACE(i);
    const Call call{.dims = layouts[i],
                    .offsets = {0, 4, 4, 7},
                    .options = options[i],
                    .a_log = options[i].safe_gate,
                    .dt_bias = options[i].safe_gate,
                    .types = all(DType::kFloat64)};
    Tensors inputs = make_inputs(call, static_cast<unsigned>(i));
    const Tensors gradients = oracle<double>(call, Pass::kBackward, inputs);
    for (const auto& [port, gradient] : gradients) {
      Buffer& x = inputs.at(spec_of(port).primal);
      double largest = 0;
      for (std::int64_t j = 0; j < x.count(); ++j) {
        const double middle = x.get(j), h = 1e-5;
        x.set(j, middle + h);
        const double above = loss(call, inputs);
        x.set(j, middle - h);
        const double expected = (above - loss(call, inputs)) / (2 * h);
        x.set(j, middle);
        ASSERT_NEAR(gradient.get(j), expected, 1e-7 * (1 + std::abs(expected)))
            << name(port) << " at " << j;
        largest = std::max(largest, std::abs(expected));
      }
      EXPECT_GT(largest, 1e-2) << name(port) << " is not tested by this loss";
    }
  }
}

}  // namespace
}  // namespace deltaworks
