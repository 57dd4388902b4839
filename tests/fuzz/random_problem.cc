// See random_problem.h.
#include "random_problem.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>

#include "problem/ports.h"
#include "problem/text_words.h"

namespace deltaworks::fuzz {
namespace {

constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16, kF16 = DType::kFloat16,
                kF64 = DType::kFloat64;

// Strides of any kind for the same shape: any order of the axes in memory, gaps between rows,
// elements apart, axes that run backwards, and of inputs axes that repeat one element.
void relay(TensorDesc& tensor, bool written, Random& random) {
  const int rank = tensor.rank;
  int order[kMaxRank];  // of the axes in memory, innermost first
  std::iota(order, order + rank, 0);
  std::reverse(order, order + rank);
  if (random.chance(0.4)) {
    for (int i = rank - 1; i > 0; --i) std::swap(order[i], order[random.between(0, i)]);
  }
  const bool gaps = random.chance(0.5);
  std::int64_t stride = gaps ? random.between(1, 3) : 1;
  for (int i = 0; i < rank; ++i) {
    const int axis = order[i];
    tensor.stride[axis] = stride;
    stride *= std::max<std::int64_t>(tensor.shape[axis], 1);
    if (gaps) stride += random.between(0, 5);
  }
  for (int axis = 0; axis < rank; ++axis) {
    if (random.chance(0.1)) tensor.stride[axis] = -tensor.stride[axis];
    if (!written && random.chance(0.15)) tensor.stride[axis] = 0;
    // The stride of an axis of one element says nothing.
    if (tensor.shape[axis] == 1 && random.chance(0.3)) {
      tensor.stride[axis] = random.pick<std::int64_t>({0, -1, 7, std::int64_t{1} << 40});
    }
  }
}

std::int64_t random_head_dim(Random& random) {
  return random.chance(0.05) ? random.between(30, 70)
                             : random.pick<std::int64_t>({1, 2, 3, 4, 5, 8, 13, 16, 17, 24});
}

Dims random_dims(Op op, Random& random) {
  Dims dims;
  dims.T = random.chance(0.05) ? random.between(60, 140) : random.between(0, 24);
  dims.N = random.between(0, 4);
  dims.K = random_head_dim(random);
  dims.V = random_head_dim(random);
  const std::int64_t fewer = random.chance(0.03) ? 0 : random.between(1, 2);
  const std::int64_t more = fewer * random.between(1, 3);
  const bool grouped_values = op != Op::kMamba2 && random.chance(0.5);
  dims.H = grouped_values ? more : fewer;
  dims.HV = grouped_values ? fewer : more;
  dims.HK = op == Op::kMamba2 || random.chance(0.5) ? dims.H : dims.HV;
  dims.HO = more;
  if (op == Op::kGatedDeltaProduct) dims.n = random.between(1, 3);
  return dims;
}

Options random_options(Op op, const Dims& dims, Random& random) {
  const OpSpec& spec = spec_of(op);
  Options o;
  if (spec.takes(Taken::kScale) && random.chance(0.3)) o.scale = random.uniform() * 2;
  if (spec.takes(Taken::kDelta)) {
    o.use_qk_l2norm = random.chance(0.7);
    o.use_beta_sigmoid = random.chance(0.5);
    o.allow_neg_eigval = o.use_beta_sigmoid && random.chance(0.4);
    o.safe_gate = random.chance(0.35);
    if (!o.safe_gate && random.chance(0.25)) o.gate_domain = GateDomain::kLinear;
  }
  if (spec.takes(Taken::kChannelGate) && o.safe_gate) {
    if (random.chance(0.4)) {
      o.gate = GateKind::kSoftplus;
    } else if (random.chance(0.5)) {
      o.gate_lower_bound = -0.1 - 6 * random.uniform();
    }
  }
  o.beta_guard = spec.takes(Taken::kBetaGuard) && o.use_qk_l2norm && random.chance(0.4);
  if (spec.takes(Taken::kHouseholder)) o.num_householder = dims.n;
  if (spec.takes(Taken::kStep)) {
    o.dt_softplus = random.chance(0.7);
    if (random.chance(0.3)) o.dt_min = 0.2 * random.uniform();
    if (random.chance(0.4)) o.dt_max = 0.2 + random.uniform();
  }
  o.batch_invariant = random.chance(0.2);
  o.output_final_state = random.chance(0.5);
  return o;
}

DType random_dtype(Kind kind, DType io, Random& random) {
  switch (kind) {
    case Kind::kIo:
      return io;
    case Kind::kOffset:
      return random.pick({DType::kInt32, DType::kInt64});
    case Kind::kIndex:
      return DType::kInt32;
    case Kind::kBeta:
      return io == kF64 || random.chance(0.5) ? io : kF32;
    default:
      return io == kF64 ? kF64 : random.pick({kF32, kBf16, kF16});
  }
}

TensorDesc describe(const Shape& shape, const Dims& dims, DType dtype) {
  std::int64_t extents[kMaxRank];
  for (int axis = 0; axis < shape.rank; ++axis) extents[axis] = extent(dims, shape.axes[axis]);
  return contiguous(dtype, std::span(extents).first(static_cast<std::size_t>(shape.rank)));
}

void add_inputs(Problem& p, const Dims& d, DType io, Random& random) {
  for (const PortSpec& spec : ports(p.op)) {
    const bool parameter = spec.port == Port::kALog || spec.port == Port::kDtBias;
    const bool legal = !parameter || p.options.safe_gate || p.op == Op::kMamba2;
    const bool optional = spec.role == Role::kOptional && spec.port != Port::kStateIndices &&
                          legal && random.chance(0.55);
    if (spec.role != Role::kInput && !optional) continue;
    const bool other = spec.other.rank > 0 && random.chance(0.5);
    p[spec.port] = describe(other ? spec.other : spec, d, random_dtype(spec.kind, io, random));
  }
}

void add_outputs(Problem& p, const Dims& d, DType io, Random& random) {
  const bool state = p.has(Port::kInitialState);
  const TensorDesc o = contiguous(io, {d.T, d.HO, d.V});
  const TensorDesc final_state = contiguous(state        ? p[Port::kInitialState].dtype
                                            : io == kF64 ? kF64
                                                         : kF32,
                                            {d.N, d.HO, d.V, d.K});
  if (p.pass == Pass::kForward) {
    p[Port::kO] = o;
    if (state && !p.requires_gradient && random.chance(0.3)) {
      p.options.overwrite_initial_state = true;
      return;
    }
    if (p.options.output_final_state) p[Port::kFinalState] = final_state;
    return;
  }
  if (random.chance(0.9)) p[Port::kDO] = o;
  if (random.chance(0.5)) p[Port::kDFinalState] = final_state;
  for (const PortSpec& spec : ports(p.op)) {  // absent as its primal may be
    if (spec.role == Role::kGradient && random.chance(0.85)) p[spec.port] = p[spec.primal];
  }
}

// What is part of the contract and declined by every engine.
void add_unsupported(Problem& p, const Dims& d, Random& random) {
  const bool state = p.has(Port::kInitialState);
  const std::int64_t kind = random.between(0, 1);
  if (kind == 0 && state && p.pass == Pass::kForward) {
    p[Port::kInitialState].shape[0] = random.between(0, 6);
    p[Port::kStateIndices] = contiguous(DType::kInt32, {d.N});
    p.requires_gradient = false;
  } else {
    p.options.checkpoint_every_n_tokens = random.between(1, 64);
  }
}

}  // namespace

bool is_gradient(Port port) {
  return (index(port) >= index(Port::kDQ) && index(port) <= index(Port::kDInitialState)) ||
         index(port) >= index(Port::kDW);
}

bool is_written(Port port) {
  return port == Port::kO || port == Port::kFinalState || is_gradient(port);
}

bool is_overwritten(const Problem& problem, Port port) {
  return problem.options.overwrite_initial_state && port == Port::kInitialState;
}

Problem random_problem(Random& random) {
  Problem p;
  p.op = static_cast<Op>(random.between(0, kOpCount - 1));
  p.pass = random.chance(0.5) ? Pass::kForward : Pass::kBackward;
  const Dims dims = random_dims(p.op, random);
  p.options = random_options(p.op, dims, random);
  p.requires_gradient = random.chance(0.2);
  p.threads = random.chance(0.2) ? static_cast<std::int32_t>(random.between(0, 3)) : 1;
  const DType io = random.chance(0.15) ? kF64 : random.pick({kF32, kBf16, kF16});
  add_inputs(p, dims, io, random);
  add_outputs(p, dims, io, random);
  if (random.chance(0.2)) p.options.checkpoint_dtype = random.pick({kF32, io});
  if (random.chance(0.4)) {
    const bool reference = io == kF64 || random.chance(0.5);
    p.plan_name =
        std::string(text::name_in(text::kVariants, p.op)) + (reference ? "_reference" : "_cpu");
  }
  if (random.chance(0.05)) add_unsupported(p, dims, random);
  for (int port = 0; port < kPortCount; ++port) {
    const Port each = static_cast<Port>(port);
    const bool offsets = each == Port::kCuSeqlens;  // cannot all be the same
    if (p.tensors[port].present() && random.chance(0.5)) {
      relay(p.tensors[port], offsets || is_written(each) || is_overwritten(p, each), random);
    }
  }
  return p;
}

}  // namespace deltaworks::fuzz
