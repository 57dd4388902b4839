// Instances of the kernels and their launches: offsets, then chunks side by side, then the walk.
#include <cuda_runtime.h>

#include <cstdint>

#include "core/strings.h"
#include "deltaworks/status.h"
#include "engines/cuda/launch.h"
#include "engines/cuda/sm80/offsets.cuh"
#include "engines/cuda/sm80/prep.cuh"
#include "engines/cuda/sm80/run.cuh"

namespace deltaworks::cuda {
namespace {

constexpr int kValueBlock = 64;
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
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaSetDevice(before_); }

 private:
  int before_ = 0;
};

// Calls f.template operator()<Config>() for the io type and the padded key dimension.
template <class F>
auto with_config(DType io, int K, F&& f) {
  const auto with_half = [&]<class Half>() {
    if (K <= 64) return f.template operator()<sm80::Config<Half, 64, kValueBlock>>();
    if (K <= 128) return f.template operator()<sm80::Config<Half, 128, kValueBlock>>();
    return f.template operator()<sm80::Config<Half, 256, kValueBlock>>();
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
  const std::int64_t items = p.max_chunks * p.HO;
  carver.take(p.begin, (p.N + 1) * static_cast<std::int64_t>(sizeof *p.begin));
  carver.take(p.chunks, (p.N + 1) * static_cast<std::int64_t>(sizeof *p.chunks));
  carver.take(p.solve, items * kChunk * kChunk * 2);
  carver.take(p.scores, items * kChunk * kChunk * 2);
  carver.take(p.rows, items * 3 * kChunk * static_cast<std::int64_t>(sizeof *p.rows));
  return carver.used();
}

template <class Kernel>
void launch(Kernel* kernel, std::int64_t blocks, int threads, std::size_t shared, const Params& p,
            cudaStream_t stream, const char* what) {
  if (blocks == 0) return;
  if (shared > 48 * 1024) {
    require(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared)),
            what);
  }
  kernel<<<static_cast<unsigned>(blocks), threads, shared, stream>>>(p);
  require(cudaGetLastError(), what);
}

}  // namespace

Card card(int device) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();  // not sticky
    return {.problem = cudaGetErrorString(status)};
  }
  if (device >= count) return {.problem = cat("device ", device, " of ", count)};
  int major = 0, minor = 0, shared = 0;
  require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "attribute");
  require(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "attribute");
  require(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          "attribute");
  return {.problem = "", .capability = 10 * major + minor, .shared_bytes = shared};
}

std::size_t shared_bytes(int K) {
  return with_config(DType::kBFloat16, K, [&]<class Config>() {
    return sizeof(sm80::PrepShared<Config>) > sizeof(sm80::RunShared<Config>)
               ? sizeof(sm80::PrepShared<Config>)
               : sizeof(sm80::RunShared<Config>);
  });
}

std::size_t workspace_bytes(const Params& p) {
  Params copy = p;
  return carve(copy, nullptr) + kAlign;
}

void launch_forward(Params p, int device, void* workspace, void* stream_pointer) {
  const OnDevice on(device);
  const auto stream = static_cast<cudaStream_t>(stream_pointer);
  carve(p, workspace);
  launch(sm80::find_offsets, 1, sm80::kOffsetThreads, 0, p, stream, "find_offsets");
  if (p.T > 0) launch(sm80::clear_rest, 256, 256, 0, p, stream, "clear_rest");
  with_config(p.q.dtype, p.K, [&]<class Config>() {
    launch(sm80::prepare_chunks<Config>, p.max_chunks * p.HO, Config::kThreads,
           sizeof(sm80::PrepShared<Config>), p, stream, "prepare_chunks");
    const std::int64_t blocks = (p.V + Config::kVB - 1) / Config::kVB;
    launch(sm80::run_chunks<Config>, static_cast<std::int64_t>(p.N) * p.HO * blocks,
           Config::kThreads, sizeof(sm80::RunShared<Config>), p, stream, "run_chunks");
  });
}

}  // namespace deltaworks::cuda
