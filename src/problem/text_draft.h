// A problem on its way from a string: the tensors that take part, their shapes and dtypes, where
// the string does not say otherwise.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "deltaworks/problem.h"
#include "problem/ports.h"
#include "problem/text_words.h"

namespace deltaworks::text {

// Keeps every stride and byte count of a dense tensor far below 2^63.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 48;

struct Draft {
  Problem problem;
  Dims dims;
  std::array<bool, kPortCount> other{};  // inputs that have the second of their port's shapes
  Device device;
};

inline const PortSpec* find_spec(Op op, Port port) {
  for (const PortSpec& spec : ports(op)) {
    if (spec.port == port) return &spec;
  }
  return nullptr;
}
// Of a port that the operation has.
inline const PortSpec& port_spec(Op op, Port port) { return *find_spec(op, port); }

inline DType default_dtype(const Problem& p, Kind kind) {
  if (kind == Kind::kOffset || kind == Kind::kIndex) return DType::kInt32;
  const DType io = p[Port::kQ].dtype;
  return kind == Kind::kIo || io == DType::kFloat64 ? io : DType::kFloat32;
}

// Of a tensor that has no option to choose its dtype.
inline DType implied_dtype(const Problem& p, const PortSpec& spec) {
  if (spec.kind == Kind::kState && p.has(Port::kInitialState)) return p[Port::kInitialState].dtype;
  return spec.role == Role::kGradient && p.has(spec.primal) ? p[spec.primal].dtype
                                                            : default_dtype(p, spec.kind);
}

// Whether a tensor takes part where no +NAME or -NAME says so. Inputs come first among the ports,
// so that those that gradients depend on are known.
inline bool takes_part(const Problem& p, const PortSpec& spec) {
  const bool forward = p.pass == Pass::kForward;
  switch (spec.role) {
    case Role::kInput:
      return true;
    case Role::kOptional:  // their options say it
      return p.has(spec.port);
    case Role::kOutput:
      return forward;
    case Role::kFinalState:
      return forward && wants_final_state(p.options);
    case Role::kFlow:
      return !forward && (spec.kind != Kind::kState || p.options.output_final_state);
    case Role::kGradient:
      return !forward && p.has(spec.primal);
  }
  return false;
}

inline void check_size(const PortSpec& spec, std::span<const std::int64_t> shape) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) {
    if (extent > kMaxElements / elements) {
      std::string text;
      for (const std::int64_t each : shape) text += cat(text.empty() ? "" : ", ", each);
      fail("tensors of at most ", kMaxElements, " elements, got ", spec.name, " [", text, "]");
    }
    elements *= std::max<std::int64_t>(extent, 1);
  }
}

inline std::span<const std::int64_t> shape_of(const TensorDesc& tensor) {
  return std::span(tensor.shape).first(static_cast<std::size_t>(tensor.rank));
}

// Adds a row-major tensor to a draft.
inline void add(Draft& draft, const PortSpec& spec, DType dtype,
                std::optional<std::int64_t> rows = {}) {
  const Shape& axes = draft.other[index(spec.primal)] ? spec.other : spec;
  std::array<std::int64_t, kMaxRank> extents{};
  for (int axis = 0; axis < axes.rank; ++axis) {
    extents[axis] = extent(draft.dims, axes.axes[axis]);
  }
  if (rows) extents[0] = *rows;
  const auto shape = std::span(extents).first(static_cast<std::size_t>(axes.rank));
  check_size(spec, shape);
  draft.problem[spec.port] = contiguous(dtype, shape);
}

}  // namespace deltaworks::text
