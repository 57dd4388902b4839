// See outputs.h. On the path of every operator call: one allocation, no text.
#include "problem/outputs.h"

#include <algorithm>
#include <span>

#include "problem/ports.h"

namespace deltaworks {
namespace {

// An extent, the axis counted from the front or, if negative, from the back.
std::int64_t extent_of(const TensorDesc& tensor, int axis) {
  const int rank = std::min(tensor.rank, kMaxRank);
  const int at = axis < 0 ? rank + axis : axis;
  return at >= 0 && at < rank ? std::max<std::int64_t>(tensor.shape[at], 0) : 0;
}

// The dimensions as far as the inputs tell them.
Dims assumed_dims(const Problem& p) {
  const TensorDesc &q = p[Port::kQ], &v = p[Port::kV];
  return {.T = extent_of(q, 0),
          .N = std::max<std::int64_t>(extent_of(p[Port::kCuSeqlens], 0) - 1, 0),
          .K = extent_of(q, 2),
          .V = extent_of(v, -1),
          .H = extent_of(q, 1),
          .HK = extent_of(p[Port::kK], -2),
          .HV = extent_of(v, -2),
          .HO = std::max(extent_of(q, 1), extent_of(v, -2)),
          .n = 1};
}

DType state_dtype(const Problem& p) {
  if (p.has(Port::kInitialState)) return p[Port::kInitialState].dtype;
  return p[Port::kQ].dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

}  // namespace

std::vector<OutputDesc> describe_outputs(const Problem& problem, std::uint64_t wanted) {
  const bool forward = problem.pass == Pass::kForward;
  const Dims dims = assumed_dims(problem);
  const Device device = problem[Port::kQ].device;
  std::vector<OutputDesc> outputs;
  outputs.reserve(kPortCount);
  for (const PortSpec& spec : ports(problem.op)) {
    if (forward && (spec.role == Role::kOutput ||
                    (spec.role == Role::kFinalState && wants_final_state(problem.options)))) {
      std::int64_t shape[kMaxRank];
      for (int axis = 0; axis < spec.rank; ++axis) shape[axis] = extent(dims, spec.axes[axis]);
      const DType dtype =
          spec.kind == Kind::kState ? state_dtype(problem) : problem[Port::kQ].dtype;
      outputs.push_back({spec.port, contiguous(dtype, {shape, shape + spec.rank}, device)});
    } else if (!forward && spec.role == Role::kGradient && (wanted >> index(spec.port) & 1)) {
      const TensorDesc& primal = problem[spec.primal];
      if (!primal.present()) continue;
      TensorDesc desc = contiguous(
          primal.dtype, std::span(primal.shape).first(std::min(primal.rank, kMaxRank)), device);
      desc.rank = primal.rank;
      outputs.push_back({spec.port, desc});
    }
  }
  return outputs;
}

}  // namespace deltaworks
