// The policies of rows.h on one row, also those that only stand beside others in an operation:
// their gradients against central differences.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "reference/gradient.h"

namespace deltaworks {
namespace {

template <Decay kDecay, Erase kErase, Write kWrite>
struct Policy {
  static constexpr Decay decay = kDecay;
  static constexpr Erase erase = kErase;
  static constexpr Write write = kWrite;
};

// One token's step from S, and <o, dO> + <S after, dS>; everything lies in one array.
template <class Variant>
struct OneToken {
  static constexpr std::int64_t K = 3, V = 2;
  std::vector<double> memory = std::vector<double>(256);
  reference::Arena arena{memory.data()};
  double* S = arena.take(V * K);
  reference::Token<Variant> token{K, V, arena};
  std::int64_t inputs = arena.used();
  double* dS = arena.take(V * K);
  double* dO = arena.take(V);
  double* o = arena.take(V);
  reference::Token<Variant> grad{K, V, arena};
  reference::Rows rows{K, V, arena}, rows_grad{K, V, arena};

  OneToken() {
    std::mt19937_64 random(15);
    std::normal_distribution<double> normal;
    for (std::int64_t i = 0; i < inputs + V * K + V; ++i) memory[i] = normal(random);
  }

  double loss() {
    std::vector<double> after(S, S + V * K);
    reference::form_rows(token, K, V, rows);
    reference::step(token.k, rows, K, V, after.data());
    double sum = reference::dot(after.data(), dS, V * K);
    for (std::int64_t j = 0; j < V; ++j) {
      sum += 0.5 * dO[j] * reference::dot(token.q, after.data() + j * K, K);
    }
    return sum;
  }
};

template <class Variant>
void expect_policy_gradients() {
  OneToken<Variant> one;
  std::vector<double> expected;
  for (std::int64_t i = 0; i < one.inputs; ++i) {
    const double middle = one.memory[i], h = 1e-5;
    one.memory[i] = middle + h;
    const double above = one.loss();
    one.memory[i] = middle - h;
    expected.push_back((above - one.loss()) / (2 * h));
    one.memory[i] = middle;
  }
  const std::int64_t K = one.K, V = one.V;
  reference::form_rows(one.token, K, V, one.rows);
  reference::step_gradient(one.token.q, one.token.k, one.rows, one.S, 0.5, one.dO, K, V, one.dS,
                           one.o, one.grad.q, one.grad.k, one.rows_grad);
  reference::rows_gradient(one.token, one.rows_grad, K, V, one.grad);
  // S comes first among the inputs, then the token, laid out as its gradient is.
  for (std::int64_t i = 0; i < one.inputs; ++i) {
    const double got = i < V * K ? one.dS[i] : one.grad.q[i - V * K];
    EXPECT_NEAR(got, expected[i], 1e-8 * (1 + std::abs(expected[i]))) << i;
    EXPECT_NE(got, 0) << i;
  }
}

TEST(ReferenceRows, GradientsOfEveryPolicy) {
  expect_policy_gradients<Policy<Decay::kScalar, Erase::kScalar, Write::kScalar>>();
  expect_policy_gradients<Policy<Decay::kScalar, Erase::kNone, Write::kScalar>>();
  expect_policy_gradients<Policy<Decay::kPerKey, Erase::kScalar, Write::kScalar>>();
  expect_policy_gradients<Policy<Decay::kPerKey, Erase::kPerKey, Write::kPerValue>>();
}

}  // namespace
}  // namespace deltaworks
