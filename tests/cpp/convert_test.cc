// Narrowing and widening of 16-bit floats, and the activations of gates and betas.
#include "core/convert.h"

#include <gtest/gtest.h>

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

template <class Real>
class Activation : public testing::Test {};
using Reals = testing::Types<float, double>;
TYPED_TEST_SUITE(Activation, Reals);

TYPED_TEST(Activation, GateOfMinusInfinityEmptiesTheState) {
  using Real = TypeParam;
  const Real infinity = std::numeric_limits<Real>::infinity();
  const Real gate = effective_gate<Real>(GateForm::kLog, -infinity, 0, 0);
  EXPECT_TRUE(std::isfinite(gate));
  EXPECT_EQ(exp_of(gate), 0);
  EXPECT_EQ(gate_slope<Real>(GateForm::kLog, -infinity, 0, 0).g, 1);
  const GateSlope<Real> soft = gate_slope<Real>(GateForm::kSoftplus, -infinity, 88, 0);
  EXPECT_EQ(effective_gate<Real>(GateForm::kSoftplus, -infinity, 88, 0), 0);
  EXPECT_TRUE(std::isfinite(soft.g) && std::isfinite(soft.a_log) && std::isfinite(soft.dt_bias));
}

TYPED_TEST(Activation, SoftplusIsTheIdentityFromTwentyOn) {
  using Real = TypeParam;
  EXPECT_EQ(effective_gate<Real>(GateForm::kSoftplus, 19, 0, 1), -20);
  EXPECT_EQ(gate_slope<Real>(GateForm::kSoftplus, 19, 0, 1).g, -1);
  EXPECT_LT(effective_gate<Real>(GateForm::kSoftplus, 10, 0, 0), -10);
}

TYPED_TEST(Activation, LinearGateIsFiniteAtZero) {
  using Real = TypeParam;
  EXPECT_NEAR(effective_gate<Real>(GateForm::kLinear, 0, 0, 0), std::log(1e-10), 1e-5);
  EXPECT_TRUE(std::isfinite(gate_slope<Real>(GateForm::kLinear, 0, 0, 0).g));
}

TYPED_TEST(Activation, SigmoidIsRoundedThenDoubled) {
  using Real = TypeParam;
  const double exact = 1 / (1 + std::exp(-0.3));
  const double rounded = float_from_bf16(bf16_from_double(exact));
  EXPECT_EQ(effective_beta<Real>({true, false, DType::kBFloat16}, Real(0.3)), rounded);
  EXPECT_EQ(effective_beta<Real>({true, true, DType::kBFloat16}, Real(0.3)), 2 * rounded);
  EXPECT_NEAR(beta_slope<Real>({true, true, DType::kBFloat16}, Real(0.3)), 2 * exact * (1 - exact),
              1e-6);
  EXPECT_EQ(effective_beta<Real>({true, false, DType::kFloat32}, -1000), 0);
  EXPECT_EQ(beta_slope<Real>({true, false, DType::kFloat32}, -1000), 0);
  EXPECT_EQ(effective_beta<Real>({false, false, DType::kFloat32}, Real(0.3)), Real(0.3));
}

}  // namespace
}  // namespace deltaworks
