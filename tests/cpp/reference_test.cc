// The reference engine against hand computation and finite differences, and the promises on memory:
// strides, padding rows, empty sequences, dtypes, threads.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kit.h"
#include "reference/gradient.h"
#include "registry/engine.h"

namespace deltaworks {
namespace {

using namespace kit;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensors run(const Call& call, Pass pass, const Tensors& inputs, int threads = 1,
            const Layout& layout = nullptr) {
  return kit::run("gdn_reference", call, pass, inputs, threads, layout);
}

// <o, dO> + <final_state, d_final_state>
double loss(const Call& call, Tensors& inputs) {
  const Tensors outputs = run(call, Pass::kForward, inputs);
  double sum = 0;
  const std::pair<Port, Port> pairs[] = {{Port::kO, Port::kDO},
                                         {Port::kFinalState, Port::kDFinalState}};
  for (const auto& [out, flow] : pairs) {
    if (!inputs.contains(flow)) continue;
    for (std::int64_t i = 0; i < outputs.at(out).count(); ++i) {
      const double term = outputs.at(out).get(i) * inputs.at(flow).get(i);
      if (inputs.at(flow).get(i) != 0) sum += term;
    }
  }
  return sum;
}

// Every gradient, element by element, against central differences of the forward.
void expect_gradients(const Call& call, Tensors& inputs) {
  const Tensors gradients = run(call, Pass::kBackward, inputs);
  for (const PortSpec& spec : ports(Op::kGatedDeltaNet)) {
    if (spec.role != Role::kGradient || !inputs.contains(spec.primal)) continue;
    Buffer& x = inputs.at(spec.primal);
    const Buffer& gradient = gradients.at(spec.port);
    double largest = 0;
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const double middle = x.get(i), h = 1e-5;
      x.set(i, middle + h);
      const double above = loss(call, inputs);
      x.set(i, middle - h);
      const double below = loss(call, inputs);
      x.set(i, middle);
      const double expected = (above - below) / (2 * h);
      ASSERT_NEAR(gradient.get(i), expected, 1e-7 * (1 + std::abs(expected)))
          << name(spec.port) << " at " << i;
      largest = std::max(largest, std::abs(expected));
    }
    EXPECT_GT(largest, 1e-3) << name(spec.port) << " is not tested by this loss";
  }
}

Call small_call(Options options = {}) {
  return {.dims = make_dims(9, 2, 2, 4, 3, 2),
          .offsets = {0, 5, 5, 8},
          .options = options,
          .types = all(DType::kFloat64)};
}

TEST(Reference, TwoTokensByHand) {
  Call call{.dims = make_dims(2, 1, 1, 1, 2, 2),
            .offsets = {0, 2},
            .options = {.scale = 1.0},
            .initial_state = false,
            .types = all(DType::kFloat64)};
  Tensors inputs = make_inputs(call, 1);
  const auto fill = [&](Port port, std::initializer_list<double> values) {
    std::int64_t i = 0;
    for (double x : values) inputs.at(port).set(i++, x);
  };
  fill(Port::kQ, {1, 1, 2, 1});
  fill(Port::kK, {1, 0, 1, 1});
  fill(Port::kV, {2, 4, 1, 0});
  fill(Port::kG, {-3, std::log(0.5)});
  fill(Port::kBeta, {0.5, 1});
  const Tensors outputs = run(call, Pass::kForward, inputs);
  // First token: S = k (beta v)^T, stored [V, K]: [[1, 0], [2, 0]].
  // Second: S' = [[.5, 0], [1, 0]], u = v - S' k = (.5, -1), S = S' + u k^T.
  const double o[] = {1, 2, 2.5, -1}, state[] = {1, 0.5, 0, -1};
  for (int i = 0; i < 4; ++i) {
    EXPECT_DOUBLE_EQ(outputs.at(Port::kO).get(i), o[i]);
    EXPECT_DOUBLE_EQ(outputs.at(Port::kFinalState).get(i), state[i]);
  }
}

TEST(Reference, GradientsAreThoseOfFiniteDifferences) {
  Call calls[] = {
      small_call(),
      small_call({.scale = 0.7, .use_qk_l2norm = true}),
      small_call({.use_beta_sigmoid = true}),
      small_call({.use_qk_l2norm = true, .use_beta_sigmoid = true, .allow_neg_eigval = true}),
      small_call({.safe_gate = true}),
      small_call({.safe_gate = true}),
      small_call({.gate_domain = GateDomain::kLinear}),
  };
  calls[4].a_log = calls[4].dt_bias = true;
  calls[1].initial_state = false;
  for (std::size_t i = 0; i < std::size(calls); ++i) {
    SCOPED_TRACE(i);
    Tensors inputs = make_inputs(calls[i], static_cast<unsigned>(i));
    expect_gradients(calls[i], inputs);
  }
}

TEST(Reference, GradientsOfEveryHeadLayout) {
  for (const Dims& dims : {make_dims(9, 2, 4, 4, 2, 3), make_dims(9, 4, 2, 2, 2, 3),
                           make_dims(9, 4, 4, 2, 2, 3), make_dims(9, 3, 3, 3, 2, 3)}) {
    SCOPED_TRACE(testing::Message() << dims.H << " " << dims.HK << " " << dims.HV);
    Call call = small_call();
    call.dims = dims;
    Tensors inputs = make_inputs(call, 3);
    expect_gradients(call, inputs);
  }
}

TEST(Reference, GradientsAcrossSegments) {
  Call call{.dims = make_dims(131, 1, 1, 1, 1, 1),
            .offsets = {0, 130},
            .options = {.safe_gate = true},
            .a_log = true,
            .dt_bias = true,
            .types = all(DType::kFloat64)};
  Tensors inputs = make_inputs(call, 5);
  // Weak decay, so that the first segment's state still matters in the last one.
  for (std::int64_t i = 0; i < 131; ++i) {
    inputs.at(Port::kG).set(i, inputs.at(Port::kG).get(i) - 5);
    inputs.at(Port::kK).set(i, 0.3 * inputs.at(Port::kK).get(i));
  }
  expect_gradients(call, inputs);
}

TEST(Reference, AbsentFlowsAreZeros) {
  const Call call = small_call();
  Tensors inputs = make_inputs(call, 7);
  for (Port port : {Port::kDO, Port::kDFinalState}) {
    SCOPED_TRACE(name(port));
    Tensors absent = inputs, zeros = inputs;
    absent.erase(port);
    for (std::int64_t i = 0; i < zeros.at(port).count(); ++i) zeros.at(port).set(i, 0);
    expect_same_bits(run(call, Pass::kBackward, absent), run(call, Pass::kBackward, zeros));
  }
}

TEST(Reference, AbsentGateParametersAreZeros) {
  Call call = small_call({.safe_gate = true});
  call.a_log = call.dt_bias = true;
  Tensors zeros = make_inputs(call, 8);
  for (Port port : {Port::kALog, Port::kDtBias}) {
    for (std::int64_t i = 0; i < zeros.at(port).count(); ++i) zeros.at(port).set(i, 0);
  }
  Tensors absent = zeros;
  absent.erase(Port::kALog);
  absent.erase(Port::kDtBias);
  expect_same_bits(run(call, Pass::kForward, absent), run(call, Pass::kForward, zeros));
}

TEST(Reference, StridesDoNotChangeBits) {
  const Call call = small_call({.use_qk_l2norm = true});
  Tensors dense = make_inputs(call, 9);
  Tensors strided;
  for (auto& [port, tensor] : dense) {
    TensorDesc desc = reversed(tensor.desc);
    if (port == Port::kG) desc.stride = {0, 1};
    if (port == Port::kDO) desc.stride = {0, 0, 0};
    Buffer copy = relaid(tensor, desc);
    tensor = relaid(copy, tensor.desc);
    strided.emplace(port, std::move(copy));
  }
  const Layout layout = [](Port, TensorDesc desc) { return reversed(desc); };
  for (Pass pass : {Pass::kForward, Pass::kBackward}) {
    expect_same_bits(run(call, pass, dense), run(call, pass, strided, 1, layout));
  }
}

TEST(Reference, ThreadsAndOffsetTypeDoNotChangeBits) {
  Call call = small_call();
  Call narrow = call;
  narrow.types.offset = DType::kInt32;
  Tensors inputs = make_inputs(call, 10), narrow_inputs = make_inputs(narrow, 10);
  for (Pass pass : {Pass::kForward, Pass::kBackward}) {
    const Tensors expected = run(call, pass, inputs);
    expect_same_bits(expected, run(call, pass, inputs, 3));
    expect_same_bits(expected, run(narrow, pass, narrow_inputs));
  }
}

TEST(Reference, RowsOfNoSequenceAndEmptySequences) {
  const Call call = small_call();  // sequence 1 is empty, row 8 belongs to none
  Tensors inputs = make_inputs(call, 11);
  const std::int64_t state = 4 * 2 * 3;
  inputs.at(Port::kInitialState).set(state, -0.0);
  const Tensors forward = run(call, Pass::kForward, inputs);
  const Tensors backward = run(call, Pass::kBackward, inputs);
  for (std::int64_t i = state; i < 2 * state; ++i) {
    EXPECT_EQ(forward.at(Port::kFinalState).get(i), inputs.at(Port::kInitialState).get(i));
    EXPECT_EQ(backward.at(Port::kDInitialState).get(i), inputs.at(Port::kDFinalState).get(i));
  }
  EXPECT_TRUE(std::signbit(forward.at(Port::kFinalState).get(state)));
  const auto expect_zero_row = [](const Buffer& tensor) {
    const std::int64_t row = tensor.count() / 9;
    for (std::int64_t i = 8 * row; i < 9 * row; ++i) EXPECT_EQ(tensor.get(i), 0);
    for (std::int64_t i = 0; i < 8 * row; ++i) EXPECT_TRUE(std::isfinite(tensor.get(i)));
  };
  expect_zero_row(forward.at(Port::kO));
  for (Port port : {Port::kDQ, Port::kDK, Port::kDV, Port::kDG, Port::kDBeta}) {
    SCOPED_TRACE(name(port));
    expect_zero_row(backward.at(port));
  }
  Tensors unseeded = inputs;
  unseeded.erase(Port::kInitialState);
  const Tensors zero = run(call, Pass::kForward, unseeded);
  for (std::int64_t i = state; i < 2 * state; ++i) {
    EXPECT_EQ(zero.at(Port::kFinalState).get(i), 0);
  }
}

TEST(Reference, OverwrittenStatesAreTheFinalStates) {
  Call call = small_call();
  Tensors inputs = make_inputs(call, 11);
  const Tensors expected = run(call, Pass::kForward, inputs);
  call.options.overwrite_initial_state = true;
  expect_same_bits(expected, run(call, Pass::kForward, inputs, 3));
  Buffer& initial_state = inputs.at(Port::kInitialState);
  initial_state = relaid(initial_state, reversed(initial_state.desc));
  expect_same_bits(expected, run(call, Pass::kForward, inputs));
}

TEST(Reference, GateOfMinusInfinityStartsAfresh) {
  Call call = small_call();
  call.offsets = {0, 8};
  Tensors inputs = make_inputs(call, 12);
  const std::int64_t HO = 4, reset = 3;
  for (std::int64_t head = 0; head < HO; ++head) {
    inputs.at(Port::kG).set(reset * HO + head, -kInfinity);
  }
  const Tensors whole = run(call, Pass::kForward, inputs);
  // The same tokens with a sequence boundary in place of the reset.
  Call cut = call;
  cut.offsets = {0, 3, 8};
  cut.initial_state = false;
  Tensors parts = make_inputs(cut, 12);
  for (auto& [port, tensor] : parts) {
    if (port == Port::kQ || port == Port::kK || port == Port::kV || port == Port::kG ||
        port == Port::kBeta || port == Port::kDO) {
      tensor = inputs.at(port);
    }
  }
  const Tensors second = run(cut, Pass::kForward, parts);
  const Buffer &o = whole.at(Port::kO), &expected = second.at(Port::kO);
  for (std::int64_t i = o.count() / 9 * reset; i < o.count(); ++i) {
    EXPECT_EQ(o.get(i), expected.get(i));
  }
  const Tensors gradients = run(call, Pass::kBackward, inputs);
  for (const auto& [port, gradient] : gradients) {
    for (std::int64_t i = 0; i < gradient.count(); ++i) {
      ASSERT_TRUE(std::isfinite(gradient.get(i))) << name(port);
    }
  }
  for (std::int64_t head = 0; head < HO; ++head) {
    EXPECT_EQ(gradients.at(Port::kDG).get(reset * HO + head), 0);
    EXPECT_NE(gradients.at(Port::kDG).get((reset + 1) * HO + head), 0);
  }
}

TEST(Reference, SixteenBitTensorsAreRoundedOnce) {
  for (DType io : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    SCOPED_TRACE(name(io));
    Call call = small_call({.use_qk_l2norm = true});
    call.types = all(io);
    Tensors inputs = make_inputs(call, 13);
    Call wide = call;
    wide.types = all(DType::kFloat64);
    Tensors wide_inputs = make_inputs(wide, 13);
    for (auto& [port, tensor] : inputs) {
      if (port == Port::kCuSeqlens) continue;
      for (std::int64_t i = 0; i < tensor.count(); ++i) wide_inputs.at(port).set(i, tensor.get(i));
    }
    for (Pass pass : {Pass::kForward, Pass::kBackward}) {
      const Tensors got = run(call, pass, inputs);
      const Tensors expected = run(wide, pass, wide_inputs);
      for (const auto& [port, tensor] : got) {
        for (std::int64_t i = 0; i < tensor.count(); ++i) {
          ASSERT_EQ(tensor.get(i), round_to(tensor.desc.dtype, expected.at(port).get(i)))
              << name(port);
        }
      }
    }
  }
}

TEST(Reference, NothingToDo) {
  for (const Call& call : {Call{.dims = make_dims(3, 1, 1, 1, 2, 2), .offsets = {0}},
                           Call{.dims = make_dims(0, 1, 1, 1, 2, 2), .offsets = {0, 0}},
                           Call{.dims = make_dims(3, 0, 0, 0, 2, 2), .offsets = {0, 3}}}) {
    Tensors inputs = make_inputs(call, 14);
    const Tensors forward = run(call, Pass::kForward, inputs);
    for (std::int64_t i = 0; i < forward.at(Port::kO).count(); ++i) {
      EXPECT_EQ(forward.at(Port::kO).get(i), 0);
    }
    for (const auto& [port, gradient] : run(call, Pass::kBackward, inputs)) {
      if (port == Port::kDInitialState) continue;
      for (std::int64_t i = 0; i < gradient.count(); ++i) EXPECT_EQ(gradient.get(i), 0);
    }
  }
}

TEST(Reference, DeclinesWithReasons) {
  Problem problem;
  problem[Port::kQ] = contiguous(DType::kFloat32, {1, 1, 1});
  EXPECT_EQ(reference_engine().check(problem, {}).reasons().size(), 1u);
  problem.plan_name = "gdn_reference";
  EXPECT_TRUE(reference_engine().check(problem, {}).reasons().empty());
  problem.options.checkpoint_every_n_tokens = 64;
  const std::vector<std::string> reasons = reference_engine().check(problem, {}).reasons();
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_NE(reasons[0].find("checkpoint_every_n_tokens"), std::string::npos);
  EXPECT_NE(reasons[0].find("64"), std::string::npos);
  problem[Port::kStateIndices] = contiguous(DType::kInt32, {1});
  EXPECT_EQ(reference_engine().check(problem, {}).reasons().size(), 2u);
}

// The policies that no operator uses yet, on the rows themselves.
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
                           one.grad.q, one.grad.k, one.rows_grad);
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
