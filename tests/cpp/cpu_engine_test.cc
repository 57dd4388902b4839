// The accuracy of the CPU engine, both passes, against a token loop in float64 (oracle.h).
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "bounds.h"
#include "oracle.h"

namespace deltaworks {
namespace {

using namespace kit;

// Two threads; heads and sequences in one batch.
void expect_accurate(const Call& call, const Tensors& inputs) {
  const Tensors gradients = oracle<double>(call, Pass::kBackward, inputs);
  const Tensors plain_gradients = oracle<float>(call, Pass::kBackward, inputs);
  expect_close({call, inputs, gradients, plain_gradients},
               run(plan_of(call.op, "cpu"), call, Pass::kBackward, inputs, 2));
  const Tensors outputs = oracle<double>(call, Pass::kForward, inputs);
  const Tensors plain_outputs = oracle<float>(call, Pass::kForward, inputs);
  expect_close({call, inputs, outputs, plain_outputs},
               run(plan_of(call.op, "cpu"), call, Pass::kForward, inputs, 2));
}

void expect_accurate(const Call& call, unsigned seed) {
  expect_accurate(call, make_inputs(call, seed));
}

// The call as each operation has it.
void expect_accurate_everywhere(const Call& call, unsigned seed) {
  for (Op op : kOps) {
    SCOPED_TRACE(op_name(op));
    expect_accurate(with_op(call, op), seed);
  }
}

Types types(DType io, DType g, DType beta, DType param, DType state) {
  return {.io = io, .g = g, .beta = beta, .param = param, .state = state};
}
constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16, kF16 = DType::kFloat16;

TEST(CpuEngine, HeadLayouts) {
  constexpr std::int64_t kHeads[][3] = {{1, 1, 1}, {2, 2, 4}, {2, 4, 4}, {4, 4, 1},
                                        {4, 1, 1}, {6, 2, 2}, {3, 3, 3}};
  for (const auto& [H, HK, HV] : kHeads) {
    for (DType io : {kF32, kBf16}) {
      SCOPED_TRACE(testing::Message() << H << " " << HK << " " << HV << " " << name(io));
      const Call call{.dims = make_dims(45, H, HK, HV, 33, 12),
                      .offsets = {0, 5, 45},
                      .options = {.use_qk_l2norm = true},
                      .types = types(io, kF32, kF32, kF32, kF32),
                      .decay = 0.1};
      expect_accurate_everywhere(call, 1);
    }
  }
}

TEST(CpuEngine, HeadDims) {
  constexpr std::int64_t kSizes[] = {1, 8, 33, 64, 128};
  for (std::int64_t K : kSizes) {
    for (std::int64_t V : kSizes) {
      SCOPED_TRACE(testing::Message() << K << " " << V);
      const Call call{.dims = make_dims(36, 1, 1, 1, K, V), .offsets = {0, 3, 36}, .decay = 0.2};
      expect_accurate_everywhere(call, 2);
    }
  }
}

TEST(CpuEngine, LargestHeadDims) {
  const Call call{.dims = make_dims(3, 1, 1, 1, 512, 511), .offsets = {0, 3}, .decay = 0.2};
  expect_accurate_everywhere(call, 3);
}

TEST(CpuEngine, LengthsAroundTheChunk) {
  Call call{.dims = make_dims(0, 1, 1, 2, 8, 9), .offsets = {0}, .decay = 0.05};
  for (std::int64_t length : {0, 1, 15, 0, 16, 17, 31, 32, 33, 63, 64, 65, 130, 0}) {
    call.offsets.push_back(call.offsets.back() + length);
  }
  call.dims.T = call.offsets.back() + 3;  // rows of no sequence
  for (DType io : {kF32, kF16}) {
    call.types = types(io, kF32, io, kF32, kF32);
    expect_accurate_everywhere(call, 4);
  }
}

TEST(CpuEngine, Options) {
  const Options options[] = {
      {},
      {.scale = -0.3},
      {.use_qk_l2norm = true},
      {.use_beta_sigmoid = true},
      {.use_qk_l2norm = true, .use_beta_sigmoid = true, .allow_neg_eigval = true},
      {.safe_gate = true, .batch_invariant = true},
      {.gate_domain = GateDomain::kLinear},
      {.scale = 2.0,
       .use_qk_l2norm = true,
       .use_beta_sigmoid = true,
       .allow_neg_eigval = true,
       .safe_gate = true},
  };
  for (std::size_t i = 0; i < std::size(options); ++i) {
    for (const bool optional : {true, false}) {
      SCOPED_TRACE(testing::Message() << i << " " << optional);
      Call call{.dims = make_dims(70, 2, 2, 4, 16, 10),
                .offsets = {0, 33, 70},
                .options = options[i],
                .a_log = optional && options[i].safe_gate,
                .dt_bias = optional && options[i].safe_gate,
                .initial_state = optional,
                .decay = 0.1};
      expect_accurate_everywhere(call, static_cast<unsigned>(i));
    }
  }
}

TEST(CpuEngine, Dtypes) {
  const Types rows[] = {
      types(kBf16, kBf16, kBf16, kBf16, kBf16), types(kF16, kF16, kF16, kF16, kF16),
      types(kBf16, kF32, kF32, kF32, kF32),     types(kF16, kF32, kF32, kF32, kF32),
      types(kBf16, kF16, kBf16, kF32, kF16),    types(kF16, kBf16, kF32, kF16, kBf16),
      types(kF32, kBf16, kF32, kF16, kBf16),    types(kF32, kF16, kF32, kBf16, kF16),
  };
  for (std::size_t i = 0; i < std::size(rows); ++i) {
    for (const bool softplus : {true, false}) {
      SCOPED_TRACE(testing::Message() << i << " " << softplus);
      const Call call{
          .dims = make_dims(50, 2, 2, 4, 40, 20),
          .offsets = {0, 50},
          .options = {.use_qk_l2norm = true, .use_beta_sigmoid = softplus, .safe_gate = softplus},
          .a_log = softplus,
          .dt_bias = softplus,
          .types = rows[i],
          .decay = 0.1};
      expect_accurate_everywhere(call, static_cast<unsigned>(i));
    }
  }
}

// What only some operations take.
TEST(CpuEngine, OptionsOfOperations) {
  const Call base{.dims = make_dims(70, 2, 2, 4, 16, 10),
                  .offsets = {0, 33, 70},
                  .a_log = true,
                  .dt_bias = true,
                  .decay = 0.1};
  for (Op op : {Op::kKimiDeltaAttention, Op::kGatedDeltaNetV2}) {
    for (const Options& options : {Options{.safe_gate = true, .gate = GateKind::kSoftplus},
                                   Options{.safe_gate = true, .gate_lower_bound = -0.3}}) {
      Call call = with_op(base, op);
      call.options = options;
      SCOPED_TRACE(testing::Message()
                   << op_name(op) << " " << options.gate_lower_bound.has_value());
      expect_accurate(call, 20);
    }
  }
  Call guarded = with_op(base, Op::kGatedDeltaNetV2);
  guarded.options = {.use_qk_l2norm = true, .safe_gate = true, .beta_guard = true};
  expect_accurate(guarded, 21);
  for (const std::int64_t n : {1, 3}) {
    for (const bool apart : {false, true}) {
      SCOPED_TRACE(testing::Message() << n << " " << apart);
      Call call = with_op(base, Op::kGatedDeltaProduct);
      call.options = {.use_qk_l2norm = true, .safe_gate = true, .num_householder = n};
      call.dims.n = n;
      call.steps_apart = apart;
      expect_accurate(call, 22);
    }
  }
  for (const Options& options :
       {Options{}, Options{.dt_softplus = false}, Options{.dt_min = 0.5, .dt_max = 0.9}}) {
    for (int rank : {0, 1, 2}) {
      SCOPED_TRACE(testing::Message() << options.dt_softplus << options.dt_min << " " << rank);
      Call call = with_op(base, Op::kMamba2);
      call.options = options;
      call.D_rank = rank;
      call.z = rank != 1;
      expect_accurate(call, 23);
    }
  }
}

// One hard regime: changes the inputs of a call with normalised keys.
void expect_accurate_in(const char* regime, const std::function<void(const Call&, Tensors&)>& set,
                        double decay = 0.02) {
  for (DType io : {kF32, kBf16, kF16}) {
    SCOPED_TRACE(testing::Message() << regime << " " << name(io));
    const Call call{.dims = make_dims(100, 1, 1, 2, 32, 16),
                    .offsets = {0, 100},
                    .options = {.use_qk_l2norm = true},
                    .types = types(io, kF32, kF32, kF32, kF32),
                    .decay = decay};
    Tensors inputs = make_inputs(call, 5);
    set(call, inputs);
    expect_accurate(call, inputs);
  }
}

TEST(CpuEngine, Regimes) {
  const auto gates = [](auto f) {
    return [f](const Call&, Tensors& inputs) {
      Buffer& g = inputs.at(Port::kG);
      for (std::int64_t i = 0; i < g.count(); ++i) g.set(i, f(i, g.get(i)));
    };
  };
  const double infinity = std::numeric_limits<double>::infinity();
  expect_accurate_in("no decay", gates([](std::int64_t, double) { return 0.0; }));
  expect_accurate_in(
      "strong decay", [](const Call&, Tensors&) {}, 10.0);
  expect_accurate_in("resets of -1e4",
                     gates([](std::int64_t i, double g) { return i % 23 == 7 ? -1e4 : g; }));
  expect_accurate_in("resets of -inf", gates([infinity](std::int64_t i, double g) {
                       return i % 23 == 7 ? -infinity : g;
                     }));
  // Here a prefix sum in fp32 has lost the digits of the weak gates behind the resets.
  expect_accurate_in("many resets before weak gates", gates([infinity](std::int64_t i, double g) {
                       return i / 2 % 32 >= 2 && i / 2 % 32 < 22 ? -infinity : g;
                     }));
  expect_accurate_in("mixed strengths", gates([](std::int64_t i, double g) {
                       return i % 5 == 0 ? -25.0 : i % 3 == 0 ? -3.0 : g;
                     }));
  expect_accurate_in("zero rows", [](const Call& call, Tensors& inputs) {
    for (Port port : {Port::kQ, Port::kK, Port::kV}) {
      Buffer& x = inputs.at(port);
      const std::int64_t token = x.count() / call.dims.T;
      for (std::int64_t i = 0; i < x.count(); ++i) {
        if (i / token % 7 == index(port)) x.set(i, 0);
      }
    }
  });
  expect_accurate_in("rows as short as the norm's epsilon", [](const Call&, Tensors& inputs) {
    for (Port port : {Port::kQ, Port::kK}) {
      Buffer& x = inputs.at(port);
      for (std::int64_t i = 0; i < x.count(); ++i) x.set(i, 3e-4 * x.get(i));
    }
  });
  expect_accurate_in("one key, beta 1", [](const Call& call, Tensors& inputs) {
    Buffer& k = inputs.at(Port::kK);
    for (std::int64_t i = 0; i < k.count(); ++i) k.set(i, k.get(i % call.dims.K));
    inputs.at(Port::kBeta).fill(1);
  });
  expect_accurate_in("alternating keys, beta 1", [](const Call& call, Tensors& inputs) {
    Buffer& k = inputs.at(Port::kK);
    for (std::int64_t i = 0; i < k.count(); ++i) {
      k.set(i, (i / call.dims.K % 2 == 0 ? 1 : -1) * k.get(i % call.dims.K));
    }
    inputs.at(Port::kBeta).fill(1);
  });
}

TEST(CpuEngine, LinearGatesFromZeroToOne) {
  const Call call{.dims = make_dims(80, 1, 1, 2, 16, 16),
                  .offsets = {0, 80},
                  .options = {.gate_domain = GateDomain::kLinear}};
  Tensors inputs = make_inputs(call, 6);
  Buffer& alpha = inputs.at(Port::kG);
  for (std::int64_t i = 0; i < alpha.count(); ++i) {
    constexpr double kValues[] = {0, 1e-6, 1e-3, 1, 1, 0.9, 0.99, 1};
    alpha.set(i, kValues[i * 5 % 8]);
  }
  expect_accurate(call, inputs);
}

TEST(CpuEngine, SoftplusIsLinearFromTwentyOn) {
  Call call{.dims = make_dims(40, 1, 1, 1, 16, 16),
            .offsets = {0, 40},
            .options = {.safe_gate = true},
            .a_log = true,
            .dt_bias = true};
  Tensors inputs = make_inputs(call, 7);
  inputs.at(Port::kALog).fill(-7);
  inputs.at(Port::kDtBias).fill(0.5);
  Buffer& g = inputs.at(Port::kG);
  for (std::int64_t i = 0; i < g.count(); ++i) g.set(i, i % 2 == 0 ? 30 + g.get(i) : -3);
  expect_accurate(call, inputs);
}

TEST(CpuEngine, GateOfMinusInfinityHasNoGradient) {
  const Call call{.dims = make_dims(40, 1, 1, 1, 8, 8), .offsets = {0, 40}};
  Tensors inputs = make_inputs(call, 8);
  for (std::int64_t t : {0, 13, 39}) {
    inputs.at(Port::kG).set(t, -std::numeric_limits<double>::infinity());
  }
  const Tensors gradients = run("gdn_cpu", call, Pass::kBackward, inputs);
  for (std::int64_t t : {0, 13, 39}) EXPECT_EQ(gradients.at(Port::kDG).get(t), 0);
  EXPECT_NE(gradients.at(Port::kDG).get(14), 0);
  for (std::int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(gradients.at(Port::kDInitialState).get(i), 0);
  }
}

TEST(CpuEngine, NothingToDo) {
  for (const Call& call : {Call{.dims = make_dims(3, 1, 1, 1, 2, 2), .offsets = {0}},
                           Call{.dims = make_dims(0, 1, 1, 1, 2, 2), .offsets = {0, 0}},
                           Call{.dims = make_dims(3, 1, 1, 1, 2, 2), .offsets = {0, 0}},
                           Call{.dims = make_dims(3, 0, 0, 0, 2, 2), .offsets = {0, 3}}}) {
    const Tensors inputs = make_inputs(call, 9);
    const Tensors forward = run("gdn_cpu", call, Pass::kForward, inputs);
    for (std::int64_t i = 0; i < forward.at(Port::kO).count(); ++i) {
      EXPECT_EQ(forward.at(Port::kO).get(i), 0);
    }
    for (const auto& [port, gradient] : run("gdn_cpu", call, Pass::kBackward, inputs)) {
      if (port == Port::kDInitialState) continue;
      for (std::int64_t i = 0; i < gradient.count(); ++i) EXPECT_EQ(gradient.get(i), 0);
    }
  }
}

TEST(CpuEngine, EmptySequencesHandStatesOn) {
  for (DType state : {kF32, kBf16, kF16}) {
    Call call{.dims = make_dims(4, 2, 2, 2, 5, 3), .offsets = {0, 0, 4, 4}};
    call.types.state = state;
    Tensors inputs = make_inputs(call, 10);
    inputs.at(Port::kInitialState).set(0, -0.0);
    const Tensors forward = run("gdn_cpu", call, Pass::kForward, inputs);
    const Tensors backward = run("gdn_cpu", call, Pass::kBackward, inputs);
    Tensors unseeded = inputs;
    unseeded.erase(Port::kInitialState);
    const std::int64_t size = 2 * 5 * 3;
    for (std::int64_t i = 0; i < 3 * size; ++i) {
      if (i / size == 1) continue;
      EXPECT_TRUE(same_bits(forward.at(Port::kFinalState), inputs.at(Port::kInitialState), i));
      EXPECT_TRUE(same_bits(backward.at(Port::kDInitialState), inputs.at(Port::kDFinalState), i));
    }
    if (state != kF32) continue;
    const Tensors zero = run("gdn_cpu", call, Pass::kForward, unseeded);
    for (std::int64_t i = 0; i < size; ++i) EXPECT_EQ(zero.at(Port::kFinalState).get(i), 0);
  }
}

#ifdef DELTAWORKS_REFERENCE
// The reference engine judges sizes that the oracle, which keeps every state, is too large for.
TEST(CpuEngine, LongSequencesAgainstTheReferenceEngine) {
  for (Op op : kOps) {
    const DType io = op == Op::kGatedDeltaNetV2 ? kF16 : kBf16;
    SCOPED_TRACE(testing::Message() << op_name(op) << " " << name(io));
    const Call delta{
        .dims = make_dims(1500, 1, 1, 2, 128, 64),
        .offsets = {0, 1400, 1500},
        .options = {.use_qk_l2norm = true, .use_beta_sigmoid = true, .safe_gate = true},
        .a_log = true,
        .dt_bias = true,
        .types = types(io, kF32, io, kF32, kF32),
        .decay = 0.005};
    const Call call = with_op(delta, op);
    const std::string cpu = plan_of(op, "cpu"), reference = plan_of(op, "reference");
    const Tensors inputs = make_inputs(call, 11);
    const Tensors gradients = run(reference, call, Pass::kBackward, inputs, 2);
    const Judgement judgement{call, inputs, gradients, gradients};
    expect_close(judgement, run(cpu, call, Pass::kBackward, inputs, 2));
    const Tensors outputs = run(reference, call, Pass::kForward, inputs, 2);
    expect_close({call, inputs, outputs, outputs}, run(cpu, call, Pass::kForward, inputs, 2));
  }
}
#endif

}  // namespace
}  // namespace deltaworks
