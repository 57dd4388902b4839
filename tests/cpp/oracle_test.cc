// The oracle that judges the CPU engine, judged itself: its outputs by hand, its gradients by
// central differences of its own outputs.
#include "oracle.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "differences.h"

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

// The state is 2 = 1 * 2 * 1 (k dt x), then 2 exp(-1 * ln 2) + 1 * ln 2 * 3.
TEST(Oracle, TwoStepsOfTimeByHand) {
  Call call{.dims = make_dims(2, 1, 1, 1, 1, 1),
            .offsets = {0, 2},
            .options = {.dt_softplus = false},
            .initial_state = false,
            .types = all(DType::kFloat64),
            .op = Op::kMamba2,
            .D_rank = 1,
            .z = true};
  Tensors inputs = make_inputs(call, 1);
  const double ln2 = std::log(2.0);
  const std::pair<Port, std::array<double, 2>> values[] = {{Port::kC, {1, 3}},
                                                           {Port::kB, {1, 1}},
                                                           {Port::kX, {1, 3}},
                                                           {Port::kDt, {2, ln2}},
                                                           {Port::kZ, {0, 1}}};
  for (const auto& [port, x] : values) {
    for (int i = 0; i < 2; ++i) inputs.at(port).set(i, x[i]);
  }
  inputs.at(Port::kA).set(0, -1);
  inputs.at(Port::kD).set(0, 5);
  const Tensors outputs = oracle<double>(call, Pass::kForward, inputs);
  const double state = 1 + 3 * ln2;
  EXPECT_EQ(outputs.at(Port::kY).get(0), 0);
  EXPECT_NEAR(outputs.at(Port::kY).get(1), (3 * state + 15) / (1 + std::exp(-1.0)), 1e-14);
  EXPECT_NEAR(outputs.at(Port::kFinalState).get(0), state, 1e-14);
}

TEST(Oracle, GradientsAreThoseOfCentralDifferences) {
  std::vector<SmallCall> calls = small_calls();
  for (const Dims& dims : {make_dims(8, 2, 4, 4, 2, 3), make_dims(8, 4, 2, 2, 3, 2),
                           make_dims(8, 4, 4, 2, 2, 2), make_dims(8, 1, 1, 3, 3, 1)}) {
    Call call = small_call(Op::kGatedDeltaNet);
    call.dims = dims;
    calls.push_back({"heads", call});
  }
  unsigned seed = 0;
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    Tensors inputs = make_inputs(call, ++seed);
    expect_gradients(oracle<double>, call, inputs);
  }
}

}  // namespace
}  // namespace deltaworks
