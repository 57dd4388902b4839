// The reference engine: fp64 arithmetic whatever the dtypes, one token after another. Chosen by
// itself for fp64 tensors, pinned by name to judge other engines.
// A work item is (sequence, group of heads that share a head of q, k or v), so that no two items
// write the same gradient row and no result depends on how items fall to threads.
#include "registry/engine.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/strings.h"
#include "core/threads.h"
#include "problem/ports.h"
#include "reference/gradient.h"
#include "reference/recurrent.h"
#include "variants/list.h"

namespace deltaworks {
namespace {

using reference::Arena;
using reference::Backward;
using reference::Forward;
using reference::Sequence;

constexpr std::size_t kAlignment = 64;

std::int64_t offset_of(const Problem& problem, const Pack& pack, std::int64_t n) {
  const TensorDesc& tensor = problem[Port::kCuSeqlens];
  const void* base = pack[Port::kCuSeqlens];
  const std::int64_t i = n * tensor.stride[0];
  return tensor.dtype == DType::kInt32 ? static_cast<const std::int32_t*>(base)[i]
                                       : static_cast<const std::int64_t*>(base)[i];
}

// What both passes share: the work items and their scratch, `Walk::Scratch` for each worker behind
// `shared` doubles that belong to the whole execution.
template <class Walk>
class ReferenceExecutable : public Executable {
 public:
  ReferenceExecutable(const Problem& problem, const Dims& dims, std::int64_t shared)
      : problem_(problem), dims_(dims), shared_(shared), groups_(std::min(dims.H, dims.HV)) {
    const std::int64_t wanted = problem.threads > 0 ? problem.threads : default_threads();
    workers_ = static_cast<int>(std::clamp<std::int64_t>(dims.N * groups_, 1, wanted));
    Arena arena;
    typename Walk::Scratch scratch(dims, arena);
    scratch_ = arena.used();
  }

  std::size_t workspace_bytes() const override {
    return (shared_ + workers_ * scratch_) * sizeof(double) + kAlignment;
  }

  std::string configuration() const override {
    return cat("fp64, ", workers_, workers_ == 1 ? " thread" : " threads");
  }

 protected:
  static double* aligned(void* workspace) {
    const auto address = reinterpret_cast<std::uintptr_t>(workspace);
    return reinterpret_cast<double*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }

  void run(const Walk& walk, const Pack& pack, double* workspace) const {
    const std::int64_t heads = dims_.HO / groups_;
    parallel_for(workers_, dims_.N * groups_, [&](std::int64_t item, int worker) {
      const std::int64_t n = item / groups_, group = item % groups_;
      const Sequence sequence{n, offset_of(problem_, pack, n), offset_of(problem_, pack, n + 1)};
      Arena arena(workspace + shared_ + worker * scratch_);
      const typename Walk::Scratch scratch(dims_, arena);
      for (std::int64_t i = 0; i < heads; ++i) walk.head(sequence, group * heads + i, scratch);
    });
    for (std::int64_t t = offset_of(problem_, pack, dims_.N); t < dims_.T; ++t) walk.clear_token(t);
  }

  Problem problem_;
  Dims dims_;

 private:
  std::int64_t shared_, groups_, scratch_ = 0;
  int workers_ = 1;
};

template <class Variant>
class ForwardExecutable final : public ReferenceExecutable<Forward<Variant>> {
 public:
  ForwardExecutable(const Problem& problem, const Dims& dims)
      : ReferenceExecutable<Forward<Variant>>(problem, dims, 0) {}

  void execute(const Pack& pack, void* workspace, void*) const override {
    if (this->dims_.HO == 0) return;
    const Forward<Variant> walk(this->problem_, this->dims_, pack);
    this->run(walk, pack, this->aligned(workspace));
  }
};

template <class Variant>
class BackwardExecutable final : public ReferenceExecutable<Backward<Variant>> {
  using Parameters = reference::Parameters<Variant>;

 public:
  BackwardExecutable(const Problem& problem, const Dims& dims)
      : ReferenceExecutable<Backward<Variant>>(problem, dims, shared(problem, dims)) {}

  void execute(const Pack& pack, void* workspace, void*) const override {
    if (this->dims_.HO == 0) return;
    double* base = this->aligned(workspace);
    Arena arena(base);
    const Parameters parameters(this->problem_, this->dims_, arena);
    const Backward<Variant> walk(this->problem_, this->dims_, pack, parameters);
    this->run(walk, pack, base);
    parameters.store(this->problem_, pack);
  }

 private:
  static std::int64_t shared(const Problem& problem, const Dims& dims) {
    Arena arena;
    Parameters parameters(problem, dims, arena);
    return arena.used();
  }
};

class ReferenceEngine final : public Engine {
 public:
  const char* name() const override { return "reference"; }

  Check check(const Problem& problem, const Dims&) const override {
    const Options& o = problem.options;
    const TensorDesc& q = problem[Port::kQ];
    return std::move(
        Check{}
            .need(q.device.type == DeviceType::kCpu, "tensors must be in CPU memory",
                  deltaworks::name(q.device.type))
            .need(q.dtype == DType::kFloat64 || !problem.plan_name.empty(),
                  cat(io_names(problem.op), " must be float64, or plan_name must pin it"),
                  cat(deltaworks::name(q.dtype), " and no plan_name"))
            .need(!problem.has(Port::kStateIndices), "state_indices must be absent", "a tensor")
            .need(o.checkpoint_every_n_tokens == 0, "checkpoint_every_n_tokens must be 0",
                  o.checkpoint_every_n_tokens));
  }

  const char* warning() const override {
    return "float64 tensors run on the reference engine, which is slow and meant for tests; pin "
           "its "
           "plan_name to silence this";
  }

  std::unique_ptr<const Executable> build(const Problem& problem, const Dims& dims) const override {
    return with_variant(problem.op, [&]<class Variant>() -> std::unique_ptr<const Executable> {
      if (problem.pass == Pass::kForward) {
        return std::make_unique<ForwardExecutable<Variant>>(problem, dims);
      }
      return std::make_unique<BackwardExecutable<Variant>>(problem, dims);
    });
  }
};

constinit const ReferenceEngine engine;  // asked for its name while libraries load

}  // namespace

const Engine& reference_engine() { return engine; }

}  // namespace deltaworks
