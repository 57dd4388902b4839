// What each tensor of an operation must look like: a table, one row a port. Validation, the C
// interface and engines read it; nothing else knows shapes.
#pragma once

#include <cstdint>
#include <span>

#include "deltaworks/problem.h"

namespace deltaworks {

// A symbolic axis of a port's shape.
enum class Axis : std::int8_t { kT, kH, kHK, kHV, kHO, kK, kV, kN, kNPlus1 };
const char* name(Axis axis);
std::int64_t extent(const Dims& dims, Axis axis);

// Which dtypes a port takes.
enum class Kind : std::int8_t {
  kIo,      // bf16, fp16, fp32 (fp64: reference); uniform in a call
  kGate,    // fp32, bf16, fp16
  kBeta,    // fp32 or the io dtype
  kParam,   // fp32, bf16, fp16
  kState,   // fp32, bf16, fp16; one a call
  kOffset,  // int32, int64
  kIndex,   // int32
};

enum class Role : std::int8_t {
  kInput,       // must be there, in both passes
  kOptional,    // input that may be absent
  kOutput,      // of the forward
  kFinalState,  // of the forward, if asked for and not in place of the initial state
  kFlow,        // gradient that flows into the backward; absent: zeros
  kGradient,    // of the backward, written if present
};

struct PortSpec {
  Port port;
  Role role;
  Kind kind;
  std::int8_t rank;
  Axis axes[kMaxRank];
  Port primal;  // of a gradient: the tensor whose shape and dtype it has; else the port itself
};

std::span<const PortSpec> ports(Op op);

// Where the forward puts final states; they are written if that tensor is there.
inline Port final_state_port(const Options& options) {
  return options.overwrite_initial_state ? Port::kInitialState : Port::kFinalState;
}
// Whether the options ask for a final_state of its own.
inline bool wants_final_state(const Options& options) {
  return options.output_final_state && !options.overwrite_initial_state;
}

const char* op_name(Op op);

}  // namespace deltaworks
