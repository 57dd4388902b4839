// The guard of GDN-2's beta: its formula against the norm that it is to bound, and what the
// reference engine makes of it.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "differences.h"
#include "oracle.h"
#include "reference/inputs.h"
#include "reference_run.h"
#include "variants/beta_guard.h"

namespace deltaworks {
namespace {

using namespace kit;

// beta = 1.9 at one end and 0.1 at the other, with hardly any decay: rows that must be drawn in.
Tensors guarded_inputs(const Call& call, unsigned seed) {
  Tensors inputs = make_inputs(call, seed);
  Buffer &beta = inputs.at(Port::kBeta), &g = inputs.at(Port::kG);
  const std::int64_t K = call.dims.K;
  for (std::int64_t i = 0; i < beta.count(); ++i) {
    const std::int64_t row = i / K;
    if (row % 3 != 2) beta.set(i, 0.1 + 1.8 * static_cast<double>(i % K) / (K - 1));
    g.set(i, (row % 3 == 1 ? 0.01 : 0.3) * g.get(i));
  }
  return inputs;
}

TEST(ReferenceGuard, IsThatOfTheDefinitionAndStraightThrough) {
  for (DType io : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    SCOPED_TRACE(name(io));
    Call call = small_call(Op::kGatedDeltaNetV2, {.use_qk_l2norm = true, .beta_guard = true});
    call.types = all(io);
    const Tensors inputs = guarded_inputs(call, 23);
    Call plain = call;
    plain.options.beta_guard = false;
    // The rows that take effect, given as they are, and the same gradients.
    Tensors drawn = inputs;
    std::int64_t changed = 0, kept = 0;
    const std::int64_t K = call.dims.K, HO = call.dims.HO, HK = call.dims.HK;
    for (std::int64_t row = 0; row < call.dims.T * HO; ++row) {
      std::vector<double> beta(K), g(K), k(K);
      double sum = 0;
      for (std::int64_t i = 0; i < K; ++i) {
        beta[i] = inputs.at(Port::kBeta).get(row * K + i);
        g[i] = inputs.at(Port::kG).get(row * K + i);
        k[i] = inputs.at(Port::kK).get((row / HO * HK + row % HO / (HO / HK)) * K + i);
        sum += k[i] * k[i];
      }
      for (double& x : k) x *= 1 / std::sqrt(sum + reference::kNormEpsilon);
      beta_guard(K, beta.data(), k.data(), g.data(), io);
      const bool same = beta[0] == inputs.at(Port::kBeta).get(row * K);
      ++(same ? kept : changed);
      for (std::int64_t i = 0; i < K; ++i) drawn.at(Port::kBeta).set(row * K + i, beta[i]);
    }
    EXPECT_GT(changed, 5);
    EXPECT_GT(kept, 5);
    for (Pass pass : {Pass::kForward, Pass::kBackward}) {
      const Tensors got = run_reference(call, pass, inputs);
      expect_same_bits(got, run_reference(plain, pass, drawn));
      const double rounding = io == DType::kFloat64 ? 1e-12 : io == DType::kFloat32 ? 1e-7 : 4e-3;
      expect_near(got, oracle<double>(call, pass, inputs), rounding);
    }
  }
}

TEST(ReferenceGuard, ComesAfterTheSigmoid) {
  Call call = small_call(Op::kGatedDeltaNetV2, {.use_qk_l2norm = true,
                                                .use_beta_sigmoid = true,
                                                .allow_neg_eigval = true,
                                                .beta_guard = true});
  Tensors inputs = guarded_inputs(call, 25);
  Buffer& beta = inputs.at(Port::kBeta);
  for (std::int64_t i = 0; i < beta.count(); ++i) beta.set(i, 4 * beta.get(i) - 4);
  for (Pass pass : {Pass::kForward, Pass::kBackward}) {
    expect_near(run_reference(call, pass, inputs), oracle<double>(call, pass, inputs), 1e-12);
  }
}

// I - k (beta k)^T after the decay, as a map of the state's rows: its largest singular value.
double growth(const std::vector<double>& k, const std::vector<double>& beta, double decay) {
  const std::size_t K = k.size();
  std::vector<double> x(K, 1.0);
  x[0] = 0.3;
  double value = 0;
  for (int step = 0; step < 3000; ++step) {
    double along = 0;
    for (std::size_t i = 0; i < K; ++i) along += beta[i] * k[i] * x[i];
    for (std::size_t i = 0; i < K; ++i) x[i] -= k[i] * along;
    along = 0;
    for (std::size_t i = 0; i < K; ++i) along += k[i] * x[i];
    double norm = 0;
    for (std::size_t i = 0; i < K; ++i) x[i] -= beta[i] * k[i] * along;
    for (double y : x) norm += y * y;
    value = std::sqrt(std::sqrt(norm));
    for (double& y : x) y /= std::sqrt(norm);
  }
  return decay * value;
}

TEST(ReferenceGuard, ADrawnRowDoesNotExpandTheState) {
  std::mt19937_64 random(24);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  int drawn = 0, kept = 0;
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<double> k(4), beta(4);
    double sum = 0;
    for (double& x : k) {
      x = normal(random);
      sum += x * x;
    }
    for (double& x : k) x /= std::sqrt(sum);
    for (double& x : beta) x = 2 * uniform(random);
    const double gate = -0.5 * uniform(random);
    const std::vector<double> g(4, gate), given = beta;
    beta_guard<double>(4, beta.data(), k.data(), g.data(), DType::kFloat64);
    const double before = growth(k, given, std::exp(gate)), after = growth(k, beta, std::exp(gate));
    EXPECT_LE(after, 1 + 1e-9);
    ++(beta == given ? kept : drawn);
    EXPECT_EQ(beta != given, before > 1 + 1e-9) << before;
  }
  EXPECT_GT(drawn, 50);
  EXPECT_GT(kept, 50);
}

// With hardly any decay the rounding to fp32 alone would carry rows beyond the bound again.
TEST(ReferenceGuard, RoundedRowsKeepTheBound) {
  std::mt19937_64 random(26);
  std::uniform_real_distribution<double> uniform(0.1, 1.0);
  const double gate = -1e-13;
  int constant = 0;
  for (int trial = 0; trial < 300; ++trial) {
    double k[3], beta[3], sum = 0;
    for (double& x : k) {
      x = uniform(random);
      sum += x * x;
    }
    for (double& x : k) x /= std::sqrt(sum);
    for (double& x : beta) x = uniform(random);
    const double g[3] = {gate, gate, 2 * gate};
    beta_guard(3, beta, k, g, DType::kFloat32);
    for (double x : beta) EXPECT_EQ(x, static_cast<float>(x));
    // The spread as a sum of squares, which does not cancel.
    double spread = 0, mean = 0;
    for (int i = 0; i < 3; ++i) mean += beta[i] * k[i] * k[i];
    for (int i = 0; i < 3; ++i) spread += (beta[i] - mean) * (beta[i] - mean) * k[i] * k[i];
    const double c2 = std::exp(-2 * gate);
    EXPECT_LE(spread, (c2 - 1) * (1 - (1 - mean) * (1 - mean) / c2) + 2e-15);
    constant += beta[0] == beta[1] && beta[1] == beta[2];
  }
  EXPECT_GT(constant, 30);
}

TEST(ReferenceGuard, TheHardestRows) {
  const double none[] = {0, 0, 0}, some[] = {0.6, 0, 0.8};
  // With a key of zeros, and with gates of -inf as they are clamped, nothing can grow.
  for (double gate : {0.0, -800.0}) {
    const double g[] = {gate, gate, gate};
    double beta[] = {0, 1, 2};
    beta_guard(3, beta, gate == 0 ? none : some, g, DType::kBFloat16);
    EXPECT_EQ(beta[0], 0);
    EXPECT_EQ(beta[1], 1);
    EXPECT_EQ(beta[2], 2);
  }
  // Without decay the only rows are constant ones; a float row takes the same way.
  const float k[] = {0.6f, 0.0f, 0.8f}, g[] = {0, 0, 0};
  float beta[] = {0, 1, 1};
  beta_guard(3, beta, k, g, DType::kFloat32);
  for (float x : beta) EXPECT_NEAR(x, 0.64, 1e-6);
}

}  // namespace
}  // namespace deltaworks
