// See random_problem.h.
#include "random_problem.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

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

Dims random_dims(Random& random) {
  Dims dims;
  dims.T = random.chance(0.05) ? random.between(60, 140) : random.between(0, 24);
  dims.N = random.between(0, 4);
  dims.K = random_head_dim(random);
  dims.V = random_head_dim(random);
  const std::int64_t fewer = random.chance(0.03) ? 0 : random.between(1, 2);
  const std::int64_t more = fewer * random.between(1, 3);
  const bool grouped_values = random.chance(0.5);
  dims.H = grouped_values ? more : fewer;
  dims.HV = grouped_values ? fewer : more;
  dims.HK = random.chance(0.5) ? dims.H : dims.HV;
  dims.HO = more;
  return dims;
}

Options random_options(Random& random) {
  Options o;
  if (random.chance(0.3)) o.scale = random.uniform() * 2;
  o.use_qk_l2norm = random.chance(0.7);
  o.use_beta_sigmoid = random.chance(0.5);
  o.allow_neg_eigval = o.use_beta_sigmoid && random.chance(0.4);
  o.safe_gate = random.chance(0.35);
  if (!o.safe_gate && random.chance(0.25)) o.gate_domain = GateDomain::kLinear;
  o.batch_invariant = random.chance(0.2);
  o.output_final_state = random.chance(0.5);
  return o;
}

void add_inputs(Problem& p, const Dims& d, DType io, Random& random) {
  const bool f64 = io == kF64;
  const auto wide_or_narrow = [&] { return f64 ? kF64 : random.pick({kF32, kBf16, kF16}); };
  p[Port::kQ] = contiguous(io, {d.T, d.H, d.K});
  p[Port::kK] = contiguous(io, {d.T, d.HK, d.K});
  p[Port::kV] = contiguous(io, {d.T, d.HV, d.V});
  p[Port::kG] = contiguous(wide_or_narrow(), {d.T, d.HO});
  p[Port::kBeta] = contiguous(f64 || random.chance(0.5) ? io : kF32, {d.T, d.HO});
  p[Port::kCuSeqlens] = contiguous(random.pick({DType::kInt32, DType::kInt64}), {d.N + 1});
  if (p.options.safe_gate && random.chance(0.6)) {
    p[Port::kALog] = contiguous(wide_or_narrow(), {d.HO});
  }
  if (p.options.safe_gate && random.chance(0.6)) {
    p[Port::kDtBias] = contiguous(wide_or_narrow(), {d.HO});
  }
  if (random.chance(0.5)) {
    p[Port::kInitialState] = contiguous(wide_or_narrow(), {d.N, d.HO, d.V, d.K});
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
  const auto add_gradient = [&](Port gradient, Port primal) {
    if (random.chance(0.85)) p[gradient] = p[primal];  // absent as its primal may be
  };
  add_gradient(Port::kDQ, Port::kQ);
  add_gradient(Port::kDK, Port::kK);
  add_gradient(Port::kDV, Port::kV);
  add_gradient(Port::kDG, Port::kG);
  add_gradient(Port::kDBeta, Port::kBeta);
  add_gradient(Port::kDALog, Port::kALog);
  add_gradient(Port::kDDtBias, Port::kDtBias);
  add_gradient(Port::kDInitialState, Port::kInitialState);
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

bool is_written(Port port) {
  return port == Port::kO || port == Port::kFinalState || index(port) >= index(Port::kDQ);
}

bool is_overwritten(const Problem& problem, Port port) {
  return problem.options.overwrite_initial_state && port == Port::kInitialState;
}

Problem random_problem(Random& random) {
  Problem p;
  p.pass = random.chance(0.5) ? Pass::kForward : Pass::kBackward;
  p.options = random_options(random);
  p.requires_gradient = random.chance(0.2);
  p.threads = random.chance(0.2) ? static_cast<std::int32_t>(random.between(0, 3)) : 1;
  const Dims dims = random_dims(random);
  const DType io = random.chance(0.15) ? kF64 : random.pick({kF32, kBf16, kF16});
  add_inputs(p, dims, io, random);
  add_outputs(p, dims, io, random);
  if (random.chance(0.2)) p.options.checkpoint_dtype = random.pick({kF32, io});
  if (random.chance(0.4)) {
    p.plan_name = io == kF64 || random.chance(0.5) ? "gdn_reference" : "gdn_cpu";
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
