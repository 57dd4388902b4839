// What each tensor of an operation must look like: a table, one row a port. Validation, the C
// interface and engines read it; nothing else knows shapes.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "deltaworks/problem.h"

namespace deltaworks {

// A symbolic axis of a port's shape.
enum class Axis : std::int8_t {
  kT,
  kH,
  kHK,
  kHV,
  kHO,
  kK,
  kV,
  kN,
  kNPlus1,
  kSteps,    // T n, sub-steps minor
  kSubSteps  // n
};

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

struct Shape {
  std::int8_t rank = 0;
  Axis axes[kMaxRank] = {};
};

struct PortSpec : Shape {
  Port port;
  const char* name;  // as in the Python signature
  Role role;
  Kind kind;
  Shape other;  // one that will do as well, of another rank; rank 0: none
  Port primal;  // of a gradient: the tensor whose shape and dtype it has; else the port itself

  // The shape for a tensor of this rank; the first one where none has it.
  const Shape& shape(int of_rank) const {
    return of_rank != 0 && other.rank == of_rank ? other : *this;
  }
};

// Options that only some operations take.
enum class Taken : std::uint8_t {
  kScale = 1,
  kDelta = 2,        // l2norm, beta's sigmoid and sign, safe_gate, gate_domain
  kChannelGate = 4,  // gate, gate_lower_bound
  kBetaGuard = 8,
  kHouseholder = 16,
  kStep = 32,  // dt_softplus, dt_min, dt_max
};

struct OpSpec {
  const char* name;  // the operator, as in error texts
  std::uint8_t options;
  std::span<const PortSpec> ports;  // inputs, outputs, flows, gradients in the order of their ports

  bool takes(Taken option) const { return options & static_cast<std::uint8_t>(option); }
};
const OpSpec& spec_of(Op op);

inline std::span<const PortSpec> ports(Op op) { return spec_of(op).ports; }
inline const char* op_name(Op op) { return spec_of(op).name; }
// A port's name in an operation; its general one where the operation has no such port.
const char* name(Op op, Port port);
const char* name(Op op, Axis axis);
// Those of the rows that share q's dtype: "q k v", or "C B x".
std::string io_names(Op op);
std::int64_t extent(const Dims& dims, Axis axis);

// Where the forward puts final states; they are written if that tensor is there.
inline Port final_state_port(const Options& options) {
  return options.overwrite_initial_state ? Port::kInitialState : Port::kFinalState;
}
// Whether the options ask for a final_state of its own.
inline bool wants_final_state(const Options& options) {
  return options.output_final_state && !options.overwrite_initial_state;
}

}  // namespace deltaworks
