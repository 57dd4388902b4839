// The CUDA engine on mma.sync, for cards from compute capability 8.0 on: what it takes, and how a
// problem becomes the parameters of its kernels. Forward only so far.
#include "registry/engine.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/environment.h"
#include "core/strings.h"
#include "engines/cuda/launch.h"
#include "engines/cuda/params.h"
#include "engines/cuda/plan.h"
#include "engines/cuda/sm80/instances.h"
#include "problem/ports.h"
#include "problem/validate.h"

namespace deltaworks {
namespace {

constexpr std::int64_t kMaxBlocks = (std::int64_t{1} << 31) - 1;  // of a grid's first axis

// Of a launch: a block a (chunk, head); or a block a sequence, or a segment, a head and 64 values,
// and 64 keys of a segment's transition.
std::int64_t most_blocks(const Dims& dims) {
  const auto blocks = [](std::int64_t columns) { return (columns + 63) / 64; };
  const std::int64_t chunks = dims.T / cuda::kChunk, values = blocks(dims.V);
  const std::int64_t walks = dims.N * values + chunks * (values + blocks(dims.K));
  return std::max({dims.HO * std::max(chunks + dims.N, walks), dims.HO, 2 * dims.N});
}

bool is_aligned(std::int64_t stride) { return stride % 8 == 0; }

cuda::View view_of(const Problem& problem, const Dims& dims, Port port) {
  const TensorDesc& x = problem[port];
  cuda::View view;
  if (!x.present()) return view;
  view.dtype = x.dtype;
  for (int axis = 0; axis < kMaxRank; ++axis) view.stride[axis] = x.stride[axis];
  if (x.rank >= 2 && x.shape[1] > 0) view.heads_per = static_cast<int>(dims.HO / x.shape[1]);
  // Whether the base is aligned as well is known when pointers are.
  view.wide = x.rank == 3 && x.stride[2] == 1 && is_aligned(x.stride[0]) &&
              is_aligned(x.stride[1]) && x.shape[2] % 8 == 0;
  return view;
}

class CudaExecutable final : public Executable {
 public:
  CudaExecutable(const Problem& problem, const Dims& dims)
      : problem_(problem), dims_(dims), device_(problem[Port::kQ].device.index) {
    const auto view = [&](Port port) { return view_of(problem, dims, port); };
    const Options& o = problem.options;
    params_.T = dims.T;
    params_.N = static_cast<int>(dims.N);
    params_.HO = static_cast<int>(dims.HO);
    params_.K = static_cast<int>(dims.K);
    params_.V = static_cast<int>(dims.V);
    params_.q = view(Port::kQ);
    params_.k = view(Port::kK);
    params_.v = view(Port::kV);
    params_.g = view(Port::kG);
    params_.beta = view(Port::kBeta);
    params_.cu_seqlens = view(Port::kCuSeqlens);
    params_.a_log = view(Port::kALog);
    params_.dt_bias = view(Port::kDtBias);
    params_.initial_state = view(Port::kInitialState);
    params_.o = view(Port::kO);
    params_.final_state = view(final_state_port(o));
    params_.scale =
        static_cast<float>(o.scale.value_or(1 / std::sqrt(static_cast<double>(dims.K))));
    params_.l2norm = o.use_qk_l2norm;
    params_.beta_sigmoid = o.use_beta_sigmoid;
    params_.beta_doubled = o.allow_neg_eigval;
    params_.gate = o.safe_gate                            ? cuda::Gate::kSoftplus
                   : o.gate_domain == GateDomain::kLinear ? cuda::Gate::kLinear
                                                          : cuda::Gate::kLog;
    cuda::divide(params_, cuda::card(device_).limits, o.batch_invariant);
    cuda::load_kernels(problem.op, params_, device_);
  }

  std::size_t workspace_bytes() const override { return cuda::workspace_bytes(params_); }

  std::string configuration() const override {
    std::string text = cat("device ", device_, ", mma.sync, ", params_.stages,
                           params_.stages == 1 ? " stage" : " stages");
    if (params_.max_further > 0) text += cat(", segments of ", params_.segment_chunks, " chunks");
    return text;
  }

  void execute(const Pack& pack, void* workspace, void* stream) const override {
    if (checks_data()) judge_offsets(pack[Port::kCuSeqlens], stream);
    cuda::Params p = params_;
    const auto point = [&](cuda::View& view, Port port) {
      view.data = pack[port];
      view.wide = view.wide && reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0;
    };
    point(p.q, Port::kQ);
    point(p.k, Port::kK);
    point(p.v, Port::kV);
    point(p.g, Port::kG);
    point(p.beta, Port::kBeta);
    point(p.cu_seqlens, Port::kCuSeqlens);
    point(p.a_log, Port::kALog);
    point(p.dt_bias, Port::kDtBias);
    point(p.initial_state, Port::kInitialState);
    point(p.o, Port::kO);
    point(p.final_state, final_state_port(problem_.options));
    cuda::launch_forward(problem_.op, p, device_, workspace, stream);
  }

 private:
  // What the CPU judges before every call; here it takes a copy and waits for it.
  void judge_offsets(const void* cu_seqlens, void* stream) const {
    const TensorDesc& x = problem_[Port::kCuSeqlens];
    const auto size = static_cast<std::int64_t>(size_of(x.dtype));
    const std::int64_t last = dims_.N * x.stride[0] * size;  // bytes from the first offset
    const std::int64_t lowest = std::min<std::int64_t>(last, 0);
    std::vector<std::byte> copy(static_cast<std::size_t>(std::max(last, -last) + size));
    cuda::read_back(copy.data(), static_cast<const std::byte*>(cu_seqlens) + lowest, copy.size(),
                    device_, stream);
    judge_cu_seqlens(problem_, dims_, copy.data() - lowest);
  }

  Problem problem_;
  Dims dims_;
  int device_;
  cuda::Params params_;
};

class CudaEngine final : public Engine {
 public:
  const char* name() const override { return "sm80"; }

  Check check(const Problem& problem, const Dims& dims) const override {
    const Options& o = problem.options;
    const TensorDesc& q = problem[Port::kQ];
    const bool here = q.device.type == DeviceType::kCuda;
    // The CUDA driver is asked for tensors in its memory alone.
    const cuda::Card card = here ? cuda::card(q.device.index) : cuda::Card{};
    const bool usable = here && card.problem.empty();
    const auto takes = [](std::int64_t dim) { return dim % 16 == 0 && dim <= 256; };
    const std::int64_t blocks = most_blocks(dims);
    const std::size_t shared = takes(dims.K) ? cuda::shared_bytes(static_cast<int>(dims.K), 1) : 0;
    return std::move(
        Check{}
            .need(here, "tensors must be in CUDA memory", deltaworks::name(q.device.type))
            .need(!here || usable, "a CUDA driver with the tensors' device", card.problem)
            .need(!usable || card.capability >= 80, "compute capability 8.0 or newer",
                  card.capability)
            .need(!usable || static_cast<int>(shared) <= card.limits.shared_bytes,
                  cat(shared, " bytes of shared memory a block"), card.limits.shared_bytes)
            .need(cuda::sm80::has_instance(problem.op),
                  "an operation that this engine has kernels for", op_name(problem.op))
            .need(problem.pass == Pass::kForward && !problem.requires_gradient,
                  "no gradient may be asked for (the backward is not supported yet)",
                  problem.pass == Pass::kForward ? "a forward that requires one" : "a backward")
            .need(q.dtype == DType::kBFloat16 || q.dtype == DType::kFloat16,
                  "q k v must be bfloat16 or float16", deltaworks::name(q.dtype))
            .need(takes(dims.K), "the key dimension must be a multiple of 16 up to 256", dims.K)
            .need(takes(dims.V), "the value dimension must be a multiple of 16 up to 256", dims.V)
            .need(blocks <= kMaxBlocks, "at most 2^31 - 1 blocks of a launch", blocks)
            .need(!problem.has(Port::kStateIndices),
                  "state_indices must be absent (state pools are not supported yet)", "a tensor")
            .need(o.checkpoint_every_n_tokens == 0,
                  "checkpoint_every_n_tokens must be 0 (state checkpoints are not supported yet)",
                  o.checkpoint_every_n_tokens));
  }

  std::unique_ptr<const Executable> build(const Problem& problem, const Dims& dims) const override {
    return std::make_unique<CudaExecutable>(problem, dims);
  }
};

constinit const CudaEngine engine;

}  // namespace

const Engine& cuda_engine() { return engine; }

}  // namespace deltaworks
