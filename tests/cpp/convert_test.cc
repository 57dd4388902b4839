// Narrowing and widening of 16-bit floats, and the activations of gates and betas.
#include "core/convert.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "variants/activation.h"

namespace deltaworks {
namespace {

// The 16-bit neighbours of every value: widening and narrowing are inverse, and what lies between
// two neighbours goes to the nearer one, ties to the even pattern.
template <class Widen, class Narrow>
void expect_nearest_even(Widen widen, Narrow narrow, int infinity) {
  for (int bits = 0; bits < infinity; ++bits) {
    const double low = widen(bits), high = bits + 1 < infinity ? widen(bits + 1) : 2 * low;
    ASSERT_EQ(narrow(low), bits);
    ASSERT_EQ(narrow(-low), bits | 0x8000);
    if (bits + 1 == infinity) continue;
    const double middle = (low + high) / 2;  // exact
    ASSERT_EQ(narrow(middle), bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(narrow(std::nextafter(middle, low)), bits);
    ASSERT_EQ(narrow(std::nextafter(middle, high)), bits + 1);
  }
  EXPECT_EQ(narrow(std::numeric_limits<double>::infinity()), infinity);
  EXPECT_EQ(narrow(std::numeric_limits<double>::max()), infinity);
  EXPECT_EQ(narrow(std::numeric_limits<double>::denorm_min()), 0);
  EXPECT_TRUE(std::isnan(widen(narrow(std::nan("")))));
}

TEST(Convert, RoundsOnceToNearestEven) {
  expect_nearest_even([](int x) { return float_from_bf16(static_cast<std::uint16_t>(x)); },
                      bf16_from_double, 0x7f80);
  expect_nearest_even([](int x) { return float_from_fp16(static_cast<std::uint16_t>(x)); },
                      fp16_from_double, 0x7c00);
}

TEST(Convert, FloatAgreesWithDouble) {
  std::uint32_t bits = 1;
  for (int i = 0; i < 1'000'000; ++i) {
    bits = bits * 1664525u + 1013904223u;
    const float x = __builtin_bit_cast(float, bits);
    if (std::isnan(x)) continue;
    ASSERT_EQ(bf16_from_float(x), bf16_from_double(x)) << x;
    ASSERT_EQ(fp16_from_float(x), fp16_from_double(x)) << x;
  }
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(std::nanf("")))));
}

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Activation, GateOfMinusInfinityEmptiesTheState) {
  const GateMap log{.form = GateForm::kLog}, soft{.form = GateForm::kSoftplus};
  const double gate = effective_gate(log, -kInf, 0.0, 0.0);
  EXPECT_TRUE(std::isfinite(gate));
  EXPECT_EQ(exp_of(gate), 0);
  EXPECT_EQ(gate_slope(log, -kInf, 0.0, 0.0).g, 1);
  EXPECT_EQ(effective_gate(soft, -kInf, 88.0, 0.0), 0);
  const GateSlope<double> slope = gate_slope(soft, -kInf, 88.0, 0.0);
  EXPECT_TRUE(std::isfinite(slope.g) && std::isfinite(slope.a) && std::isfinite(slope.dt_bias));
}

TEST(Activation, SoftplusIsTheIdentityFromTwentyOn) {
  const GateMap soft{.form = GateForm::kSoftplus};
  EXPECT_EQ(effective_gate(soft, 19.0, 0.0, 1.0), -20);
  EXPECT_EQ(gate_slope(soft, 19.0, 0.0, 1.0).g, -1);
  EXPECT_LT(effective_gate(soft, 10.0, 0.0, 0.0), -10);
}

TEST(Activation, LinearGateIsFiniteAtZero) {
  const GateMap linear{.form = GateForm::kLinear};
  EXPECT_NEAR(effective_gate(linear, 0.0, 0.0, 0.0), std::log(1e-10), 1e-5);
  EXPECT_TRUE(std::isfinite(gate_slope(linear, 0.0, 0.0, 0.0).g));
}

// lower_bound sigmoid(exp(a) (g + b)) and its derivatives, also where the sigmoid is flat.
TEST(Activation, SigmoidGateIsBounded) {
  const GateMap map{.form = GateForm::kSigmoid, .lower_bound = -3};
  const double a = 0.2, g = 0.7, b = -0.4, x = std::exp(a) * (g + b);
  const double s = 1 / (1 + std::exp(-x)), bend = -3 * s * (1 - s);
  EXPECT_DOUBLE_EQ(effective_gate(map, g, a, b), -3 * s);
  const GateSlope<double> slope = gate_slope(map, g, a, b);
  EXPECT_DOUBLE_EQ(slope.g, bend * std::exp(a));
  EXPECT_DOUBLE_EQ(slope.dt_bias, bend * std::exp(a));
  EXPECT_DOUBLE_EQ(slope.a, bend * x);
  EXPECT_EQ(effective_gate(map, kInf, a, b), -3);
  EXPECT_EQ(effective_gate(map, -kInf, a, b), 0);
  for (const double flat : {kInf, -kInf}) {
    EXPECT_EQ(gate_slope(map, flat, a, b).g, 0);
    EXPECT_EQ(gate_slope(map, flat, a, b).a, 0);
  }
}

// The gate of a step is A step; outside the clamp, but not on it, the step does not move.
TEST(Activation, StepIsClamped) {
  const GateMap map{.form = GateForm::kStep, .softplus = false, .dt_min = 0.5, .dt_max = 2};
  const double A = -1.5;
  for (const auto& [dt, step, slope] : {std::array{0.2, 0.5, 0.0},
                                        {0.5, 0.5, 1.0},
                                        {1.25, 1.25, 1.0},
                                        {2.0, 2.0, 1.0},
                                        {3.0, 2.0, 0.0}}) {
    SCOPED_TRACE(dt);
    EXPECT_EQ(effective_step(map, dt - 0.25, 0.25), step);
    EXPECT_EQ(step_slope(map, dt - 0.25, 0.25), slope);
    EXPECT_EQ(effective_gate(map, dt - 0.25, A, 0.25), A * step);
    const GateSlope<double> of_gate = gate_slope(map, dt - 0.25, A, 0.25);
    EXPECT_EQ(of_gate.g, A * slope);
    EXPECT_EQ(of_gate.dt_bias, A * slope);
    EXPECT_EQ(of_gate.a, step);
  }
  const GateMap soft{.form = GateForm::kStep};
  EXPECT_DOUBLE_EQ(effective_step(soft, 0.5, 0.25), std::log1p(std::exp(0.75)));
  EXPECT_DOUBLE_EQ(step_slope(soft, 0.5, 0.25), 1 / (1 + std::exp(-0.75)));
}

TEST(Activation, SigmoidIsRoundedThenDoubled) {
  const double exact = 1 / (1 + std::exp(-0.3));
  const double rounded = float_from_bf16(bf16_from_double(exact));
  EXPECT_EQ(effective_beta({true, false, DType::kBFloat16}, 0.3), rounded);
  EXPECT_EQ(effective_beta({true, true, DType::kBFloat16}, 0.3), 2 * rounded);
  EXPECT_NEAR(beta_slope({true, true, DType::kBFloat16}, 0.3), 2 * exact * (1 - exact), 1e-6);
  EXPECT_EQ(effective_beta({true, false, DType::kFloat32}, -1000.0), 0);
  EXPECT_EQ(beta_slope({true, false, DType::kFloat32}, -1000.0), 0);
  EXPECT_EQ(effective_beta({false, false, DType::kFloat32}, 0.3), 0.3);
}

}  // namespace
}  // namespace deltaworks
