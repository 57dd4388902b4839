// The device vocabulary on a card: each primitive of src/engines/cuda/device against double
// precision on the host. Prints one line a primitive: name, largest error, bound, ok or FAILED.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "engines/cuda/device/copy.cuh"
#include "engines/cuda/device/inverse.cuh"
#include "engines/cuda/device/mma.cuh"
#include "engines/cuda/device/warp.cuh"

namespace {

using namespace deltaworks::cuda::device;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(2);
}

// An array on the card that holds what the host gave, or poison.
template <class T>
class OnCard {
 public:
  explicit OnCard(const std::vector<T>& host) : count_(host.size()) {
    check(cudaMalloc(&data_, count_ * sizeof(T)), "cudaMalloc");
    check(cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "copy in");
  }
  explicit OnCard(std::size_t count) : count_(count) {
    check(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc");
    check(cudaMemset(data_, 0xff, count * sizeof(T)), "poison");
  }
  OnCard(const OnCard&) = delete;
  OnCard& operator=(const OnCard&) = delete;
  ~OnCard() { cudaFree(data_); }
  T* get() const { return data_; }
  std::vector<T> fetch() const {
    std::vector<T> host(count_);
    check(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "copy out");
    return host;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

void finish(const char* name) {
  check(cudaGetLastError(), name);
  check(cudaDeviceSynchronize(), name);
}

std::mt19937 random_bits(1);
std::vector<float> normal(std::size_t count, float spread = 1) {
  std::normal_distribution<float> distribution(0, spread);
  std::vector<float> x(count);
  for (float& value : x) value = distribution(random_bits);
  return x;
}

template <class Half>
std::vector<Half> rounded(const std::vector<float>& x) {
  std::vector<Half> halves(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) halves[i] = Half(x[i]);
  return halves;
}

int failures = 0;
void report(const std::string& name, double error, double bound) {
  const bool ok = error <= bound;  // not of NaN
  failures += !ok;
  std::printf("%-44s %.3e %.3e %s\n", name.c_str(), error, bound, ok ? "ok" : "FAILED");
}

// The four ways to take operands from tiles: C = A B with A or its transpose stored, and B or its.
template <class Half, bool kTransposedA, bool kTransposedB>
__global__ void product_kernel(const Half* a, const Half* b, float* c) {
  __shared__ alignas(16) unsigned char memory[2 * Tile<Half, 64, 64>::kBytes];
  const Tile<Half, 64, 64> tile_a(memory), tile_b(memory + Tile<Half, 64, 64>::kBytes);
  load_rows(tile_a, a, 64, 1, 64, 64, true);
  load_rows(tile_b, b, 64, 1, 64, 64, true);
  commit_async();
  wait_async<0>();
  __syncthreads();
  const int row = threadIdx.x / 32 * 16;
  for (int column = 0; column < 64; column += 16) {
    Accumulator sum[2];
    for (int m = 0; m < 64; m += 16) {
      const FragmentA left =
          kTransposedA ? load_a_transposed(tile_a, m, row) : load_a(tile_a, row, m);
      const FragmentBPair right =
          kTransposedB ? load_b_transposed(tile_b, column, m) : load_b(tile_b, m, column);
      for (int half = 0; half < 2; ++half) multiply_add<Half>(sum[half], left, right.x[half]);
    }
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i) {
        c[(row + Accumulator::row(i)) * 64 + column + half * 8 + Accumulator::column(i)] =
            sum[half].x[i];
      }
    }
  }
}

template <class Half, bool kTransposedA, bool kTransposedB>
void test_product(const std::string& name) {
  const std::vector<Half> a = rounded<Half>(normal(4096)), b = rounded<Half>(normal(4096));
  const OnCard<Half> card_a(a), card_b(b);
  const OnCard<float> card_c(4096);
  product_kernel<Half, kTransposedA, kTransposedB>
      <<<1, 128>>>(card_a.get(), card_b.get(), card_c.get());
  finish(name.c_str());
  const std::vector<float> c = card_c.fetch();
  double worst = 0;
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 64; ++j) {
      double sum = 0;
      for (int m = 0; m < 64; ++m) {
        sum += static_cast<double>(static_cast<float>(a[kTransposedA ? m * 64 + i : i * 64 + m])) *
               static_cast<double>(static_cast<float>(b[kTransposedB ? j * 64 + m : m * 64 + j]));
      }
      worst = std::max(worst, std::abs(c[i * 64 + j] - sum));
      if (std::isnan(c[i * 64 + j])) worst = NAN;
    }
  }
  report(name, worst, 64 * 16 * 6e-8);  // fp32 sums of 64 terms of size up to ~16
}

// A chain: the result of a product, rounded, is the left operand of the next.
template <class Half>
__global__ void chain_kernel(const Half* a, float* c) {
  __shared__ alignas(16) unsigned char memory[Tile<Half, 64, 64>::kBytes];
  const Tile<Half, 64, 64> tile(memory);
  load_rows(tile, a, 64, 1, 64, 64, true);
  commit_async();
  wait_async<0>();
  __syncthreads();
  Accumulator square[8], cube[8];
  const int row = threadIdx.x / 32 * 16;
  for (int m = 0; m < 64; m += 16) {
    const FragmentA left = load_a(tile, row, m);
    for (int n = 0; n < 8; n += 2) {
      const FragmentBPair right = load_b(tile, m, n * 8);
      for (int half = 0; half < 2; ++half)
        multiply_add<Half>(square[n + half], left, right.x[half]);
    }
  }
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const FragmentA left = to_a<Half>(square[2 * m], square[2 * m + 1]);
    for (int n = 0; n < 8; n += 2) {
      const FragmentBPair right = load_b(tile, m * 16, n * 8);
      for (int half = 0; half < 2; ++half) multiply_add<Half>(cube[n + half], left, right.x[half]);
    }
  }
  for (int n = 0; n < 8; ++n) {
    for (int i = 0; i < 4; ++i) {
      c[(row + Accumulator::row(i)) * 64 + n * 8 + Accumulator::column(i)] = cube[n].x[i];
    }
  }
}

template <class Half>
void test_chain(const std::string& name) {
  const std::vector<Half> a = rounded<Half>(normal(4096, 0.125f));
  const OnCard<Half> card_a(a);
  const OnCard<float> card_c(4096);
  chain_kernel<Half><<<1, 128>>>(card_a.get(), card_c.get());
  finish(name.c_str());
  const std::vector<float> c = card_c.fetch();
  std::vector<double> square(4096);
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 64; ++j) {
      double sum = 0;
      for (int m = 0; m < 64; ++m) {
        sum += static_cast<double>(static_cast<float>(a[i * 64 + m])) *
               static_cast<float>(a[m * 64 + j]);
      }
      square[i * 64 + j] = static_cast<float>(Half(static_cast<float>(sum)));
    }
  }
  double worst = 0;
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 64; ++j) {
      double sum = 0;
      for (int m = 0; m < 64; ++m) sum += square[i * 64 + m] * static_cast<float>(a[m * 64 + j]);
      worst = std::max(worst, std::abs(c[i * 64 + j] - sum));
      if (std::isnan(c[i * 64 + j])) worst = NAN;
    }
  }
  // A square near the middle of two 16-bit numbers may be rounded to the other one.
  report(name, worst, 2e-2);
}

// Loads: wide and narrow, with rows and columns that are not there.
template <class Half>
__global__ void load_kernel(const Half* from, std::int64_t row_stride, std::int64_t column_stride,
                            int rows, int columns, bool wide, Half* to) {
  __shared__ alignas(16) unsigned char memory[Tile<Half, 64, 128>::kBytes];
  const Tile<Half, 64, 128> tile(memory);
  load_rows(tile, from, row_stride, column_stride, rows, columns, wide);
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
  finish(name.c_str());
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

__global__ void inverse_kernel(const float* a, float* x) {
  __shared__ alignas(16) float memory[2 * kInverseRows * kInverseStride];
  float* inverse = memory + kInverseRows * kInverseStride;
  for (int i = threadIdx.x; i < 4096; i += blockDim.x) {
    memory[i / 64 * kInverseStride + i % 64] = i % 64 < i / 64 ? a[i] : NAN;  // is not read
  }
  invert_unit_lower_64(memory, inverse);
  for (int i = threadIdx.x; i < 4096; i += blockDim.x) {
    x[i] = inverse[i / 64 * kInverseStride + i % 64];
  }
}

void test_inverse(const std::string& name, const std::function<double(int, int)>& element,
                  int threads, double bound) {
  std::vector<float> a(4096);
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < i; ++j) a[i * 64 + j] = static_cast<float>(element(i, j));
  }
  const OnCard<float> card_a(a), card_x(4096);
  inverse_kernel<<<1, threads>>>(card_a.get(), card_x.get());
  finish(name.c_str());
  const std::vector<float> x = card_x.fetch();
  double worst = 0, largest = 0;
  for (int j = 0; j < 64; ++j) {
    double solved[64];
    for (int i = 0; i < 64; ++i) {
      solved[i] = i == j;
      for (int m = j; m < i; ++m) solved[i] -= static_cast<double>(a[i * 64 + m]) * solved[m];
      largest = std::max(largest, std::abs(solved[i]));
      worst = std::max(worst, std::abs(x[i * 64 + j] - solved[i]));
      if (std::isnan(x[i * 64 + j])) worst = NAN;
    }
  }
  report(name + " (" + std::to_string(threads) + " threads)", worst / largest, bound);
}

__global__ void sum_kernel(const float* x, float* sums, float* prefixes) {
  __shared__ float memory[64];
  memory[threadIdx.x] = x[threadIdx.x];
  memory[threadIdx.x + 32] = x[threadIdx.x + 32];
  __syncwarp();
  sums[threadIdx.x] = warp_sum(x[threadIdx.x]);
  prefix_sum_64(memory);
  __syncwarp();
  prefixes[threadIdx.x] = memory[threadIdx.x];
  prefixes[threadIdx.x + 32] = memory[threadIdx.x + 32];
}

void test_sums(const std::string& name, const std::vector<float>& x) {
  const OnCard<float> card_x(x), sums(32), prefixes(64);
  sum_kernel<<<1, 32>>>(card_x.get(), sums.get(), prefixes.get());
  finish(name.c_str());
  const std::vector<float> sum = sums.fetch(), prefix = prefixes.fetch();
  double through = 0, size = 0, worst = 0, whole = 0;
  for (int i = 0; i < 64; ++i) {
    through += x[i];
    size += std::abs(x[i]);
    if (i == 31) whole = through;
    worst = std::max(worst, std::abs(prefix[i] - through) / size);
    if (std::isnan(prefix[i])) worst = NAN;
  }
  report(name + ", prefixes", worst, 4e-7);
  worst = 0;
  for (float each : sum) worst = std::max(worst, std::abs(each - whole));
  report(name + ", sum in every lane", worst / size, 4e-7);
}

template <class Half>
void test_halves(const std::string& name) {
  test_product<Half, false, false>(name + " A B");
  test_product<Half, true, false>(name + " A^T B");
  test_product<Half, false, true>(name + " A B^T");
  test_product<Half, true, true>(name + " A^T B^T");
  test_chain<Half>(name + " (A A) A through registers");
  test_load<Half>(name + " load, wide", 64, 128, 0, 128, 1, true);
  test_load<Half>(name + " load, wide, part of a row and of the rows", 37, 80, 16, 256, 1, true);
  test_load<Half>(name + " load, no rows", 0, 128, 0, 128, 1, true);
  test_load<Half>(name + " load, narrow, odd base and stride", 50, 77, 1, 129, 1, false);
  test_load<Half>(name + " load, narrow, columns apart", 64, 128, 3, 3, 200, false);
  test_load<Half>(name + " load, narrow, zero strides", 64, 128, 5, 0, 0, false);
}

}  // namespace

int main() {
  test_halves<__nv_bfloat16>("bf16");
  test_halves<__half>("fp16");
  std::normal_distribution<double> normal_number;
  for (int threads : {64, 128, 256}) {
    test_inverse(
        "inverse, random", [&](int, int) { return 0.3 * normal_number(random_bits); }, threads,
        2e-5);
    test_inverse(
        "inverse, repeated keys, beta = 1", [](int, int) { return 1.0; }, threads, 1e-6);
    test_inverse(
        "inverse, repeated keys, beta = 2", [](int, int) { return 2.0; }, threads, 1e-6);
    test_inverse(
        "inverse, zero", [](int, int) { return 0.0; }, threads, 0);
  }
  test_sums("sums, normal", normal(64));
  std::vector<float> resets = normal(64, 0.05f);
  for (float& x : resets) x = -std::abs(x);
  resets[10] = resets[41] = -110;
  test_sums("sums, gates with resets", resets);
  std::printf("%d failed\n", failures);
  return failures == 0 ? 0 : 1;
}
