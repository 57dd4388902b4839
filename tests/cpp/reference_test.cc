// The reference engine against hand computation and finite differences, and the promises on memory:
// strides, padding rows, empty sequences, dtypes, threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "problem/ports.h"
#include "reference/gradient.h"
#include "registry/engine.h"

namespace deltaworks {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A tensor with storage of its own, addressed by the position of an element in logical order.
struct Tensor {
  TensorDesc desc;
  std::vector<std::byte> storage;

  explicit Tensor(const TensorDesc& desc) : desc(desc) {
    std::int64_t span = 1;
    for (int axis = 0; axis < desc.rank; ++axis) {
      span += (desc.shape[axis] - 1) * desc.stride[axis];
    }
    storage.assign(std::max<std::int64_t>(span, 0) * size_of(desc.dtype), std::byte{0xff});  // NaN
  }

  std::int64_t count() const {
    std::int64_t n = 1;
    for (int axis = 0; axis < desc.rank; ++axis) n *= desc.shape[axis];
    return n;
  }
  std::int64_t offset(std::int64_t i) const {
    std::int64_t sum = 0;
    for (int axis = desc.rank - 1; axis >= 0; --axis) {
      sum += i % desc.shape[axis] * desc.stride[axis];
      i /= desc.shape[axis];
    }
    return sum;
  }
  double get(std::int64_t i) const { return load<double>(desc.dtype, storage.data(), offset(i)); }
  void set(std::int64_t i, double x) { store(desc.dtype, storage.data(), offset(i), x); }
};

using Tensors = std::map<Port, Tensor>;

struct Call {
  Dims dims;
  std::vector<std::int64_t> offsets;  // cu_seqlens
  Options options{};
  bool a_log = false, dt_bias = false, initial_state = true;
  DType io = DType::kFloat64;
  DType gate = DType::kFloat64;
  DType offset = DType::kInt64;
};

Dims make_dims(std::int64_t T, std::int64_t H, std::int64_t HK, std::int64_t HV, std::int64_t K,
               std::int64_t V) {
  return {.T = T, .N = 0, .K = K, .V = V, .H = H, .HK = HK, .HV = HV, .HO = std::max(H, HV)};
}

// Row-major description of a port's tensor.
TensorDesc describe(const Call& call, const PortSpec& spec) {
  Dims dims = call.dims;
  dims.N = static_cast<std::int64_t>(call.offsets.size()) - 1;
  const bool gate = spec.primal == Port::kG || spec.primal == Port::kBeta ||
                    spec.primal == Port::kALog || spec.primal == Port::kDtBias ||
                    spec.kind == Kind::kState;
  TensorDesc desc;
  desc.dtype = spec.kind == Kind::kOffset ? call.offset : gate ? call.gate : call.io;
  desc.rank = spec.rank;
  std::int64_t stride = 1;
  for (int axis = spec.rank - 1; axis >= 0; --axis) {
    desc.shape[axis] = extent(dims, spec.axes[axis]);
    desc.stride[axis] = stride;
    stride *= std::max<std::int64_t>(desc.shape[axis], 1);
  }
  return desc;
}

// Random inputs of both passes in the range that the options expect.
Tensors make_inputs(const Call& call, unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform(0.05, 0.95);
  Tensors tensors;
  for (const PortSpec& spec : ports(Op::kGatedDeltaNet)) {
    if (spec.role == Role::kOutput || spec.role == Role::kFinalState ||
        spec.role == Role::kGradient || (spec.port == Port::kALog && !call.a_log) ||
        (spec.port == Port::kDtBias && !call.dt_bias) ||
        (spec.port == Port::kInitialState && !call.initial_state)) {
      continue;
    }
    Tensor tensor(describe(call, spec));
    const Options& options = call.options;
    for (std::int64_t i = 0; i < tensor.count(); ++i) {
      double x = normal(random);
      if (spec.port == Port::kG && !options.safe_gate) {
        x = options.gate_domain == GateDomain::kLinear ? uniform(random) : -std::abs(x);
      }
      if (spec.port == Port::kBeta && !options.use_beta_sigmoid) x = uniform(random);
      if (spec.kind == Kind::kOffset) {
        if (call.offset == DType::kInt64) {
          reinterpret_cast<std::int64_t*>(tensor.storage.data())[i] = call.offsets[i];
        } else {
          reinterpret_cast<std::int32_t*>(tensor.storage.data())[i] =
              static_cast<std::int32_t>(call.offsets[i]);
        }
      } else {
        tensor.set(i, x);
      }
    }
    tensors.emplace(spec.port, std::move(tensor));
  }
  return tensors;
}

using Layout = std::function<TensorDesc(Port, TensorDesc)>;  // strides of an output

// Runs one pass on `tensors`' inputs and returns its outputs, all that the inputs allow.
Tensors run(const Call& call, Pass pass, Tensors& inputs, int threads = 1,
            const Layout& layout = nullptr) {
  Problem problem;
  problem.pass = pass;
  problem.options = call.options;
  problem.options.output_final_state = true;
  problem.plan_name = "gdn_reference";
  problem.threads = threads;
  Tensors outputs;
  Pack pack;
  for (const PortSpec& spec : ports(problem.op)) {
    const bool forward_only = spec.role == Role::kOutput || spec.role == Role::kFinalState;
    const bool backward_only = spec.role == Role::kFlow || spec.role == Role::kGradient;
    if (pass == Pass::kForward ? backward_only : forward_only) continue;
    Tensor* tensor = nullptr;
    if (forward_only || spec.role == Role::kGradient) {
      if (spec.role == Role::kGradient && !inputs.contains(spec.primal)) continue;
      TensorDesc desc = describe(call, spec);
      if (layout) desc = layout(spec.port, desc);
      tensor = &outputs.emplace(spec.port, Tensor(desc)).first->second;
    } else if (const auto found = inputs.find(spec.port); found != inputs.end()) {
      tensor = &found->second;
    } else {
      continue;
    }
    problem[spec.port] = tensor->desc;
    pack[spec.port] = tensor->storage.data();
  }
  const Dims dims = validate(problem);
  EXPECT_TRUE(reference_engine().check(problem, dims).empty());
  const auto executable = reference_engine().build(problem, dims);
  std::vector<std::byte> workspace(executable->workspace_bytes() + 1, std::byte{0xff});
  executable->execute(pack, workspace.data() + 1, nullptr);
  return outputs;
}

void expect_same_bits(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [port, tensor] : a) {
    for (std::int64_t i = 0; i < tensor.count(); ++i) {
      const double x = tensor.get(i), y = b.at(port).get(i);
      ASSERT_EQ(std::memcmp(&x, &y, sizeof x), 0)
          << name(port) << " at " << i << ": " << x << " " << y;
    }
  }
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
    Tensor& x = inputs.at(spec.primal);
    const Tensor& gradient = gradients.at(spec.port);
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
  return {.dims = make_dims(9, 2, 2, 4, 3, 2), .offsets = {0, 5, 5, 8}, .options = options};
}

TEST(Reference, TwoTokensByHand) {
  Call call{.dims = make_dims(2, 1, 1, 1, 2, 2),
            .offsets = {0, 2},
            .options = {.scale = 1.0},
            .initial_state = false};
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
      small_call({.scale = {}, .use_beta_sigmoid = true}),
      small_call(
          {.scale = {}, .use_qk_l2norm = true, .use_beta_sigmoid = true, .allow_neg_eigval = true}),
      small_call({.scale = {}, .safe_gate = true}),
      small_call({.scale = {}, .safe_gate = true}),
      small_call({.scale = {}, .gate_domain = GateDomain::kLinear}),
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
            .options = {.scale = {}, .safe_gate = true},
            .a_log = true,
            .dt_bias = true};
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
  Call call = small_call({.scale = {}, .safe_gate = true});
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

// Every axis of every tensor padded, the axes' order in memory reversed; g and beta broadcast.
TensorDesc reversed(TensorDesc desc) {
  std::int64_t stride = 2;
  for (int axis = 0; axis < desc.rank; ++axis) {
    desc.stride[axis] = stride;
    stride *= desc.shape[axis] + 1;
  }
  return desc;
}

TEST(Reference, StridesDoNotChangeBits) {
  const Call call = small_call({.scale = {}, .use_qk_l2norm = true});
  Tensors dense = make_inputs(call, 9);
  Tensors strided;
  for (auto& [port, tensor] : dense) {
    TensorDesc desc = reversed(tensor.desc);
    if (port == Port::kG) desc.stride = {0, 1};
    if (port == Port::kDO) desc.stride = {0, 0, 0};
    Tensor copy(desc);
    if (port == Port::kCuSeqlens) {
      for (std::int64_t i = 0; i < tensor.count(); ++i) {
        std::memcpy(copy.storage.data() + copy.offset(i) * 8, tensor.storage.data() + i * 8, 8);
      }
    } else {
      for (std::int64_t i = 0; i < tensor.count(); ++i) copy.set(i, tensor.get(i));
      for (std::int64_t i = 0; i < tensor.count(); ++i) tensor.set(i, copy.get(i));
    }
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
  narrow.offset = DType::kInt32;
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
  const auto expect_zero_row = [](const Tensor& tensor) {
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
  const Tensor &o = whole.at(Port::kO), &expected = second.at(Port::kO);
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
    Call call = small_call({.scale = {}, .use_qk_l2norm = true});
    call.io = io;
    call.gate = io;
    Tensors inputs = make_inputs(call, 13);
    Call wide = call;
    wide.io = wide.gate = DType::kFloat64;
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
  EXPECT_EQ(reference_engine().check(problem, {}).size(), 1u);
  problem.plan_name = "gdn_reference";
  EXPECT_TRUE(reference_engine().check(problem, {}).empty());
  problem.options.checkpoint_every_n_tokens = 64;
  const std::vector<std::string> reasons = reference_engine().check(problem, {});
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_NE(reasons[0].find("checkpoint_every_n_tokens"), std::string::npos);
  EXPECT_NE(reasons[0].find("64"), std::string::npos);
  problem.options.has_state_indices = problem.options.overwrite_initial_state = true;
  EXPECT_EQ(reference_engine().check(problem, {}).size(), 3u);
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
