// What the CPU engine promises bit for bit: results depend on no thread count, stride, offset type,
// neighbour in the batch or later token, and a NaN stays in its sequence and head.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "kit.h"

namespace deltaworks {
namespace {

using namespace kit;

constexpr Pass kPasses[] = {Pass::kForward, Pass::kBackward};

Tensors run(const Call& call, Pass pass, const Tensors& inputs, int threads = 1,
            const Layout& layout = nullptr) {
  return kit::run(plan_of(call.op, "cpu"), call, pass, inputs, threads, layout);
}

// How many threads the plan of a call takes of those it may.
int threads_of(const Call& call, Pass pass, int threads) {
  Tensors inputs = make_inputs(call, 0);
  const Plan plan =
      find_plan(prepare(plan_of(call.op, "cpu"), call, pass, inputs, threads).problem);
  const std::string text = plan.configuration();  // "AVX2, 2 threads, ..."
  return std::stoi(text.substr(text.find(", ") + 2));
}

// Several blocks of values and chunks, an empty sequence, rows of none; everything optional is on.
// All fp32: rounding to 16 bits would hide differences.
Call mixed_call(Op op = Op::kGatedDeltaNet) {
  const Call call{.dims = make_dims(120, 2, 2, 4, 20, 70),
                  .offsets = {0, 40, 40, 107, 118},
                  .options = {.use_qk_l2norm = true, .use_beta_sigmoid = true, .safe_gate = true},
                  .a_log = true,
                  .dt_bias = true,
                  .decay = 0.1};
  return with_op(call, op);
}

// Waking a thread would take longer than the work it is given.
TEST(CpuBits, LittleWorkStaysOnOneThread) {
  for (Pass pass : kPasses) {
    const Call token{.dims = make_dims(1, 1, 1, 1, 128, 128), .offsets = {0, 1}};
    EXPECT_EQ(threads_of(token, pass, 8), 1);
  }
}

class CpuBitsOf : public testing::TestWithParam<Op> {};
INSTANTIATE_TEST_SUITE_P(, CpuBitsOf, testing::ValuesIn(kOps),
                         [](const auto& info) { return std::string(op_name(info.param)); });

TEST_P(CpuBitsOf, ThreadsAndRepeats) {
  const Call call = mixed_call(GetParam());
  const Tensors inputs = make_inputs(call, 1);
  for (Pass pass : kPasses) {
    const Tensors expected = run(call, pass, inputs);
    for (int threads : {1, 2, 3, 8}) {
      SCOPED_TRACE(threads);
      EXPECT_EQ(threads_of(call, pass, threads), threads);
      expect_same_bits(expected, run(call, pass, inputs, threads));
    }
  }
}

TEST_P(CpuBitsOf, OffsetTypes) {
  const Call call = mixed_call(GetParam());
  Call narrow = call;
  narrow.types.offset = DType::kInt32;
  for (Pass pass : kPasses) {
    expect_same_bits(run(call, pass, make_inputs(call, 2)),
                     run(narrow, pass, make_inputs(narrow, 2)));
  }
}

// Strides of an input: broadcast gates and dO; transposed and padded k, v, states; padded rest.
TensorDesc strided(Port port, TensorDesc desc) {
  switch (port) {
    case Port::kG:
      desc.stride = desc.rank == 3 ? std::array<std::int64_t, kMaxRank>{0, desc.shape[2], 1}
                                   : std::array<std::int64_t, kMaxRank>{0, 1};
      return desc;
    case Port::kDO:
      desc.stride = {0, 0, 1};
      return desc;
    case Port::kQ:
      desc.stride = {desc.shape[1] * (desc.shape[2] + 1) + 3, desc.shape[2] + 1, 1};
      return desc;
    default:
      return reversed(desc);
  }
}

TEST_P(CpuBitsOf, Strides) {
  for (DType io : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    SCOPED_TRACE(name(io));
    Call call = mixed_call(GetParam());
    call.types = all(io);
    Tensors dense = make_inputs(call, 3), views;
    for (auto& [port, tensor] : dense) {
      Buffer view = relaid(tensor, strided(port, tensor.desc));
      tensor = relaid(view, tensor.desc);  // with a zero stride, what was written last
      views.emplace(port, std::move(view));
    }
    const Layout reversed_axes = [](Port, TensorDesc desc) { return reversed(desc); };
    const Layout padded_rows = [](Port, TensorDesc desc) {  // of width + 1
      std::int64_t stride = 1;
      for (int axis = desc.rank - 1; axis >= 0; --axis) {
        desc.stride[axis] = stride;
        stride *= desc.shape[axis] + (axis == desc.rank - 1 ? 1 : 0);
      }
      return desc;
    };
    for (Pass pass : kPasses) {
      const Tensors expected = run(call, pass, dense);
      expect_same_bits(expected, run(call, pass, views, 1, reversed_axes));
      expect_same_bits(expected, run(call, pass, views, 1, padded_rows));
    }
  }
}

// A batch of `offsets` cut down to sequence n alone.
Tensors only_sequence(const Call& call, const Tensors& inputs, std::size_t n, Call& alone) {
  const std::int64_t begin = call.offsets[n], length = call.offsets[n + 1] - begin;
  alone = call;
  alone.dims.T = length;
  alone.offsets = {0, length};
  Tensors parts = make_inputs(alone, 0);
  for (auto& [port, part] : parts) {
    if (port == Port::kCuSeqlens) continue;
    const Buffer& whole = inputs.at(port);
    const Axis axis = spec_of(port).axes[0];
    const std::int64_t row = axis == Axis::kT   ? part.count() / std::max<std::int64_t>(length, 1)
                             : axis == Axis::kN ? part.count()
                                                : 0;
    const std::int64_t first = (axis == Axis::kT ? begin : static_cast<std::int64_t>(n)) * row;
    for (std::int64_t i = 0; i < part.count(); ++i) part.set(i, whole.get(first + i));
  }
  return parts;
}

// Nine sequences of four heads are more pairs than the bound from which an item takes all values;
// a sequence alone stays below it, and its values are divided among items.
TEST(CpuBits, SequenceAloneIsAsInABatch) {
  Call call = mixed_call();
  call.offsets = {0, 1, 33, 33, 70, 80, 96, 97, 113, 120};
  ASSERT_GT((call.offsets.size() - 1) * call.dims.HO, 32u);
  const Tensors inputs = make_inputs(call, 4);
  for (Pass pass : kPasses) {
    const Tensors whole = run(call, pass, inputs, 2);
    for (std::size_t n = 0; n + 1 < call.offsets.size(); ++n) {
      SCOPED_TRACE(n);
      Call alone;
      const Tensors parts = only_sequence(call, inputs, n, alone);
      for (const auto& [port, part] : run(alone, pass, parts, 2)) {
        const Axis axis = spec_of(port).axes[0];
        if (axis == Axis::kHO) continue;  // parameters are sums over sequences
        const std::int64_t length = alone.dims.T;
        const std::int64_t first =
            axis == Axis::kN ? static_cast<std::int64_t>(n) * part.count()
                             : (length == 0 ? 0 : call.offsets[n] * (part.count() / length));
        const Buffer& expected = whole.at(port);
        for (std::int64_t i = 0; i < part.count(); ++i) {
          const double x = part.get(i), y = expected.get(first + i);
          ASSERT_EQ(std::bit_cast<std::uint64_t>(x), std::bit_cast<std::uint64_t>(y))
              << name(port) << " at " << i;
        }
      }
    }
  }
}

TEST(CpuBits, OutputsDoNotSeeLaterTokens) {
  const Call call = mixed_call();
  const Tensors inputs = make_inputs(call, 5);
  const Buffer expected = run(call, Pass::kForward, inputs).at(Port::kO);
  const std::int64_t row = expected.count() / call.dims.T;
  for (std::int64_t last : {0, 15, 16, 38, 40, 71, 72, 105}) {
    SCOPED_TRACE(last);
    Tensors changed = inputs;
    for (Port port : {Port::kQ, Port::kK, Port::kV, Port::kG, Port::kBeta}) {
      Buffer& x = changed.at(port);
      const std::int64_t token = x.count() / call.dims.T;
      for (std::int64_t i = (last + 1) * token; i < x.count(); ++i) x.set(i, 3 - x.get(i));
    }
    const Buffer got = run(call, Pass::kForward, changed).at(Port::kO);
    for (std::int64_t i = 0; i < (last + 1) * row; ++i) {
      ASSERT_TRUE(same_bits(got, expected, i)) << i / row;
    }
    bool differs = false;
    for (std::int64_t i = (last + 1) * row; i < got.count(); ++i) {
      differs |= !same_bits(got, expected, i);
    }
    EXPECT_TRUE(differs);
  }
}

// A gradient of q is a row of the state times dO: like an output it knows no later token. The
// gradients of a token know no output before it.
TEST(CpuBits, GradientsSeeOnlyWhatTheyDependOn) {
  Call call = mixed_call();
  call.offsets = {0, 120};
  const Tensors inputs = make_inputs(call, 12);
  const Tensors expected = run(call, Pass::kBackward, inputs);
  const auto expect_rows = [&](Port port, const Tensors& got, std::int64_t begin,
                               std::int64_t end) {
    const std::int64_t row = got.at(port).count() / call.dims.T;
    for (std::int64_t i = begin * row; i < end * row; ++i) {
      ASSERT_TRUE(same_bits(got.at(port), expected.at(port), i)) << name(port) << " " << i / row;
    }
  };
  for (std::int64_t token : {1, 31, 32, 50}) {
    SCOPED_TRACE(token);
    const auto change = [&](std::initializer_list<Port> ports, std::int64_t begin,
                            std::int64_t end) {
      Tensors changed = inputs;
      for (Port port : ports) {
        Buffer& x = changed.at(port);
        const std::int64_t row = x.count() / call.dims.T;
        for (std::int64_t i = begin * row; i < end * row; ++i) x.set(i, 3 - x.get(i));
      }
      return run(call, Pass::kBackward, changed);
    };
    expect_rows(
        Port::kDQ,
        change({Port::kQ, Port::kK, Port::kV, Port::kG, Port::kBeta, Port::kDO}, token, 120), 0,
        token);
    const Tensors later = change({Port::kQ, Port::kDO}, 0, token);
    for (Port port : {Port::kDQ, Port::kDK, Port::kDV, Port::kDG, Port::kDBeta}) {
      expect_rows(port, later, token, 120);
    }
    EXPECT_FALSE(same_bits(later.at(Port::kDV), expected.at(Port::kDV), 0));
  }
}

// Elements of outputs that (sequence, head) may not touch are as without the NaN; some of its own
// are NaN.
void expect_contained(const Call& call, const Tensors& clean, const Tensors& got,
                      std::int64_t sequence, std::int64_t head) {
  bool spread = false;
  for (const auto& [port, tensor] : got) {
    const PortSpec& spec = spec_of(port);
    const std::int64_t heads = spec.rank > 1 ? tensor.desc.shape[1] : tensor.desc.shape[0];
    const std::int64_t first_size = tensor.count() / tensor.desc.shape[0];
    for (std::int64_t i = 0; i < tensor.count(); ++i) {
      const std::int64_t first = i / first_size;
      const std::int64_t h = spec.rank > 1 ? i % first_size / (first_size / heads) : i;
      const bool own_sequence = spec.axes[0] == Axis::kN   ? first == sequence
                                : spec.axes[0] == Axis::kT ? first >= call.offsets[sequence] &&
                                                                 first < call.offsets[sequence + 1]
                                                           : true;
      if (own_sequence && h == head) {
        spread |= std::isnan(tensor.get(i));
      } else {
        ASSERT_TRUE(same_bits(tensor, clean.at(port), i)) << name(port) << " at " << i;
      }
    }
  }
  EXPECT_TRUE(spread);
}

TEST(CpuBits, NanStaysInItsSequenceAndHead) {
  Call call = mixed_call();
  call.dims = make_dims(120, 3, 3, 3, 20, 70);
  const Tensors inputs = make_inputs(call, 6);
  const std::int64_t sequence = 2, head = 1, token = 60;  // of sequence 2: 40..106
  for (Pass pass : kPasses) {
    const Tensors clean = run(call, pass, inputs);
    for (const auto& [port, unused] : inputs) {
      const PortSpec& spec = spec_of(port);
      if (port == Port::kCuSeqlens || spec.kind == Kind::kParam ||
          (pass == Pass::kForward && spec.role == Role::kFlow)) {
        continue;
      }
      SCOPED_TRACE(name(port));
      Tensors dirty = inputs;
      Buffer& x = dirty.at(port);
      const std::int64_t size = x.count() / x.desc.shape[0];
      const std::int64_t first = spec.axes[0] == Axis::kN ? sequence : token;
      x.set(first * size + head * (size / x.desc.shape[1]), std::nan(""));
      const Tensors got = run(call, pass, dirty);
      expect_contained(call, clean, got, sequence, head);
      if (pass == Pass::kBackward || spec.axes[0] == Axis::kN) continue;
      // Nor does it reach a token before its own.
      const Buffer &o = got.at(Port::kO), &expected = clean.at(Port::kO);
      for (std::int64_t i = 0; i < token * (o.count() / call.dims.T); ++i) {
        ASSERT_TRUE(same_bits(o, expected, i)) << i;
      }
    }
  }
}

TEST_P(CpuBitsOf, AbsentFlowsAreZeros) {
  const Call call = mixed_call(GetParam());
  const Tensors inputs = make_inputs(call, 7);
  for (Port port : {Port::kDO, Port::kDFinalState}) {
    SCOPED_TRACE(name(port));
    Tensors absent = inputs, zeros = inputs;
    absent.erase(port);
    zeros.at(port).fill(0);
    expect_same_bits(run(call, Pass::kBackward, absent), run(call, Pass::kBackward, zeros));
  }
}

TEST(CpuBits, AbsentStateAndParametersAreZeros) {
  Call call = mixed_call();
  call.types.state = DType::kFloat32;  // what absence means
  Tensors zeros = make_inputs(call, 8);
  for (Port port : {Port::kALog, Port::kDtBias, Port::kInitialState}) zeros.at(port).fill(0);
  Tensors absent = zeros;
  for (Port port : {Port::kALog, Port::kDtBias, Port::kInitialState}) absent.erase(port);
  for (Pass pass : kPasses) {
    Tensors expected = run(call, pass, zeros);
    for (Port port : {Port::kDALog, Port::kDDtBias, Port::kDInitialState}) expected.erase(port);
    expect_same_bits(run(call, pass, absent), expected);
  }
}

TEST_P(CpuBitsOf, WideningOfAGateChangesNothing) {
  for (DType narrow : {DType::kBFloat16, DType::kFloat16}) {
    Call call = mixed_call(GetParam()), wide = mixed_call(GetParam());
    call.types.g = narrow;
    wide.types.g = DType::kFloat32;
    const Tensors inputs = make_inputs(call, 9);
    Tensors widened = inputs;
    widened.at(Port::kG) = relaid(inputs.at(Port::kG), describe(wide, Port::kG));
    for (Pass pass : kPasses) {
      Tensors got = run(call, pass, inputs), expected = run(wide, pass, widened);
      if (pass == Pass::kBackward) {
        expected.at(Port::kDG) = relaid(expected.at(Port::kDG), describe(call, Port::kDG));
      }
      expect_same_bits(got, expected);
    }
  }
}

// Operands are not rounded and results once, to nearest even: a 16-bit call is the fp32 call on the
// same values, rounded. The scales take fp16 from its subnormals to infinity.
TEST(CpuBits, SixteenBitTensorsAreRoundedOnce) {
  for (DType io : {DType::kBFloat16, DType::kFloat16}) {
    for (double scale : {1.0, 1e-7, 1e6}) {
      Call call{.dims = make_dims(60, 2, 2, 4, 21, 37),
                .offsets = {0, 20, 60},
                .options = {.scale = scale, .use_qk_l2norm = true},
                .types = all(io),
                .decay = 0.1};
      Call wide = call;
      wide.types = all(DType::kFloat32);
      const Tensors inputs = make_inputs(call, 13);
      Tensors widened;
      for (const auto& [port, tensor] : inputs) {
        widened.emplace(port, relaid(tensor, describe(wide, port)));
      }
      for (Pass pass : kPasses) {
        const Tensors expected = run(wide, pass, widened);
        for (const auto& [port, tensor] : run(call, pass, inputs)) {
          SCOPED_TRACE(testing::Message() << name(port) << " " << name(io) << " " << scale);
          for (std::int64_t i = 0; i < tensor.count(); ++i) {
            ASSERT_EQ(tensor.get(i), round_to(io, expected.at(port).get(i))) << i;
          }
        }
      }
    }
  }
}

// All bits of this one are set, so that adding a half of the last place would wrap it to -0.
TEST(CpuBits, NanOfAnyPayloadStaysNan) {
  for (DType io : {DType::kBFloat16, DType::kFloat16}) {
    const std::int64_t K = 4, V = 33;
    const Call call{.dims = make_dims(3, 1, 1, 1, K, V),
                    .offsets = {0, 3},
                    .types = {.io = io, .beta = io},
                    .decay = 0.1};
    Tensors inputs = make_inputs(call, 14);
    auto* state = static_cast<std::uint32_t*>(inputs.at(Port::kInitialState).data());
    for (std::int64_t i = 0; i < K * V; ++i) state[i] = 0x7fffffff;
    const Buffer o = run(call, Pass::kForward, inputs).at(Port::kO);
    for (std::int64_t i = 0; i < o.count(); ++i) ASSERT_TRUE(std::isnan(o.get(i))) << i;
  }
}

// A state that is carried in fp32 loses next to nothing: the forward of a sequence cut in two is
// the whole but for the moment at which the engine multiplies its state by the decays. Without
// decays it is the whole bit for bit.
TEST(CpuBits, CutSequenceIsTheWhole) {
  for (const bool decays : {false, true}) {
    Call call = mixed_call();
    call.types.state = DType::kFloat32;
    call.offsets = {0, 120};
    Tensors inputs = make_inputs(call, 10);
    if (!decays) {
      call.options.safe_gate = call.a_log = call.dt_bias = false;
      inputs = make_inputs(call, 10);
      Buffer& g = inputs.at(Port::kG);
      for (std::int64_t i = 0; i < g.count(); ++i) g.set(i, 0);
    }
    const Tensors whole = run(call, Pass::kForward, inputs);
    for (std::int64_t cut : {1, 16, 37}) {
      SCOPED_TRACE(testing::Message() << cut << (decays ? ", decays" : ""));
      Call split = call;
      split.offsets = {0, cut, 120};
      Call part;
      Tensors pieces = make_inputs(split, 10);
      for (auto& [port, tensor] : pieces) {
        if (spec_of(port).axes[0] != Axis::kN && port != Port::kCuSeqlens) tensor = inputs.at(port);
      }
      Tensors first = only_sequence(split, pieces, 0, part);
      first.at(Port::kInitialState) = inputs.at(Port::kInitialState);
      const Tensors head = run(part, Pass::kForward, first);
      Tensors second = only_sequence(split, pieces, 1, part);
      second.at(Port::kInitialState) = head.at(Port::kFinalState);
      const Tensors tail = run(part, Pass::kForward, second);

      double error = 0, size = 0;
      const auto compare = [&](double got, double expected) {
        error += (got - expected) * (got - expected);
        size += expected * expected;
      };
      const Buffer& final_state = whole.at(Port::kFinalState);
      for (std::int64_t i = 0; i < final_state.count(); ++i) {
        compare(tail.at(Port::kFinalState).get(i), final_state.get(i));
      }
      const Buffer& o = whole.at(Port::kO);
      const std::int64_t row = o.count() / 120;
      for (std::int64_t i = 0; i < o.count(); ++i) {
        compare(i < cut * row ? head.at(Port::kO).get(i) : tail.at(Port::kO).get(i - cut * row),
                o.get(i));
      }
      ASSERT_GT(size, 0);
      EXPECT_LE(std::sqrt(error / size), decays ? 2e-7 : 0);
    }
  }
}

// Final states in place of the initial ones: items of all values of a head and of a block of them,
// empty sequences, rows past the last one.
TEST(CpuBits, OverwrittenStatesAreTheFinalStates) {
  for (const std::int64_t heads : {1, 16}) {
    for (const DType state : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      SCOPED_TRACE(testing::Message() << heads << " " << name(state));
      Call call{.dims = make_dims(60, heads, heads, heads, 12, 150), .offsets = {0, 17, 17, 58}};
      call.types.state = state;
      Tensors inputs = make_inputs(call, 12);
      const Tensors expected = run(call, Pass::kForward, inputs);
      Call in_place = call;
      in_place.options.overwrite_initial_state = true;
      expect_same_bits(expected, run(in_place, Pass::kForward, inputs, 1));
      expect_same_bits(expected, run(in_place, Pass::kForward, inputs, 3));
      Buffer& initial_state = inputs.at(Port::kInitialState);
      initial_state = relaid(initial_state, reversed(initial_state.desc));
      expect_same_bits(expected, run(in_place, Pass::kForward, inputs, 2));
    }
  }
}

TEST(CpuBits, OverwrittenStatesOfNoTokensStay) {
  Call call{.dims = make_dims(0, 2, 2, 2, 4, 6), .offsets = {0, 0, 0}};
  call.options.overwrite_initial_state = true;
  const Tensors inputs = make_inputs(call, 13);
  const Tensors outputs = run(call, Pass::kForward, inputs);
  expect_same_bits({{Port::kFinalState, outputs.at(Port::kFinalState)}},
                   {{Port::kFinalState, inputs.at(Port::kInitialState)}});
}

// After a gate of -inf nothing is left of the state, as after the start of a sequence.
TEST(CpuBits, GateOfMinusInfinityStartsAfresh) {
  Call call{.dims = make_dims(50, 2, 2, 2, 12, 40), .offsets = {0, 50}, .decay = 0.1};
  Tensors inputs = make_inputs(call, 11);
  for (std::int64_t head : {0, 1}) {
    inputs.at(Port::kG).set(21 * 2 + head, -std::numeric_limits<double>::infinity());
  }
  const Tensors whole = run(call, Pass::kForward, inputs);
  Call cut = call, part;
  cut.offsets = {0, 21, 50};
  cut.initial_state = false;
  Tensors second = only_sequence(cut, inputs, 1, part);
  const Tensors fresh = run(part, Pass::kForward, second);
  const std::int64_t row = 2 * 40;
  for (std::int64_t i = 0; i < 29 * row; ++i) {
    ASSERT_EQ(fresh.at(Port::kO).get(i), whole.at(Port::kO).get(21 * row + i)) << i / row;
  }
}

}  // namespace
}  // namespace deltaworks
