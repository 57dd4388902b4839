// Tensors, random calls and guarded executions.
#include "kit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "problem/text_words.h"

namespace deltaworks::kit {

Buffer::Buffer(const TensorDesc& desc) : desc(desc) {
  std::int64_t span = 1;
  for (int axis = 0; axis < desc.rank; ++axis) {
    span += (desc.shape[axis] - 1) * desc.stride[axis];
  }
  if (count() == 0) span = 0;
  storage.assign((span + 2 * kGuard) * size_of(desc.dtype), kPoison);
}

std::int64_t Buffer::count() const {
  std::int64_t n = 1;
  for (int axis = 0; axis < desc.rank; ++axis) n *= desc.shape[axis];
  return n;
}

std::int64_t Buffer::offset(std::int64_t i) const {
  std::int64_t sum = 0;
  for (int axis = desc.rank - 1; axis >= 0; --axis) {
    sum += i % desc.shape[axis] * desc.stride[axis];
    i /= desc.shape[axis];
  }
  return sum;
}

double Buffer::get(std::int64_t i) const {
  switch (desc.dtype) {
    case DType::kInt32:
      return static_cast<double>(static_cast<const std::int32_t*>(data())[offset(i)]);
    case DType::kInt64:
      return static_cast<double>(static_cast<const std::int64_t*>(data())[offset(i)]);
    default:
      return load<double>(desc.dtype, data(), offset(i));
  }
}

void Buffer::set(std::int64_t i, double x) {
  switch (desc.dtype) {
    case DType::kInt32:
      static_cast<std::int32_t*>(data())[offset(i)] = static_cast<std::int32_t>(x);
      return;
    case DType::kInt64:
      static_cast<std::int64_t*>(data())[offset(i)] = static_cast<std::int64_t>(x);
      return;
    default:
      store(desc.dtype, data(), offset(i), x);
  }
}

void Buffer::fill(double x) {
  for (std::int64_t i = 0; i < count(); ++i) set(i, x);
}

bool Buffer::gaps_untouched() const {
  const std::size_t size = size_of(desc.dtype);
  std::vector<bool> element(storage.size() / size, false);
  for (std::int64_t i = 0; i < count(); ++i) element[kGuard + offset(i)] = true;
  for (std::size_t byte = 0; byte < storage.size(); ++byte) {
    if (!element[byte / size] && storage[byte] != kPoison) return false;
  }
  return true;
}

Types all(DType dtype) {
  return {.io = dtype, .g = dtype, .beta = dtype, .param = dtype, .state = dtype};
}

Dims make_dims(std::int64_t T, std::int64_t H, std::int64_t HK, std::int64_t HV, std::int64_t K,
               std::int64_t V) {
  return {.T = T, .N = 0, .K = K, .V = V, .H = H, .HK = HK, .HV = HV, .HO = std::max(H, HV)};
}

Call with_op(Call call, Op op) {
  call.op = op;
  Options& o = call.options;
  if (op == Op::kGatedDeltaProduct) {
    o.num_householder = call.dims.n = 2;
    call.steps_apart = true;
  }
  if (op != Op::kMamba2) return call;
  Dims& d = call.dims;
  if (d.H > d.HV) std::swap(d.H, d.HV);
  d.HK = d.H;
  o = {.batch_invariant = o.batch_invariant,
       .output_final_state = o.output_final_state,
       .overwrite_initial_state = o.overwrite_initial_state,
       .dt_min = 0.01,
       .dt_max = 2};
  call.a_log = false;  // A is always there
  call.D_rank = 2;
  call.z = true;
  return call;
}

std::string plan_of(Op op, const char* engine) {
  return std::string(text::name_in(text::kVariants, op)) + "_" + engine;
}

TensorDesc describe(const Call& call, const PortSpec& spec) {
  Dims dims = call.dims;
  dims.N = static_cast<std::int64_t>(call.offsets.size()) - 1;
  const DType types[] = {call.types.io,    call.types.g,     call.types.beta,
                         call.types.param, call.types.state, call.types.offset};
  TensorDesc desc;
  desc.dtype = types[static_cast<int>(spec.kind)];
  const bool apart = call.steps_apart && spec.other.axes[1] == Axis::kSubSteps;
  const bool by_value = call.D_rank == 2 && spec.primal == Port::kD;
  const Shape& shape = apart || by_value ? spec.other : spec;
  desc.rank = shape.rank;
  std::int64_t stride = 1;
  for (int axis = shape.rank - 1; axis >= 0; --axis) {
    desc.shape[axis] = extent(dims, shape.axes[axis]);
    desc.stride[axis] = stride;
    stride *= std::max<std::int64_t>(desc.shape[axis], 1);
  }
  return desc;
}

const PortSpec& spec_of(Port port, Op op) {
  const auto specs = ports(op);
  return *std::find_if(specs.begin(), specs.end(),
                       [port](const PortSpec& spec) { return spec.port == port; });
}

TensorDesc describe(const Call& call, Port port) { return describe(call, spec_of(port, call.op)); }

std::vector<Port> outputs_of(Pass pass, const Tensors& inputs, Op op) {
  std::vector<Port> written;
  for (const PortSpec& spec : ports(op)) {
    const bool forward = spec.role == Role::kOutput || spec.role == Role::kFinalState;
    const bool backward = spec.role == Role::kGradient && inputs.contains(spec.primal);
    if (pass == Pass::kForward ? forward : backward) written.push_back(spec.port);
  }
  return written;
}

namespace {

// q and k rows divided by sqrt(K), and by their norm where it is above 1.
void shorten_rows(Buffer& x) {
  const std::int64_t K = x.desc.shape[x.desc.rank - 1], rows = x.count() / K;
  for (std::int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (std::int64_t i = row * K; i < (row + 1) * K; ++i) sum += x.get(i) * x.get(i);
    const double factor = 1 / std::sqrt(std::max(sum, static_cast<double>(K)));
    for (std::int64_t i = row * K; i < (row + 1) * K; ++i) x.set(i, factor * x.get(i));
  }
}

double gate_of(const Call& call, double normal, double uniform) {
  if (call.op == Op::kMamba2) return normal;
  if (call.options.safe_gate) return normal + std::log(call.decay);
  if (call.options.gate_domain == GateDomain::kLinear) return std::exp(-2 * call.decay * uniform);
  return -call.decay * std::abs(normal);
}

bool is_left_out(const Call& call, const PortSpec& spec) {
  if (spec.role == Role::kInput || spec.role == Role::kFlow) return false;
  return !(spec.port == Port::kALog && call.a_log) &&
         !(spec.port == Port::kDtBias && call.dt_bias) &&
         !(spec.port == Port::kInitialState && call.initial_state) &&
         !(spec.port == Port::kD && call.D_rank > 0) && !(spec.port == Port::kZ && call.z);
}

}  // namespace

Tensors make_inputs(const Call& call, unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform(0.05, 0.95);
  Tensors tensors;
  for (const PortSpec& spec : ports(call.op)) {
    if (is_left_out(call, spec)) continue;
    Buffer tensor(describe(call, spec));
    for (std::int64_t i = 0; i < tensor.count(); ++i) {
      const double x = normal(random), u = uniform(random);
      if (spec.port == Port::kCuSeqlens) {
        tensor.set(i, static_cast<double>(call.offsets[i]));
      } else if (spec.port == Port::kG) {
        tensor.set(i, gate_of(call, x, u));
      } else if (spec.port == Port::kA && call.op == Op::kMamba2) {
        tensor.set(i, -call.decay * std::exp(x / 2));
      } else {
        tensor.set(i, spec.port == Port::kBeta && !call.options.use_beta_sigmoid ? u : x);
      }
    }
    if ((spec.port == Port::kQ || spec.port == Port::kK) && !call.options.use_qk_l2norm) {
      shorten_rows(tensor);
    }
    tensors.emplace(spec.port, std::move(tensor));
  }
  return tensors;
}

Prepared prepare(const std::string& plan, const Call& call, Pass pass, Tensors& inputs, int threads,
                 const Layout& layout) {
  Prepared prepared;
  Problem& problem = prepared.problem;
  problem.op = call.op;
  problem.pass = pass;
  problem.options = call.options;
  problem.options.output_final_state = true;
  problem.plan_name = plan;
  problem.threads = threads;
  for (auto& [port, tensor] : inputs) {
    if (pass == Pass::kForward && spec_of(port, call.op).role == Role::kFlow) continue;
    problem[port] = tensor.desc;
    prepared.pack[port] = tensor.data();
  }
  for (Port port : outputs_of(pass, inputs, call.op)) {
    if (port == Port::kFinalState && !wants_final_state(problem.options)) continue;
    const TensorDesc desc = describe(call, port);
    Buffer& tensor =
        prepared.outputs.emplace(port, Buffer(layout ? layout(port, desc) : desc)).first->second;
    problem[port] = tensor.desc;
    prepared.pack[port] = tensor.data();
  }
  return prepared;
}

Workspace::Workspace(const Plan& plan) : memory_(plan.workspace_bytes() + 2 * kGuard, kPoison) {}

bool Workspace::guards_untouched() const {
  const auto poisoned = [](std::byte byte) { return byte == kPoison; };
  return std::all_of(memory_.begin(), memory_.begin() + kGuard, poisoned) &&
         std::all_of(memory_.end() - kGuard, memory_.end(), poisoned);
}

Tensors run(const std::string& plan, const Call& call, Pass pass, const Tensors& inputs,
            int threads, const Layout& layout) {
  Tensors copies = inputs;
  Prepared prepared = prepare(plan, call, pass, copies, threads, layout);
  const Plan found = find_plan(prepared.problem);
  EXPECT_EQ(found.name(), plan);
  Workspace workspace(found);
  found.execute(prepared.pack, workspace.data());
  EXPECT_TRUE(workspace.guards_untouched()) << "memory beside the workspace was written";
  if (call.options.overwrite_initial_state) {
    prepared.outputs.emplace(Port::kFinalState, copies.at(Port::kInitialState));
  }
  for (const auto& [port, tensor] : inputs) {
    const bool overwritten = port == final_state_port(call.options);
    EXPECT_TRUE(overwritten || tensor.storage == copies.at(port).storage)
        << name(call.op, port) << " was written";
  }
  for (const auto& [port, tensor] : prepared.outputs) {
    EXPECT_TRUE(tensor.gaps_untouched())
        << "memory beside " << name(call.op, port) << " was written";
  }
  return std::move(prepared.outputs);
}

bool same_bits(const Buffer& a, const Buffer& b, std::int64_t i) {
  const std::size_t size = size_of(a.desc.dtype);
  return a.desc.dtype == b.desc.dtype &&
         std::memcmp(static_cast<const std::byte*>(a.data()) + a.offset(i) * size,
                     static_cast<const std::byte*>(b.data()) + b.offset(i) * size, size) == 0;
}

void expect_same_bits(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [port, tensor] : a) {
    ASSERT_TRUE(b.contains(port)) << name(port);
    ASSERT_EQ(tensor.count(), b.at(port).count()) << name(port);
    for (std::int64_t i = 0; i < tensor.count(); ++i) {
      ASSERT_TRUE(same_bits(tensor, b.at(port), i))
          << name(port) << " at " << i << ": " << tensor.get(i) << " " << b.at(port).get(i);
    }
  }
}

TensorDesc reversed(TensorDesc desc) {
  std::int64_t stride = 2;
  for (int axis = 0; axis < desc.rank; ++axis) {
    desc.stride[axis] = stride;
    stride *= desc.shape[axis] + 1;
  }
  return desc;
}

Buffer relaid(const Buffer& tensor, const TensorDesc& desc) {
  Buffer copy(desc);
  for (std::int64_t i = 0; i < tensor.count(); ++i) copy.set(i, tensor.get(i));
  return copy;
}

}  // namespace deltaworks::kit
