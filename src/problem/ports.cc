// The tables of ports.h.
#include "problem/ports.h"

namespace deltaworks {
namespace {

using enum Axis;

constexpr PortSpec kGatedDeltaNetPorts[] = {
    {Port::kQ, Role::kInput, Kind::kIo, 3, {kT, kH, kK}, Port::kQ},
    {Port::kK, Role::kInput, Kind::kIo, 3, {kT, kHK, kK}, Port::kK},
    {Port::kV, Role::kInput, Kind::kIo, 3, {kT, kHV, kV}, Port::kV},
    {Port::kG, Role::kInput, Kind::kGate, 2, {kT, kHO}, Port::kG},
    {Port::kBeta, Role::kInput, Kind::kBeta, 2, {kT, kHO}, Port::kBeta},
    {Port::kCuSeqlens, Role::kInput, Kind::kOffset, 1, {kNPlus1}, Port::kCuSeqlens},
    {Port::kALog, Role::kOptional, Kind::kParam, 1, {kHO}, Port::kALog},
    {Port::kDtBias, Role::kOptional, Kind::kParam, 1, {kHO}, Port::kDtBias},
    {Port::kInitialState, Role::kOptional, Kind::kState, 4, {kN, kHO, kV, kK}, Port::kInitialState},
    {Port::kStateIndices, Role::kOptional, Kind::kIndex, 1, {kN}, Port::kStateIndices},
    {Port::kO, Role::kOutput, Kind::kIo, 3, {kT, kHO, kV}, Port::kO},
    {Port::kFinalState, Role::kFinalState, Kind::kState, 4, {kN, kHO, kV, kK}, Port::kFinalState},
    {Port::kDO, Role::kFlow, Kind::kIo, 3, {kT, kHO, kV}, Port::kO},
    {Port::kDFinalState, Role::kFlow, Kind::kState, 4, {kN, kHO, kV, kK}, Port::kFinalState},
    {Port::kDQ, Role::kGradient, Kind::kIo, 3, {kT, kH, kK}, Port::kQ},
    {Port::kDK, Role::kGradient, Kind::kIo, 3, {kT, kHK, kK}, Port::kK},
    {Port::kDV, Role::kGradient, Kind::kIo, 3, {kT, kHV, kV}, Port::kV},
    {Port::kDG, Role::kGradient, Kind::kGate, 2, {kT, kHO}, Port::kG},
    {Port::kDBeta, Role::kGradient, Kind::kBeta, 2, {kT, kHO}, Port::kBeta},
    {Port::kDALog, Role::kGradient, Kind::kParam, 1, {kHO}, Port::kALog},
    {Port::kDDtBias, Role::kGradient, Kind::kParam, 1, {kHO}, Port::kDtBias},
    {Port::kDInitialState,
     Role::kGradient,
     Kind::kState,
     4,
     {kN, kHO, kV, kK},
     Port::kInitialState},
};

}  // namespace

std::span<const PortSpec> ports(Op op) {
  switch (op) {
    case Op::kGatedDeltaNet:
      return kGatedDeltaNetPorts;
  }
  return {};
}

const char* op_name(Op op) {
  switch (op) {
    case Op::kGatedDeltaNet:
      return "gated_delta_net";
  }
  return "";
}

const char* name(Axis axis) {
  static constexpr const char* kNames[] = {"T", "H", "HK", "HV", "HO", "K", "V", "N", "N+1"};
  return kNames[static_cast<int>(axis)];
}

std::int64_t extent(const Dims& dims, Axis axis) {
  const std::int64_t extents[] = {dims.T, dims.H, dims.HK, dims.HV,   dims.HO,
                                  dims.K, dims.V, dims.N,  dims.N + 1};
  return extents[static_cast<int>(axis)];
}

}  // namespace deltaworks
