// The tables of ports.h. An operation lists its inputs; outputs, flows and gradients follow.
#include "problem/ports.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "core/strings.h"

namespace deltaworks {
namespace {

using enum Axis;
using enum Kind;

// An input, and its gradient if it has one.
struct Input {
  Port port;
  const char* name;
  Role role;
  Kind kind;
  Shape shape, other = {};
  Port gradient = Port::kQ;  // kQ: none
  const char* gradient_name = nullptr;
};
constexpr Role kRequired = Role::kInput, kOptional = Role::kOptional;

constexpr Shape kStates{4, {kN, kHO, kV, kK}};
constexpr Shape kHeads{1, {kHO}}, kTokens{2, {kT, kHO}}, kRow{3, {kT, kHO, kV}};
constexpr Shape kChannels{3, {kT, kHO, kK}};

// What the delta rules share.
constexpr Input kQuery{Port::kQ, "q", kRequired, kIo, {3, {kT, kH, kK}}, {}, Port::kDQ, "dq"};
constexpr Input kKey{Port::kK, "k", kRequired, kIo, {3, {kT, kHK, kK}}, {}, Port::kDK, "dk"};
constexpr Input kValue{Port::kV, "v", kRequired, kIo, {3, {kT, kHV, kV}}, {}, Port::kDV, "dv"};
constexpr Input gate(Shape shape) {
  return {Port::kG, "g", kRequired, kGate, shape, {}, Port::kDG, "dg"};
}
constexpr Input beta(Shape shape, Shape other = {}) {
  return {Port::kBeta, "beta", kRequired, kBeta, shape, other, Port::kDBeta, "dbeta"};
}
constexpr Input kOffsets{Port::kCuSeqlens, "cu_seqlens", kRequired, kOffset, {1, {kNPlus1}}};
constexpr Input kALog{Port::kALog, "a_log", kOptional, kParam, kHeads, {}, Port::kDALog, "da_log"};
constexpr Input bias(Shape shape) {
  return {Port::kDtBias, "dt_bias", kOptional, kParam, shape, {}, Port::kDDtBias, "ddt_bias"};
}
constexpr Input kInitial{Port::kInitialState,  "initial_state",  kOptional, kState, kStates, {},
                         Port::kDInitialState, "d_initial_state"};
constexpr Input kIndices{Port::kStateIndices, "state_indices", kOptional, kIndex, {1, {kN}}};

constexpr std::array kGatedDeltaNetInputs = {kQuery,        kKey,     kValue, gate(kTokens),
                                             beta(kTokens), kOffsets, kALog,  bias(kHeads),
                                             kInitial,      kIndices};
constexpr std::array kKimiDeltaAttentionInputs = {
    kQuery,        kKey,     kValue, gate(kChannels),
    beta(kTokens), kOffsets, kALog,  bias({2, {kHO, kK}}),
    kInitial,      kIndices};
constexpr std::array kGatedDeltaNetV2Inputs = {
    kQuery,
    kKey,
    kValue,
    gate(kChannels),
    beta(kChannels),
    Input{Port::kW, "w", kRequired, kBeta, kRow, {}, Port::kDW, "dw"},
    kOffsets,
    kALog,
    bias({2, {kHO, kK}}),
    kInitial,
    kIndices};
constexpr std::array kGatedDeltaProductInputs = {
    kQuery,
    Input{Port::kK,
          "k",
          kRequired,
          kIo,
          {3, {kSteps, kHK, kK}},
          {4, {kT, kSubSteps, kHK, kK}},
          Port::kDK,
          "dk"},
    Input{Port::kV,
          "v",
          kRequired,
          kIo,
          {3, {kSteps, kHV, kV}},
          {4, {kT, kSubSteps, kHV, kV}},
          Port::kDV,
          "dv"},
    gate(kTokens),
    beta({2, {kSteps, kHO}}, {3, {kT, kSubSteps, kHO}}),
    kOffsets,
    kALog,
    bias(kHeads),
    kInitial,
    kIndices};
constexpr std::array kMamba2Inputs = {
    Input{Port::kX, "x", kRequired, kIo, {3, {kT, kHV, kV}}, {}, Port::kDX, "dx"},
    Input{Port::kDt, "dt", kRequired, kGate, kTokens, {}, Port::kDDt, "ddt"},
    Input{Port::kA, "A", kRequired, kParam, kHeads, {}, Port::kDA, "dA"},
    Input{Port::kB, "B", kRequired, kIo, {3, {kT, kHK, kK}}, {}, Port::kDB, "dB"},
    Input{Port::kC, "C", kRequired, kIo, {3, {kT, kH, kK}}, {}, Port::kDC, "dC"},
    kOffsets,
    Input{Port::kD, "D", kOptional, kParam, kHeads, {2, {kHO, kV}}, Port::kDD, "dD"},
    bias(kHeads),
    Input{Port::kZ, "z", kOptional, kIo, kRow, {}, Port::kDZ, "dz"},
    kInitial,
    kIndices};

template <std::size_t kInputs>
constexpr std::size_t count(const std::array<Input, kInputs>& inputs) {
  std::size_t rows = kInputs + 4;
  for (const Input& x : inputs) rows += x.gradient_name != nullptr;
  return rows;
}

template <const auto& kInputs>
constexpr auto table(const char* output, const char* flow) {
  std::array<PortSpec, count(kInputs)> rows{};
  auto next = rows.begin();
  const auto add = [&](Port port, const char* name, Role role, Kind kind, Shape shape, Shape other,
                       Port primal) { *next++ = {shape, port, name, role, kind, other, primal}; };
  for (const Input& x : kInputs) add(x.port, x.name, x.role, x.kind, x.shape, x.other, x.port);
  add(Port::kO, output, Role::kOutput, kIo, kRow, {}, Port::kO);
  add(Port::kFinalState, "final_state", Role::kFinalState, kState, kStates, {}, Port::kFinalState);
  add(Port::kDO, flow, Role::kFlow, kIo, kRow, {}, Port::kO);
  add(Port::kDFinalState, "d_final_state", Role::kFlow, kState, kStates, {}, Port::kFinalState);
  const auto gradients = next;
  for (const Input& x : kInputs) {
    if (x.gradient_name == nullptr) continue;
    add(x.gradient, x.gradient_name, Role::kGradient, x.kind, x.shape, x.other, x.port);
  }
  std::sort(gradients, rows.end(),
            [](const PortSpec& a, const PortSpec& b) { return a.port < b.port; });
  return rows;
}

constexpr auto kGatedDeltaNetPorts = table<kGatedDeltaNetInputs>("o", "dO");
constexpr auto kKimiDeltaAttentionPorts = table<kKimiDeltaAttentionInputs>("o", "dO");
constexpr auto kGatedDeltaNetV2Ports = table<kGatedDeltaNetV2Inputs>("o", "dO");
constexpr auto kGatedDeltaProductPorts = table<kGatedDeltaProductInputs>("o", "dO");
constexpr auto kMamba2Ports = table<kMamba2Inputs>("y", "dy");

template <class... Each>
constexpr std::uint8_t options(Each... taken) {
  return static_cast<std::uint8_t>((static_cast<unsigned>(taken) | ...));
}
using enum Taken;
constexpr OpSpec kOps[kOpCount] = {
    // by number
    {"gated_delta_net", options(kScale, kDelta), kGatedDeltaNetPorts},
    {"kimi_delta_attention", options(kScale, kDelta, kChannelGate), kKimiDeltaAttentionPorts},
    {"gated_delta_net_v2", options(kScale, kDelta, kChannelGate, kBetaGuard),
     kGatedDeltaNetV2Ports},
    {"gated_delta_product", options(kScale, kDelta, kHouseholder), kGatedDeltaProductPorts},
    {"mamba2", options(kStep), kMamba2Ports},
};

}  // namespace

const OpSpec& spec_of(Op op) { return kOps[static_cast<int>(op)]; }

const char* name(Op op, Port port) {
  for (const PortSpec& spec : ports(op)) {
    if (spec.port == port) return spec.name;
  }
  return name(port);
}

std::string io_names(Op op) {
  return cat(name(op, Port::kQ), " ", name(op, Port::kK), " ", name(op, Port::kV));
}
const char* name(Op op, Axis axis) {
  static constexpr const char* kNames[] = {"T", "H", "HK",  "HV",  "HO", "K",
                                           "V", "N", "N+1", "T*n", "n"};
  static constexpr const char* kMamba2Names[] = {"T", "G", "G",   "H",   "H", "N_state",
                                                 "P", "N", "N+1", "T*n", "n"};
  return (op == Op::kMamba2 ? kMamba2Names : kNames)[static_cast<int>(axis)];
}

std::int64_t extent(const Dims& dims, Axis axis) {
  const std::int64_t extents[] = {dims.T, dims.H, dims.HK,    dims.HV,         dims.HO, dims.K,
                                  dims.V, dims.N, dims.N + 1, dims.T * dims.n, dims.n};
  return extents[static_cast<int>(axis)];
}

}  // namespace deltaworks
