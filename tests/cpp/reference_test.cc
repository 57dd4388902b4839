// The reference engine against hand computation, finite differences and the loop of oracle.h, and
// the promises on memory: strides, padding rows, empty sequences, dtypes, threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "differences.h"
#include "oracle.h"
#include "reference_run.h"
#include "registry/engine.h"

namespace deltaworks {
namespace {

using namespace kit;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr auto run_once = [](const Call& call, Pass pass, const Tensors& inputs) {
  return run_reference(call, pass, inputs);
};

Call small_call(Options options = {}) { return kit::small_call(Op::kGatedDeltaNet, options); }

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
  const Tensors outputs = run_reference(call, Pass::kForward, inputs);
  // First token: S = k (beta v)^T, stored [V, K]: [[1, 0], [2, 0]].
  // Second: S' = [[.5, 0], [1, 0]], u = v - S' k = (.5, -1), S = S' + u k^T.
  const double o[] = {1, 2, 2.5, -1}, state[] = {1, 0.5, 0, -1};
  for (int i = 0; i < 4; ++i) {
    EXPECT_DOUBLE_EQ(outputs.at(Port::kO).get(i), o[i]);
    EXPECT_DOUBLE_EQ(outputs.at(Port::kFinalState).get(i), state[i]);
  }
}

TEST(Reference, GradientsAreThoseOfFiniteDifferences) {
  unsigned seed = 0;
  for (const auto& [name, call] : small_calls()) {
    SCOPED_TRACE(name);
    Tensors inputs = make_inputs(call, ++seed);
    expect_gradients(run_once, call, inputs);
  }
}

// The same numbers from a loop that shares no line with the engine, also where 16-bit inputs and
// the rounding of sigmoids come in.
TEST(Reference, IsTheLoopOfTheDefinition) {
  unsigned seed = 100;
  for (const auto& [name, small] : small_calls()) {
    for (DType io : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(testing::Message() << name << ", " << deltaworks::name(io));
      Call call = small;
      call.types = all(io);
      if (!call.initial_state && io != DType::kFloat64) call.types.state = DType::kFloat32;
      const Tensors inputs = make_inputs(call, ++seed);
      const double rounding = io == DType::kFloat64 ? 1e-12 : io == DType::kFloat32 ? 1e-7 : 4e-3;
      for (Pass pass : {Pass::kForward, Pass::kBackward}) {
        expect_near(run_reference(call, pass, inputs), oracle<double>(call, pass, inputs),
                    rounding);
      }
    }
  }
}

TEST(Reference, GradientsOfEveryHeadLayout) {
  for (const Dims& dims : {make_dims(9, 2, 4, 4, 2, 3), make_dims(9, 4, 2, 2, 2, 3),
                           make_dims(9, 4, 4, 2, 2, 3), make_dims(9, 3, 3, 3, 2, 3)}) {
    SCOPED_TRACE(testing::Message() << dims.H << " " << dims.HK << " " << dims.HV);
    Call call = small_call();
    call.dims = dims;
    Tensors inputs = make_inputs(call, 3);
    expect_gradients(run_once, call, inputs);
  }
}

TEST(Reference, GradientsAcrossSegments) {
  for (const auto& [T, n] : {std::pair{131, 0}, {45, 3}}) {
    Call call{.dims = make_dims(T, 1, 1, 1, 1, 1),
              .offsets = {0, T - 1},
              .options = {.safe_gate = true, .num_householder = n},
              .a_log = true,
              .dt_bias = true,
              .types = all(DType::kFloat64),
              .op = n > 0 ? Op::kGatedDeltaProduct : Op::kGatedDeltaNet};
    call.dims.n = std::max(n, 1);
    Tensors inputs = make_inputs(call, 5);
    // Weak decay, so that the first segment's state still matters in the last one.
    for (std::int64_t i = 0; i < T; ++i) inputs.at(Port::kG).set(i, inputs.at(Port::kG).get(i) - 5);
    Buffer& k = inputs.at(Port::kK);
    for (std::int64_t i = 0; i < k.count(); ++i) k.set(i, 0.3 * k.get(i));
    expect_gradients(run_once, call, inputs);
  }
}

TEST(Reference, AbsentFlowsAreZeros) {
  const Call call = small_call();
  Tensors inputs = make_inputs(call, 7);
  for (Port port : {Port::kDO, Port::kDFinalState}) {
    SCOPED_TRACE(name(port));
    Tensors absent = inputs, zeros = inputs;
    absent.erase(port);
    for (std::int64_t i = 0; i < zeros.at(port).count(); ++i) zeros.at(port).set(i, 0);
    expect_same_bits(run_reference(call, Pass::kBackward, absent),
                     run_reference(call, Pass::kBackward, zeros));
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
  expect_same_bits(run_reference(call, Pass::kForward, absent),
                   run_reference(call, Pass::kForward, zeros));
}

TEST(Reference, StridesDoNotChangeBits) {
  for (const auto& [name, call] : rich_calls()) {
    SCOPED_TRACE(name);
    Tensors dense = make_inputs(call, 9);
    Tensors strided;
    for (auto& [port, tensor] : dense) {
      TensorDesc desc = reversed(tensor.desc);
      if (port == Port::kG) desc.stride[0] = 0;
      if (port == Port::kDO) desc.stride = {0, 0, 0};
      Buffer copy = relaid(tensor, desc);
      tensor = relaid(copy, tensor.desc);
      strided.emplace(port, std::move(copy));
    }
    const Layout layout = [](Port, TensorDesc desc) { return reversed(desc); };
    for (Pass pass : {Pass::kForward, Pass::kBackward}) {
      expect_same_bits(run_reference(call, pass, dense),
                       run_reference(call, pass, strided, 1, layout));
    }
  }
}

TEST(Reference, ThreadsAndOffsetTypeDoNotChangeBits) {
  for (const auto& [name, call] : rich_calls()) {
    SCOPED_TRACE(name);
    Call narrow = call;
    narrow.types.offset = DType::kInt32;
    Tensors inputs = make_inputs(call, 10), narrow_inputs = make_inputs(narrow, 10);
    for (Pass pass : {Pass::kForward, Pass::kBackward}) {
      const Tensors expected = run_reference(call, pass, inputs);
      expect_same_bits(expected, run_reference(call, pass, inputs, 3));
      expect_same_bits(expected, run_reference(narrow, pass, narrow_inputs));
    }
  }
}

TEST(Reference, RowsOfNoSequenceAndEmptySequences) {
  for (const auto& [name, call] : rich_calls()) {
    SCOPED_TRACE(name);  // sequence 1 is empty, token 8 belongs to none
    Tensors inputs = make_inputs(call, 11);
    const std::int64_t state = 4 * call.dims.V * call.dims.K;
    if (!inputs.contains(Port::kInitialState)) {
      inputs.emplace(Port::kInitialState, inputs.at(Port::kDFinalState));
    }
    inputs.at(Port::kInitialState).set(state, -0.0);
    const Tensors forward = run_reference(call, Pass::kForward, inputs);
    const Tensors backward = run_reference(call, Pass::kBackward, inputs);
    for (std::int64_t i = state; i < 2 * state; ++i) {
      EXPECT_EQ(forward.at(Port::kFinalState).get(i), inputs.at(Port::kInitialState).get(i));
      EXPECT_EQ(backward.at(Port::kDInitialState).get(i), inputs.at(Port::kDFinalState).get(i));
    }
    EXPECT_TRUE(std::signbit(forward.at(Port::kFinalState).get(state)));
    const auto expect_zero_token = [](const Buffer& tensor) {
      const std::int64_t token = tensor.count() / 9;
      for (std::int64_t i = 8 * token; i < 9 * token; ++i) EXPECT_EQ(tensor.get(i), 0);
      for (std::int64_t i = 0; i < 8 * token; ++i) EXPECT_TRUE(std::isfinite(tensor.get(i)));
    };
    expect_zero_token(forward.at(Port::kO));
    for (const auto& [port, gradient] : backward) {
      const PortSpec& spec = spec_of(port, call.op);
      if (spec.axes[0] != Axis::kT && spec.axes[0] != Axis::kSteps) continue;
      SCOPED_TRACE(spec.name);
      expect_zero_token(gradient);
    }
    Tensors unseeded = inputs;
    unseeded.erase(Port::kInitialState);
    const Tensors zero = run_reference(call, Pass::kForward, unseeded);
    for (std::int64_t i = state; i < 2 * state; ++i) {
      EXPECT_EQ(zero.at(Port::kFinalState).get(i), 0);
    }
  }
}

TEST(Reference, OverwrittenStatesAreTheFinalStates) {
  Call call = small_call();
  Tensors inputs = make_inputs(call, 11);
  const Tensors expected = run_reference(call, Pass::kForward, inputs);
  call.options.overwrite_initial_state = true;
  expect_same_bits(expected, run_reference(call, Pass::kForward, inputs, 3));
  Buffer& initial_state = inputs.at(Port::kInitialState);
  initial_state = relaid(initial_state, reversed(initial_state.desc));
  expect_same_bits(expected, run_reference(call, Pass::kForward, inputs));
}

TEST(Reference, GateOfMinusInfinityStartsAfresh) {
  for (const auto& [name, small] : small_calls()) {
    if (name.find("plain") == std::string::npos) continue;
    SCOPED_TRACE(name);
    Call call = small;
    call.offsets = {0, 8};
    Tensors inputs = make_inputs(call, 12);
    const bool step = call.op == Op::kMamba2;
    const std::int64_t reset = 3;
    Buffer& g = inputs.at(Port::kG);
    const std::int64_t width = g.count() / 9;
    for (std::int64_t i = 0; i < width; ++i) g.set(reset * width + i, step ? 1e5 : -kInfinity);
    const Tensors whole = run_reference(call, Pass::kForward, inputs);
    // The same tokens with a sequence boundary in place of the reset.
    Call cut = call;
    cut.offsets = {0, reset, 8};
    Tensors parts = make_inputs(cut, 12);
    parts.erase(Port::kInitialState);
    for (const auto& [port, tensor] : inputs) {
      if (port != Port::kCuSeqlens && port != Port::kInitialState && port != Port::kDFinalState) {
        parts.at(port) = tensor;
      }
    }
    const Tensors second = run_reference(cut, Pass::kForward, parts);
    const Buffer &o = whole.at(Port::kO), &expected = second.at(Port::kO);
    for (std::int64_t i = o.count() / 9 * reset; i < o.count(); ++i) {
      EXPECT_EQ(o.get(i), expected.get(i));
    }
    const Tensors gradients = run_reference(call, Pass::kBackward, inputs);
    for (const auto& [port, gradient] : gradients) {
      for (std::int64_t i = 0; i < gradient.count(); ++i) {
        ASSERT_TRUE(std::isfinite(gradient.get(i))) << deltaworks::name(port);
      }
    }
    for (std::int64_t i = 0; i < width; ++i) {
      const double at_reset = gradients.at(Port::kDG).get(reset * width + i);
      EXPECT_TRUE(step || at_reset == 0) << at_reset;
      EXPECT_NE(gradients.at(Port::kDG).get((reset + 1) * width + i), 0);
    }
  }
}

// One channel that forgets everything leaves the others alone.
TEST(Reference, OneChannelStartsAfresh) {
  Call call = kit::small_call(Op::kKimiDeltaAttention);
  call.offsets = {0, 1};
  Tensors inputs = make_inputs(call, 12);
  inputs.at(Port::kBeta).fill(0);
  inputs.at(Port::kG).fill(0);
  for (std::int64_t head = 0; head < 4; ++head) inputs.at(Port::kG).set(head * 3 + 1, -kInfinity);
  const Tensors outputs = run_reference(call, Pass::kForward, inputs);
  const Buffer &before = inputs.at(Port::kInitialState), &after = outputs.at(Port::kFinalState);
  for (std::int64_t i = 0; i < after.count(); ++i) {
    EXPECT_EQ(after.get(i), i % 3 == 1 ? 0 : before.get(i));
  }
}

// The gradient of a step passes at the clamp's ends and is 0 beyond; that of A passes everywhere.
TEST(Reference, StepsAtTheEndsOfTheClamp) {
  Call clamped =
           kit::small_call(Op::kMamba2, {.dt_softplus = false, .dt_min = 0.25, .dt_max = 0.75}),
       free = kit::small_call(Op::kMamba2, {.dt_softplus = false, .dt_min = -9});
  Tensors inputs = make_inputs(clamped, 16);
  Tensors steps = inputs;  // as the clamp leaves them
  const double values[] = {0.25, 0.2, 0.75, 0.8, 0.5};
  for (std::int64_t i = 0; i < 36; ++i) {
    inputs.at(Port::kDt).set(i, values[i % 5]);
    steps.at(Port::kDt).set(i, std::clamp(values[i % 5], 0.25, 0.75));
  }
  Tensors got = run_reference(clamped, Pass::kBackward, inputs);
  const Tensors expected = run_reference(free, Pass::kBackward, steps);
  for (std::int64_t i = 0; i < 32; ++i) {
    const bool beyond = values[i % 5] == 0.2 || values[i % 5] == 0.8;
    EXPECT_NE(expected.at(Port::kDDt).get(i), 0);
    EXPECT_EQ(got.at(Port::kDDt).get(i), beyond ? 0 : expected.at(Port::kDDt).get(i)) << i;
  }
  got.at(Port::kDDt) = expected.at(Port::kDDt);
  expect_same_bits(got, expected);
}

TEST(Reference, SixteenBitTensorsAreRoundedOnce) {
  for (const auto& [name, small] : rich_calls()) {
    if (small.options.use_beta_sigmoid) continue;  // a sigmoid is rounded by itself
    for (DType io : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
      SCOPED_TRACE(testing::Message() << name << ", " << deltaworks::name(io));
      Call call = small;
      call.types = all(io);
      Tensors inputs = make_inputs(call, 13);
      Call wide = call;
      wide.types = all(DType::kFloat64);
      Tensors wide_inputs = make_inputs(wide, 13);
      for (auto& [port, tensor] : inputs) {
        if (port == Port::kCuSeqlens) continue;
        for (std::int64_t i = 0; i < tensor.count(); ++i) {
          wide_inputs.at(port).set(i, tensor.get(i));
        }
      }
      for (Pass pass : {Pass::kForward, Pass::kBackward}) {
        const Tensors got = run_reference(call, pass, inputs);
        const Tensors expected = run_reference(wide, pass, wide_inputs);
        for (const auto& [port, tensor] : got) {
          for (std::int64_t i = 0; i < tensor.count(); ++i) {
            ASSERT_EQ(tensor.get(i), round_to(tensor.desc.dtype, expected.at(port).get(i)))
                << deltaworks::name(port);
          }
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
    const Tensors forward = run_reference(call, Pass::kForward, inputs);
    for (std::int64_t i = 0; i < forward.at(Port::kO).count(); ++i) {
      EXPECT_EQ(forward.at(Port::kO).get(i), 0);
    }
    for (const auto& [port, gradient] : run_reference(call, Pass::kBackward, inputs)) {
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

}  // namespace
}  // namespace deltaworks
