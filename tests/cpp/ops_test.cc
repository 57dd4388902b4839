// The calls of ops.h: what they alone refuse, and each operation against a loop of its definition.
#include "deltaworks/ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "problem/ports.h"

namespace deltaworks {
namespace {

// The workspace of the one-call functions is the host's: no kernel may get it.
TEST(Ops, TensorsOnACard) {
  float x = 0;
  std::int64_t offsets[] = {0, 1};
  GatedDeltaNetForward call{.q = view(&x, {1, 1, 1}),
                            .k = view(&x, {1, 1, 1}),
                            .v = view(&x, {1, 1, 1}),
                            .g = view(&x, {1, 1}),
                            .beta = view(&x, {1, 1}),
                            .cu_seqlens = view(offsets, {2}),
                            .o = view(&x, {1, 1, 1})};
  for (Tensor* tensor :
       {&call.q, &call.k, &call.v, &call.g, &call.beta, &call.cu_seqlens, &call.o}) {
    tensor->desc.device = {DeviceType::kCuda, 0};
  }
  Workspace workspace;
  try {
    gated_delta_net_forward(call, workspace);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kInvalidValue);
    EXPECT_STREQ(error.what(),
                 "a Workspace is memory of the host: find_plan and Plan::execute take a workspace "
                 "in the memory of the tensors");
  }
}

#ifdef DELTAWORKS_REFERENCE
constexpr std::int64_t T = 3, K = 2, V = 2;
constexpr std::int32_t kOffsets[] = {0, T};

std::vector<double> wave(std::int64_t count, double middle, double height) {
  std::vector<double> x(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = middle + height * std::sin(0.7 * static_cast<double>(i) + middle);
  }
  return x;
}

// One head's state [V, K], written from the definition: S <- D S, S <- S + k (w - S^T e)^T.
struct State {
  double S[V][K] = {};

  void step(const double* decay, const double* k, const double* e, const double* w) {
    for (auto& row : S) {
      for (std::int64_t i = 0; i < K; ++i) row[i] *= decay[i];
    }
    for (std::int64_t j = 0; j < V; ++j) {
      double erased = 0;
      for (std::int64_t i = 0; i < K; ++i) erased += S[j][i] * e[i];
      for (std::int64_t i = 0; i < K; ++i) S[j][i] += k[i] * (w[j] - erased);
    }
  }
  double read(const double* q, std::int64_t j) const { return S[j][0] * q[0] + S[j][1] * q[1]; }
};

void expect_rows(const std::vector<double>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], expected[i], 1e-12) << i;
    EXPECT_GT(std::abs(expected[i]), 1e-4) << "nothing is tested";
  }
}

// Sum of all outputs, by central differences in one input element, against its gradient.
template <class Forward>
void expect_gradient(std::vector<double>& input, const std::vector<double>& gradient,
                     const std::vector<double>& o, Forward&& forward) {
  constexpr double kStep = 1e-5;
  for (std::size_t i = 0; i < input.size(); ++i) {
    const double x = input[i];
    double sums[2];
    for (const int side : {0, 1}) {
      input[i] = x + (side == 0 ? -kStep : kStep);
      forward();
      sums[side] = std::accumulate(o.begin(), o.end(), 0.0);
    }
    input[i] = x;
    EXPECT_NEAR(gradient[i], (sums[1] - sums[0]) / (2 * kStep), 1e-7) << i;
  }
}

// The two operations that share a struct with gated_delta_net: a gate a channel, and n steps.
template <class Call>
struct Delta {
  static constexpr bool kProduct = Call::op == Op::kGatedDeltaProduct;
  static constexpr std::int64_t n = kProduct ? 2 : 1;
  static constexpr bool kChannels = Call::op == Op::kKimiDeltaAttention;
  std::vector<double> q = wave(T * K, 0.1, 0.5), k = wave(T * n * K, 0.2, 0.5),
                      v = wave(T * n * V, 0.3, 1), g = wave(kChannels ? T * K : T, -0.5, 0.3),
                      beta = wave(T * n, 0.5, 0.3), o = wave(T * V, 9, 0);

  Call call(const char* plan) {
    return {.q = view(q.data(), {T, 1, K}),
            .k = view(k.data(), {T * n, 1, K}),
            .v = view(v.data(), {T * n, 1, V}),
            .g = kChannels ? view(g.data(), {T, 1, K}) : view(g.data(), {T, 1}),
            .beta = view(beta.data(), {T * n, 1}),
            .cu_seqlens = view(kOffsets, {2}),
            .o = view(o.data(), {T, 1, V}),
            .options = {.scale = 0.5, .num_householder = kProduct ? n : 0},
            .plan_name = plan};
  }

  std::vector<double> expected() const {
    std::vector<double> rows;
    State state;
    for (std::int64_t t = 0; t < T; ++t) {
      for (std::int64_t s = t * n; s < (t + 1) * n; ++s) {
        double decay[K], e[K], w[V];
        for (std::int64_t i = 0; i < K; ++i) {
          decay[i] = s > t * n ? 1 : std::exp(kChannels ? g[t * K + i] : g[t]);
          e[i] = beta[s] * k[s * K + i];
          w[i] = beta[s] * v[s * V + i];
        }
        state.step(decay, &k[s * K], e, w);
      }
      for (std::int64_t j = 0; j < V; ++j) rows.push_back(0.5 * state.read(&q[t * K], j));
    }
    return rows;
  }
};

TEST(Ops, KimiDeltaAttention) {
  Delta<KimiDeltaAttentionForward> data;
  const KimiDeltaAttentionForward call = data.call("kda_reference");
  Workspace workspace;
  const auto forward = [&] { kimi_delta_attention_forward(call, workspace); };
  forward();
  expect_rows(data.o, data.expected());
  const std::vector<double> ones(T * V, 1.0);
  std::vector<double> dg(T * K);
  kimi_delta_attention_backward({.q = call.q,
                                 .k = call.k,
                                 .v = call.v,
                                 .g = call.g,
                                 .beta = call.beta,
                                 .cu_seqlens = call.cu_seqlens,
                                 .dO = view(ones.data(), {T, 1, V}),
                                 .dg = view(dg.data(), {T, 1, K}),
                                 .options = call.options,
                                 .plan_name = call.plan_name},
                                workspace);
  expect_gradient(data.g, dg, data.o, forward);
}

TEST(Ops, GatedDeltaProduct) {
  Delta<GatedDeltaProductForward> data;
  const GatedDeltaProductForward call = data.call("gdp_reference");
  Workspace workspace;
  const auto forward = [&] { gated_delta_product_forward(call, workspace); };
  forward();
  expect_rows(data.o, data.expected());
  const std::vector<double> whole = data.o, ones(T * V, 1.0);
  GatedDeltaProductForward token_major = call;
  token_major.k = view(data.k.data(), {T, 2, 1, K});
  token_major.beta = view(data.beta.data(), {T, 2, 1});
  gated_delta_product_forward(token_major, workspace);
  EXPECT_EQ(data.o, whole);
  std::vector<double> dk(T * 2 * K);
  gated_delta_product_backward({.q = call.q,
                                .k = call.k,
                                .v = call.v,
                                .g = call.g,
                                .beta = call.beta,
                                .cu_seqlens = call.cu_seqlens,
                                .dO = view(ones.data(), {T, 1, V}),
                                .dk = view(dk.data(), {T * 2, 1, K}),
                                .options = call.options,
                                .plan_name = call.plan_name},
                               workspace);
  expect_gradient(data.k, dk, data.o, forward);
}

TEST(Ops, GatedDeltaNetV2) {
  std::vector<double> q = wave(T * K, 0.1, 0.5), k = wave(T * K, 0.2, 0.5), v = wave(T * V, 0.3, 1);
  std::vector<double> g = wave(T * K, -0.5, 0.3), beta = wave(T * K, 0.5, 0.3),
                      w = wave(T * V, 0.6, 0.3), o(T * V), dw(T * V);
  const GatedDeltaNetV2Forward call{.q = view(q.data(), {T, 1, K}),
                                    .k = view(k.data(), {T, 1, K}),
                                    .v = view(v.data(), {T, 1, V}),
                                    .g = view(g.data(), {T, 1, K}),
                                    .beta = view(beta.data(), {T, 1, K}),
                                    .w = view(w.data(), {T, 1, V}),
                                    .cu_seqlens = view(kOffsets, {2}),
                                    .o = view(o.data(), {T, 1, V}),
                                    .options = {.scale = 1},
                                    .plan_name = "gdn2_reference"};
  Workspace workspace;
  const auto forward = [&] { gated_delta_net_v2_forward(call, workspace); };
  forward();
  std::vector<double> expected;
  State state;
  for (std::int64_t t = 0; t < T; ++t) {
    double decay[K], e[K], write[V];
    for (std::int64_t i = 0; i < K; ++i) {
      decay[i] = std::exp(g[t * K + i]);
      e[i] = beta[t * K + i] * k[t * K + i];
      write[i] = w[t * V + i] * v[t * V + i];
    }
    state.step(decay, &k[t * K], e, write);
    for (std::int64_t j = 0; j < V; ++j) expected.push_back(state.read(&q[t * K], j));
  }
  expect_rows(o, expected);
  const std::vector<double> ones(T * V, 1.0);
  gated_delta_net_v2_backward({.q = call.q,
                               .k = call.k,
                               .v = call.v,
                               .g = call.g,
                               .beta = call.beta,
                               .w = call.w,
                               .cu_seqlens = call.cu_seqlens,
                               .dO = view(ones.data(), {T, 1, V}),
                               .dw = view(dw.data(), {T, 1, V}),
                               .options = call.options,
                               .plan_name = call.plan_name},
                              workspace);
  expect_gradient(w, dw, o, forward);
}

TEST(Ops, Mamba2) {
  std::vector<double> x = wave(T * V, 0.3, 1), dt = wave(T, 0.4, 0.3), A = {-0.7}, D = {0.4},
                      dt_bias = {0.2}, z = wave(T * V, 0.5, 0.6), B = wave(T * K, 0.2, 0.5),
                      C = wave(T * K, 0.1, 0.5), y(T * V), next(V * K), ddt(T);
  const Mamba2Forward call{.x = view(x.data(), {T, 1, V}),
                           .dt = view(dt.data(), {T, 1}),
                           .A = view(A.data(), {1}),
                           .B = view(B.data(), {T, 1, K}),
                           .C = view(C.data(), {T, 1, K}),
                           .cu_seqlens = view(kOffsets, {2}),
                           .D = view(D.data(), {1}),
                           .dt_bias = view(dt_bias.data(), {1}),
                           .z = view(z.data(), {T, 1, V}),
                           .y = view(y.data(), {T, 1, V}),
                           .final_state = view(next.data(), {1, 1, V, K}),
                           .options = {.dt_max = 5},
                           .plan_name = "mamba2_reference"};
  Workspace workspace;
  const auto forward = [&] { mamba2_forward(call, workspace); };
  forward();
  std::vector<double> expected;
  State state;
  for (std::int64_t t = 0; t < T; ++t) {
    const double step = std::log1p(std::exp(dt[t] + dt_bias[0])), decay = std::exp(A[0] * step);
    const double decays[K] = {decay, decay}, nothing[K] = {}, *row = &x[t * V];
    const double write[V] = {step * row[0], step * row[1]};
    state.step(decays, &B[t * K], nothing, write);
    for (std::int64_t j = 0; j < V; ++j) {
      const double gate = z[t * V + j] / (1 + std::exp(-z[t * V + j]));
      expected.push_back((state.read(&C[t * K], j) + D[0] * row[j]) * gate);
    }
  }
  expect_rows(y, expected);
  for (std::int64_t i = 0; i < V * K; ++i) EXPECT_NEAR(next[i], state.S[i / K][i % K], 1e-12);
  const std::vector<double> ones(T * V, 1.0);
  mamba2_backward({.x = call.x,
                   .dt = call.dt,
                   .A = call.A,
                   .B = call.B,
                   .C = call.C,
                   .cu_seqlens = call.cu_seqlens,
                   .D = call.D,
                   .dt_bias = call.dt_bias,
                   .z = call.z,
                   .dy = view(ones.data(), {T, 1, V}),
                   .ddt = view(ddt.data(), {T, 1}),
                   .options = call.options,
                   .plan_name = call.plan_name},
                  workspace);
  expect_gradient(dt, ddt, y, forward);
}
#endif

// Every member of a call is the port that its name says, and no port is left out.
template <class Call>
void expect_every_port() {
  Call call;
  float memory[kPortCount];
  std::set<Port> seen;
  detail::for_tensors(call, [&](Port port, const Tensor& member) {
    EXPECT_TRUE(seen.insert(port).second) << name(Call::op, port);
    const_cast<Tensor&>(member) = view(&memory[index(port)], {index(port) + 1});
  });
  const Problem problem = call.problem();
  const Pack pack = call.pack();
  EXPECT_EQ(problem.op, Call::op);
  EXPECT_EQ(problem.pass, Call::pass);
  for (const PortSpec& spec : ports(Call::op)) {
    const bool backward = spec.role == Role::kFlow || spec.role == Role::kGradient;
    const bool forward = spec.role == Role::kOutput || spec.role == Role::kFinalState ||
                         spec.port == Port::kStateIndices;
    const bool belongs = Call::pass == Pass::kForward ? !backward : !forward;
    EXPECT_EQ(seen.contains(spec.port), belongs) << spec.name;
    EXPECT_EQ(problem.has(spec.port), belongs) << spec.name;
    EXPECT_EQ(pack[spec.port], belongs ? &memory[index(spec.port)] : nullptr) << spec.name;
    seen.erase(spec.port);
  }
  EXPECT_TRUE(seen.empty());
}

TEST(Ops, EveryPort) {
  expect_every_port<GatedDeltaNetForward>();
  expect_every_port<GatedDeltaNetBackward>();
  expect_every_port<KimiDeltaAttentionForward>();
  expect_every_port<KimiDeltaAttentionBackward>();
  expect_every_port<GatedDeltaNetV2Forward>();
  expect_every_port<GatedDeltaNetV2Backward>();
  expect_every_port<GatedDeltaProductForward>();
  expect_every_port<GatedDeltaProductBackward>();
  expect_every_port<Mamba2Forward>();
  expect_every_port<Mamba2Backward>();
}

}  // namespace
}  // namespace deltaworks
