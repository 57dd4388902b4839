// The CPU engine: what it takes, how it divides a call into work items, and its workspace:
//
//   order   [N]           sequences, longest first
//   sums    [N, HO, ...]  what each sequence adds to the gradients of parameters (backward)
//   scratch [threads]     one kernel's scratch a worker
//
// Forward items are (sequence, heads, span of values), backward items (sequence, groups of heads).
// Which worker takes an item changes nothing that is computed.
#include "registry/engine.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "core/strings.h"
#include "core/threads.h"
#include "engines/cpu/dispatch.h"
#include "problem/ports.h"
#include "variants/list.h"

namespace deltaworks {
namespace {

using cpu::Args;
using cpu::Kernels;

constexpr std::size_t kAlign = 64;  // a cache line
// With at least this many (sequence, head) pairs a worker an item takes all values.
constexpr std::int64_t kManyPairs = 4;
// Of an item's time, the part that is the same for a few values as for all: its rows of keys are
// converted whatever its span.
constexpr double kFixed = 0.2;
// And with so many items a worker, an item takes several heads.
constexpr std::int64_t kManyItems = 2;
// Bytes of outputs or gradients, by token, from which on their rows are written past the caches:
// more than a core's share of a last-level cache would keep for whoever reads them next.
constexpr std::int64_t kStreamed = 32 << 20;
// Waking a worker takes about 4 us, in which one updates this many state elements: with less to do
// for each, fewer workers are faster.
constexpr double kWorkOfAWorker = 1 << 16;

constexpr std::int64_t ceil_div(std::int64_t x, std::int64_t by) { return (x + by - 1) / by; }
std::size_t align(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

class CpuExecutable final : public Executable {
 public:
  CpuExecutable(const Problem& problem, const Dims& dims)
      : problem_(problem), kernels_(cpu::kernels()) {
    const Options& options = problem.options;
    args_.op = problem.op;
    args_.dims = dims;
    const bool scales = spec_of(problem.op).takes(Taken::kScale);
    args_.scale = static_cast<float>(
        options.scale.value_or(scales ? 1.0 / std::sqrt(static_cast<double>(dims.K)) : 1.0));
    args_.l2norm = options.use_qk_l2norm;
    args_.beta_guard = options.beta_guard;
    args_.gate =
        with_variant(problem.op, [&]<class Variant>() { return gate_map<Variant>(options); });
    args_.beta = beta_form(problem);
    describe_tensors();
    choose_streams();
    if (forward()) {
      divide_forward();
    } else {
      divide_backward();
    }
    const bool states = problem.has(Port::kFinalState) || problem.has(Port::kDInitialState);
    if (dims.T == 0 && !states) items_ = 0;  // however many sequences and heads are empty
    const double work =
        static_cast<double>(dims.T * dims.n) * static_cast<double>(dims.HO * dims.K * dims.V);
    const double worth = std::min<double>(problem.threads, 1 + work / kWorkOfAWorker);
    workers_ = static_cast<int>(std::min<std::int64_t>(static_cast<std::int64_t>(worth), items_));
  }

  std::size_t workspace_bytes() const override {
    if (items_ == 0) return 0;
    return kAlign + order_bytes() + sums_bytes() +
           static_cast<std::size_t>(workers_) * align(scratch_ * sizeof(float));
  }

  std::string configuration() const override {
    return cat(kernels_.isa, ", ", workers_, workers_ == 1 ? " thread, " : " threads, ", items_,
               items_ == 1 ? " item" : " items");
  }

  void execute(const Pack& pack, void* workspace, void*) const override {
    const Args args = args_of(pack);
    zero_past_the_end(args);
    if (items_ == 0) return store_parameters(args, nullptr);

    const Memory memory = carve(workspace);
    sort_by_length(args, memory.order);
    if (!forward()) std::fill_n(memory.sums, args.sums * args.dims.N * args.dims.HO, 0.0);
    parallel_for(workers_, items_,
                 [&](std::int64_t item, int worker) { run_item(args, memory, item, worker); });
    if (forward()) return;
    store_parameters(args, memory.sums);
  }

  std::function<void()> kernels(const Pack& pack, void* workspace) const override {
    return [this, args = args_of(pack), memory = carve(workspace)] {
      for (std::int64_t item = 0; item < items_; ++item) run_item(args, memory, item, 0);
    };
  }

 private:
  struct Memory {
    std::int64_t* order;
    double* sums;
    std::byte* scratch;
  };

  bool forward() const { return problem_.pass == Pass::kForward; }

  // With many pairs a worker, items of several heads and all values. With few, the span of values
  // that ends first if one sequence has all the steps.
  void divide_forward() {
    const Dims& dims = args_.dims;
    const std::int64_t pairs = dims.N * dims.HO, workers = problem_.threads;
    const std::int64_t blocks = ceil_div(dims.V, kernels_.value_block);
    std::int64_t width = blocks;
    if (pairs >= kernels_.heads * kManyItems * workers) {
      heads_ = kernels_.heads;
    } else if (pairs < kManyPairs * workers) {
      const auto time = [&](std::int64_t tried) {
        const std::int64_t items = dims.HO * ceil_div(blocks, tried);
        const double part = static_cast<double>(tried) / static_cast<double>(blocks);
        return static_cast<double>(ceil_div(items, workers)) * (kFixed + (1 - kFixed) * part);
      };
      for (std::int64_t tried = blocks - 1; tried > 0; --tried) {
        if (time(tried) < time(width)) width = tried;
      }
    }
    span_ = std::max<std::int64_t>(width, 1) * kernels_.value_block;
    spans_ = ceil_div(dims.V, span_);
    head_items_ = ceil_div(dims.HO, heads_);
    items_ = dims.N * head_items_ * spans_;
    scratch_ = kernels_.forward_scratch(args_, std::min(heads_, dims.HO));
  }

  // An item takes whole groups of heads: one, or as many as go through the tokens side by side.
  void divide_backward() {
    const Dims& dims = args_.dims;
    const std::int64_t size = args_.group_size(), groups = args_.groups();
    const std::int64_t together = std::max<std::int64_t>(kernels_.backward_heads / size, 1);
    heads_ = size;
    if (dims.N * groups >= together * kManyItems * problem_.threads) heads_ = together * size;
    head_items_ = ceil_div(dims.HO, heads_);
    items_ = dims.N * head_items_;
    scratch_ = kernels_.backward_scratch(args_, std::min(heads_, dims.HO));
    args_.sums = kernels_.backward_sums(args_);
  }

  static bool is_written(const PortSpec& spec) {
    return spec.role == Role::kOutput || spec.role == Role::kGradient;
  }

  // Large outputs are written past the caches where their rows are whole cache lines, as far as
  // strides say it.
  void choose_streams() {
    std::int64_t bytes = 0;
    for (const PortSpec& spec : ports(problem_.op)) {
      const TensorDesc& desc = problem_[spec.port];
      if (!is_written(spec) || !by_token(spec) || !desc.present()) continue;
      cpu::Tensor& x = args_.tensors[index(spec.port)];
      const auto whole = [&](std::int64_t elements) {
        return static_cast<std::size_t>(elements * x.size) % kAlign == 0;
      };
      x.streams = x.stride[3] == 1 && whole(desc.shape[desc.rank - 1]) && whole(x.stride[0]) &&
                  whole(x.stride[1]) && whole(x.stride[2]);
      std::int64_t elements = 1;
      for (int axis = 0; axis < desc.rank; ++axis) elements *= desc.shape[axis];
      bytes += elements * x.size;
    }
    if (bytes >= kStreamed) return;
    for (cpu::Tensor& x : args_.tensors) x.streams = false;
  }

  // The tensors as the kernels walk them (args.h), without memory: only a base that is not null
  // marks what is there.
  void describe_tensors() {
    for (const PortSpec& spec : ports(problem_.op)) {
      const TensorDesc& desc = problem_[spec.port];
      if (!desc.present()) continue;
      cpu::Tensor& x = args_.tensors[index(spec.port)];
      x.data = &args_;
      x.dtype = desc.dtype;
      x.size = static_cast<std::int64_t>(size_of(desc.dtype));
      std::int64_t heads = args_.dims.HO;
      const Shape& shape = spec.shape(desc.rank);
      const auto& stride = desc.stride;
      const bool state = shape.axes[0] == Axis::kN;
      for (int axis = 0; axis < desc.rank; ++axis) {
        switch (shape.axes[axis]) {
          case Axis::kT:
            x.stride[0] = stride[axis];
            break;
          case Axis::kSteps:
            x.stride[0] = stride[axis] * args_.dims.n;
            x.stride[1] = stride[axis];
            break;
          case Axis::kSubSteps:
            x.stride[1] = stride[axis];
            break;
          case Axis::kH:
          case Axis::kHK:
          case Axis::kHV:
          case Axis::kHO:
            x.stride[2] = stride[axis];
            heads = desc.shape[axis];
            break;
          case Axis::kK:
          case Axis::kV:
            x.stride[3] = stride[axis];
            break;
          case Axis::kN:
          case Axis::kNPlus1:
            x.stride[0] = stride[axis];
            break;
        }
      }
      if (state) std::copy_n(stride.begin(), kMaxRank, x.stride);
      if (heads > 0) x.heads_per = args_.dims.HO / heads;
    }
  }

  Args args_of(const Pack& pack) const {
    Args args = args_;
    for (int port = 0; port < kPortCount; ++port) {
      cpu::Tensor& x = args.tensors[port];
      x.data = x.present() ? pack.pointers[port] : nullptr;
      if (reinterpret_cast<std::uintptr_t>(x.data) % kAlign != 0) x.streams = false;
    }
    args.cu_seqlens = args[Port::kCuSeqlens];
    // Each item reads its part of the states before it writes it.
    args.tensors[index(Port::kFinalState)] =
        args.tensors[index(final_state_port(problem_.options))];
    return args;
  }

  Memory carve(void* workspace) const {
    const auto base = reinterpret_cast<std::uintptr_t>(workspace);
    std::byte* memory = static_cast<std::byte*>(workspace) + (align(base) - base);
    return {reinterpret_cast<std::int64_t*>(memory),
            reinterpret_cast<double*>(memory + order_bytes()),
            memory + order_bytes() + sums_bytes()};
  }

  static void sort_by_length(const Args& args, std::int64_t* order) {
    std::iota(order, order + args.dims.N, 0);
    std::sort(order, order + args.dims.N, [&](std::int64_t a, std::int64_t b) {
      const std::int64_t length_a = args.length(a), length_b = args.length(b);
      return length_a != length_b ? length_a > length_b : a < b;
    });
  }

  void run_item(const Args& args, const Memory& memory, std::int64_t item, int worker) const {
    const Dims& dims = args.dims;
    auto* scratch =
        reinterpret_cast<float*>(memory.scratch + worker * align(scratch_ * sizeof(float)));
    if (forward()) {
      const std::int64_t span = item % spans_, head_item = item / spans_;
      const std::int64_t head = head_item % head_items_ * heads_;
      kernels_.forward(args, memory.order[head_item / head_items_], head,
                       std::min(heads_, dims.HO - head), span * span_,
                       std::min(dims.V, (span + 1) * span_), scratch);
      return;
    }
    const std::int64_t n = memory.order[item / head_items_], head = item % head_items_ * heads_;
    kernels_.backward(args, n, head, std::min(heads_, dims.HO - head),
                      memory.sums + args.sums * (n * dims.HO + head), scratch);
  }

  std::size_t order_bytes() const {
    return align(static_cast<std::size_t>(args_.dims.N) * sizeof(std::int64_t));
  }
  std::size_t sums_bytes() const {
    if (forward()) return 0;
    return align(static_cast<std::size_t>(args_.sums * args_.dims.N * args_.dims.HO) *
                 sizeof(double));
  }

  static bool by_token(const PortSpec& spec) {
    return spec.axes[0] == Axis::kT || spec.axes[0] == Axis::kSteps;
  }

  // Rows that belong to no sequence.
  void zero_past_the_end(const Args& args) const {
    const std::int64_t end = args.offset(args.dims.N);
    for (const PortSpec& spec : ports(problem_.op)) {
      const cpu::Tensor& x = args[spec.port];
      if (!x.present() || !is_written(spec) || !by_token(spec)) continue;
      const std::int64_t subs = spec.axes[0] == Axis::kSteps ? args.dims.n : 1;
      const std::int64_t width = spec.rank == 3 ? extent(args.dims, spec.axes[2]) : 1;
      for (std::int64_t t = end; t < args.dims.T; ++t) {
        for (std::int64_t sub = 0; sub < subs; ++sub) {
          for (std::int64_t head = 0; head < args.dims.HO; head += x.heads_per) {
            const cpu::Run run = row(args, spec.port, {t, sub}, head);
            for (std::int64_t i = 0; i < width; ++i) {
              store(run.dtype, run.data, i * run.stride, 0.0);
            }
          }
        }
      }
    }
  }

  // The gradients of parameters: their sequences' shares, summed in order. Without `sums` zeros.
  void store_parameters(const Args& args, const double* sums) const {
    const Dims& dims = args.dims;
    const auto store_sums = [&](Port port, std::int64_t first, std::int64_t count) {
      const cpu::Tensor& x = args[port];
      if (!x.present()) return;
      for (std::int64_t head = 0; head < dims.HO; ++head) {
        const cpu::Run run = row(args, port, {0, 0}, head);
        double total = 0;  // over what has one element for the whole head
        for (std::int64_t i = 0; i < count; ++i) {
          double sum = 0;
          for (std::int64_t n = 0; sums != nullptr && n < dims.N; ++n) {
            sum += sums[args.sums * (n * dims.HO + head) + first + i];
          }
          total += sum;
          if (problem_[port].rank > 1) store(run.dtype, run.data, i * run.stride, sum);
        }
        if (problem_[port].rank == 1) store(run.dtype, run.data, 0, total);
      }
    };
    const std::int64_t gates = args.sums - 1 - dims.V;
    store_sums(Port::kDALog, 0, 1);
    store_sums(Port::kDDtBias, 1, gates);
    store_sums(Port::kDD, 1 + gates, dims.V);
  }

  Problem problem_;
  const Kernels& kernels_;
  Args args_;
  std::int64_t span_ = 1;        // values of a forward item at most
  std::int64_t spans_ = 1;       // of values, a (sequence, head)
  std::int64_t heads_ = 1;       // of an item
  std::int64_t head_items_ = 0;  // of a sequence, and span of values
  std::int64_t items_ = 0;
  std::size_t scratch_ = 0;  // floats
  int workers_ = 0;
};

class CpuEngine final : public Engine {
 public:
  const char* name() const override { return "cpu"; }

  Check check(const Problem& problem, const Dims&) const override {
    const Options& o = problem.options;
    const TensorDesc& q = problem[Port::kQ];
    return std::move(
        Check{}
            .need(q.device.type == DeviceType::kCpu, "tensors must be in CPU memory",
                  deltaworks::name(q.device.type))
            .need(q.dtype != DType::kFloat64,
                  cat(io_names(problem.op), " must be float32, bfloat16 or float16"),
                  deltaworks::name(q.dtype))
            .need(!problem.has(Port::kStateIndices),
                  "state_indices must be absent (state pools are not supported yet)", "a tensor")
            .need(o.checkpoint_every_n_tokens == 0,
                  "checkpoint_every_n_tokens must be 0 (state checkpoints are not supported yet)",
                  o.checkpoint_every_n_tokens));
  }

  std::unique_ptr<const Executable> build(const Problem& problem, const Dims& dims) const override {
    return std::make_unique<CpuExecutable>(problem, dims);
  }
};

constinit const CpuEngine engine;  // asked for its name while libraries load

}  // namespace

const Engine& cpu_engine() { return engine; }

}  // namespace deltaworks
