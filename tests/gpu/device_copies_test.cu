// Copies from global to shared memory: rows into tiles, and plain vectors.
#include "device_kit.cuh"
#include "engines/cuda/device/copy.cuh"

namespace deltaworks::cuda::device_test {
namespace {

// Loads: wide and narrow, with rows and columns that are not there.
template <class Half>
__global__ void load_kernel(const Half* from, std::int64_t row_stride, std::int64_t column_stride,
                            int rows, int columns, bool wide, Half* to) {
  __shared__ alignas(16) unsigned char memory[Tile<Half, 64, 128>::kBytes];
  const Tile<Half, 64, 128> tile(memory);
  load_rows<128>(tile, from, row_stride, column_stride, rows, columns, wide);
  commit_async();
  wait_async<0>();
  __syncthreads();
  for (int i = threadIdx.x; i < 64 * 128; i += blockDim.x) to[i] = tile.at(i / 128, i % 128);
}

template <class Half>
void test_load(const std::string& name, int rows, int columns, int shift, int row_stride,
               int column_stride, bool wide) {
  const std::vector<Half> x = rounded<Half>(normal(shift + 64 * 512));
  const OnCard<Half> from(x), to(64 * 128);
  load_kernel<Half>
      <<<1, 128>>>(from.get() + shift, row_stride, column_stride, rows, columns, wide, to.get());
  finish(name);
  const std::vector<Half> got = to.fetch();
  int wrong = 0;
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 128; ++j) {
      const float expected = i < rows && j < columns
                                 ? static_cast<float>(x[shift + i * row_stride + j * column_stride])
                                 : 0.0f;
      wrong += !(static_cast<float>(got[i * 128 + j]) == expected);
    }
  }
  report(name, wrong, 0);
}

// What lies behind the last vector must stay as it was.
template <int kThreads, int kCount>
__global__ void vectors_kernel(const uint4* from, uint4* to) {
  __shared__ uint4 memory[kCount + kThreads];
  for (int i = threadIdx.x; i < kCount + kThreads; i += kThreads) memory[i] = {1, 2, 3, 4};
  __syncthreads();
  load_vectors<kThreads, kCount>(memory, from);
  commit_async();
  wait_async<0>();
  __syncthreads();
  for (int i = threadIdx.x; i < kCount + kThreads; i += kThreads) to[i] = memory[i];
}

template <int kThreads, int kCount>
void test_vectors() {
  const std::string name =
      "load " + std::to_string(kCount) + " vectors, " + std::to_string(kThreads) + " threads";
  std::vector<uint4> x(kCount + kThreads);
  for (uint4& each : x) {
    each = {static_cast<unsigned>(random_bits()), static_cast<unsigned>(random_bits()),
            static_cast<unsigned>(random_bits()), static_cast<unsigned>(random_bits())};
  }
  const OnCard<uint4> from(x), to(x.size());
  vectors_kernel<kThreads, kCount><<<1, kThreads>>>(from.get(), to.get());
  finish(name);
  const std::vector<uint4> got = to.fetch();
  int wrong = 0;
  for (int i = 0; i < kCount + kThreads; ++i) {
    const uint4 expected = i < kCount ? x[i] : uint4{1, 2, 3, 4};
    wrong += !(got[i].x == expected.x && got[i].y == expected.y && got[i].z == expected.z &&
               got[i].w == expected.w);
  }
  report(name, wrong, 0);
}

template <class Half>
void test_loads(const std::string& name) {
  test_load<Half>(name + " load, wide", 64, 128, 0, 128, 1, true);
  test_load<Half>(name + " load, wide, part of a row and of the rows", 37, 80, 16, 256, 1, true);
  test_load<Half>(name + " load, no rows", 0, 128, 0, 128, 1, true);
  test_load<Half>(name + " load, narrow, odd base and stride", 50, 77, 1, 129, 1, false);
  test_load<Half>(name + " load, narrow, columns apart", 64, 128, 3, 3, 200, false);
  test_load<Half>(name + " load, narrow, zero strides", 64, 128, 5, 0, 0, false);
}

}  // namespace

void test_copies() {
  test_loads<__nv_bfloat16>("bf16");
  test_loads<__half>("fp16");
  test_vectors<128, 10 * 32>();
  test_vectors<128, 20 * 32>();
  test_vectors<128, 49>();
  test_vectors<256, 10 * 32>();
  test_vectors<256, 20 * 32>();
  test_vectors<256, 49>();
  test_vectors<128, 256>();
}

}  // namespace deltaworks::cuda::device_test
