// Instances of the kernels and their launches: offsets, chunks side by side, then the walks.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "core/strings.h"
#include "deltaworks/status.h"
#include "engines/cuda/launch.h"
#include "engines/cuda/sm80/instances.h"
#include "engines/cuda/sm80/offsets.cuh"
#include "engines/cuda/sm80/prep.cuh"
#include "engines/cuda/sm80/segments.cuh"

namespace deltaworks::cuda {
namespace {

constexpr std::size_t kAlign = 256;

void require(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw Error(Status::kInternal, cat("CUDA: ", what, ": ", cudaGetErrorString(status)));
  }
}

// The calling thread's device for as long as this lives.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    require(cudaGetDevice(&before_), "cudaGetDevice");
    if (device != before_) require(cudaSetDevice(device), "cudaSetDevice");
    after_ = device;
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    if (after_ != before_) cudaSetDevice(before_);
  }

 private:
  int before_ = 0, after_ = 0;
};

// Calls f.template operator()<PrepConfig, WalkConfig>() for the io type, the padded dimensions and
// the stages of a walk. With 256 keys two stages would leave one block a multiprocessor.
template <class F>
auto with_config(DType io, int K, int stages, F&& f) {
  using namespace sm80;
  const auto with_half = [&]<class H>() {
    if (K > 128) return f.template operator()<PrepConfig<H, 256>, WalkConfig<H, 256, 1>>();
    if (K > 64) {
      return stages == 1 ? f.template operator()<PrepConfig<H, 128>, WalkConfig<H, 128, 1>>()
                         : f.template operator()<PrepConfig<H, 128>, WalkConfig<H, 128, 2>>();
    }
    return f.template operator()<PrepConfig<H, 64>, WalkConfig<H, 64, 2>>();
  };
  return io == DType::kFloat16 ? with_half.template operator()<__half>()
                               : with_half.template operator()<__nv_bfloat16>();
}

// Consecutive aligned arrays; without a base it only counts.
class Carver {
 public:
  explicit Carver(void* base) : base_(reinterpret_cast<std::uintptr_t>(base)) {
    used_ = (kAlign - base_ % kAlign) % kAlign;
  }
  template <class T>
  void take(T*& array, std::int64_t bytes) {
    array = reinterpret_cast<T*>(base_ + used_);
    used_ += (static_cast<std::size_t>(bytes) + kAlign - 1) / kAlign * kAlign;
  }
  std::size_t used() const { return used_; }

 private:
  std::uintptr_t base_;
  std::size_t used_;
};

std::size_t carve(Params& p, void* workspace) {
  Carver carver(workspace);
  const std::int64_t items = p.max_chunks * p.HO, offsets = (p.N + 1) * std::int64_t{8};
  carver.take(p.begin, offsets);
  carver.take(p.chunks, offsets);
  carver.take(p.further, offsets);
  carver.take(p.solve, items * kSolveVectors * 16);
  carver.take(p.scores, items * kTriangleVectors * 16);
  carver.take(p.rows, items * kRowFactors * 4);
  carver.take(p.states, p.max_further * p.HO * p.V * p.K * 4);
  carver.take(p.transitions, p.max_further * p.HO * p.K * p.K * 4);
  return carver.used();
}

// A call's kernels, with their blocks: what is loaded and what is launched.
struct Step {
  const char* name;
  const void* kernel;
  std::int64_t blocks;
  int threads;
  std::size_t shared;  // dynamic
};
template <class Kernel>
Step step(const char* name, Kernel* kernel, std::int64_t blocks, std::size_t shared = 0,
          int threads = sm80::kThreads) {
  return {name, reinterpret_cast<const void*>(kernel), blocks, threads, shared};
}

// Calls f(step) for the kernels of a call, in their order.
template <class F>
void for_steps(Op op, const Params& p, F&& f) {
  f(step("find_offsets", sm80::find_offsets, 1, 0, sm80::kOffsetThreads));
  const std::int64_t pairs = static_cast<std::int64_t>(p.N) * p.HO;
  const std::int64_t further = p.max_further * p.HO;
  sm80::with_instance(op, [&]<class Variant>() {
    with_config(p.q.dtype, p.K, p.stages, [&]<class Prep, class Walk>() {
      // One block at least: it clears rows that are in no sequence.
      f(step("prepare_chunks", sm80::prepare_chunks<Variant, Prep>,
             p.HO * (p.max_chunks > 0 ? p.max_chunks : 1), sizeof(sm80::PrepShared<Prep>)));
      const std::int64_t values = sm80::blocks_of(p.V, Walk::kVB);
      const std::int64_t keys = sm80::blocks_of(p.K, Walk::kVB);
      const std::size_t shared = sizeof(sm80::WalkShared<Walk>);
      f(step("walk_first", sm80::walk_first<Variant, Walk>,
             pairs * values + further * (values + keys), shared));
      if (further == 0) return;
      f(step("fix_up", sm80::fix_up<Walk::kK>, further * sm80::blocks_of(p.V, sm80::kFixValues)));
      f(step("walk_further", sm80::walk_further<Variant, Walk>, further * values, shared));
    });
  });
}

}  // namespace

Card card(int device) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();  // not sticky
    return {.problem = cudaGetErrorString(status)};
  }
  if (device < 0 || device >= count) return {.problem = cat("device ", device, " of ", count)};
  const auto attribute = [device](cudaDeviceAttr which) {
    int value = 0;
    require(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
    return value;
  };
  return {.problem = "",
          .capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor) +
                        attribute(cudaDevAttrComputeCapabilityMinor),
          .limits = {.shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)}};
}

std::size_t shared_bytes(int K, int stages) {
  return with_config(DType::kBFloat16, K, stages, [&]<class Prep, class Walk>() {
    return std::max(sizeof(sm80::PrepShared<Prep>), sizeof(sm80::WalkShared<Walk>));
  });
}

std::size_t workspace_bytes(const Params& p) {
  Params copy = p;
  return carve(copy, nullptr) + kAlign;
}

void read_back(void* to, const void* from, std::size_t bytes, int device, void* stream) {
  const OnDevice on(device);
  const auto on_stream = static_cast<cudaStream_t>(stream);
  require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, on_stream), "cudaMemcpyAsync");
  require(cudaStreamSynchronize(on_stream), "cudaStreamSynchronize");
}

void load_kernels(Op op, const Params& p, int device) {
  const OnDevice on(device);
  for_steps(op, p, [](const Step& s) {
    require(cudaFuncSetAttribute(s.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(s.shared)),
            s.name);
  });
}

void launch_forward(Op op, Params p, int device, void* workspace, void* stream) {
  const OnDevice on(device);
  carve(p, workspace);
  for_steps(op, p, [&](const Step& s) {
    if (s.blocks == 0) return;
    void* arguments[] = {&p};
    require(cudaLaunchKernel(s.kernel, dim3(static_cast<unsigned>(s.blocks)), dim3(s.threads),
                             arguments, s.shared, static_cast<cudaStream_t>(stream)),
            s.name);
  });
}

}  // namespace deltaworks::cuda
