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
  load_rows<128>(tile_a, a, 64, 1, 64, 64, true);
  load_rows<128>(tile_b, b, 64, 1, 64, 64, true);
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
  load_rows<128>(tile, a, 64, 1, 64, 64, true);
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

// Four warps, as in a block that prepares a chunk.
__global__ void inverse_kernel(const float* a, float* x) {
  __shared__ alignas(16) float memory[kInverseRows * kInverseStride];
  for (int i = threadIdx.x; i < 4096; i += blockDim.x) {
    memory[i / 64 * kInverseStride + i % 64] = i % 64 < i / 64 ? a[i] : NAN;  // is not read
  }
  __syncthreads();
  const int warp = threadIdx.x / 32;
  invert_diagonal_16(memory + warp * 16 * (kInverseStride + 1));
  __syncthreads();
  invert_column(memory, warp, [&](int i, const TransposedBlock& block) {
    for (int n = 0; n < 2; ++n) {
      for (int e = 0; e < 4; ++e) {
        x[(i * 16 + n * 8 + Accumulator::column(e)) * 64 + warp * 16 + Accumulator::row(e)] =
            block.x[n].x[e];
      }
    }
  });
}

void test_inverse(const std::string& name, const std::function<double(int, int)>& element,
                  double bound) {
  std::vector<float> a(4096);
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < i; ++j) a[i * 64 + j] = static_cast<float>(element(i, j));
  }
  const OnCard<float> card_a(a), card_x(4096);
  inverse_kernel<<<1, 128>>>(card_a.get(), card_x.get());
  finish(name.c_str());
  const std::vector<float> x = card_x.fetch();
  double worst = 0, largest = 0;
  for (int j = 0; j < 64; ++j) {
    double solved[64];
    for (int i = 0; i < 64; ++i) {
      solved[i] = i == j;
      for (int m = j; m < i; ++m) solved[i] -= static_cast<double>(a[i * 64 + m]) * solved[m];
      if (i / 16 < j / 16) continue;  // a block that is not made
      largest = std::max(largest, std::abs(solved[i]));
      worst = std::max(worst, std::abs(x[i * 64 + j] - solved[i]));
      if (std::isnan(x[i * 64 + j])) worst = NAN;
    }
  }
  report(name, worst / largest, bound);
}

// C = A B^T of split fp32 operands, and C as operands of the next product: D = C B^T.
__global__ void split_kernel(const float* a, const float* b, float* d) {
  const int lane = threadIdx.x;
  Accumulator c[2], result[2];
  for (int pass = 0; pass < 2; ++pass) {
    for (int step = 0; step < 2; ++step) {
      Accumulator left;
      for (int e = 0; e < 4; ++e) {
        left.x[e] = a[Accumulator::row(e) * 16 + step * 8 + Accumulator::column(e)];
      }
      for (int n = 0; n < 2; ++n) {
        const float* row = b + (n * 8 + lane / 4) * 16 + step * 8 + lane % 4 * 2;
        if (pass == 0) multiply_add(c[n], split_a(left), split_b(row[0], row[1]));
        if (pass == 1) multiply_add(result[n], split_a(c[step]), split_b(row[0], row[1]));
      }
    }
  }
  for (int n = 0; n < 2; ++n) {
    for (int e = 0; e < 4; ++e) {
      d[Accumulator::row(e) * 16 + n * 8 + Accumulator::column(e)] = result[n].x[e];
    }
  }
}

void test_split() {
  const std::vector<float> a = normal(256), b = normal(256);
  const OnCard<float> card_a(a), card_b(b), card_d(256);
  split_kernel<<<1, 32>>>(card_a.get(), card_b.get(), card_d.get());
  finish("split products");
  const std::vector<float> d = card_d.fetch();
  const auto times = [&](const std::vector<double>& x) {
    std::vector<double> y(256);
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) {
        for (int m = 0; m < 16; ++m) y[i * 16 + j] += x[i * 16 + m] * b[j * 16 + m];
      }
    }
    return y;
  };
  const std::vector<double> expected = times(times({a.begin(), a.end()}));
  double worst = 0, largest = 0;
  for (int i = 0; i < 256; ++i) {
    worst = std::max(worst, std::abs(d[i] - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
    if (std::isnan(d[i])) worst = NAN;
  }
  report("split fp32 products, twice", worst / largest, 4e-6);
}

// A right operand made from accumulators that hold X: C = A X, and C = A X^T.
template <class Half, bool kTransposed>
__global__ void operand_kernel(const Half* a, const float* x, float* c) {
  __shared__ alignas(16) unsigned char memory[Tile<Half, 16, 64>::kBytes];
  const Tile<Half, 16, 64> tile(memory);
  for (int i = threadIdx.x; i < 16 * 64; i += 32) tile.at(i / 64, i % 64) = a[i];
  __syncwarp();
  Accumulator held[2], sum[2];
  for (int n = 0; n < 2; ++n) {
    for (int e = 0; e < 4; ++e) {
      held[n].x[e] = x[Accumulator::row(e) * 16 + n * 8 + Accumulator::column(e)];
    }
  }
  const uint4 vector =
      kTransposed ? to_b_transposed<Half>(held[0], held[1]) : to_b<Half>(held[0], held[1]);
  const FragmentBPair right = load_b_vector(vector);
  for (int n = 0; n < 2; ++n) {
    multiply_add<Half>(sum[n], load_a(tile, 0, 0), right.x[n]);
    for (int e = 0; e < 4; ++e) {
      c[Accumulator::row(e) * 16 + n * 8 + Accumulator::column(e)] = sum[n].x[e];
    }
  }
}

template <class Half, bool kTransposed>
void test_operand(const std::string& name) {
  const std::vector<Half> a = rounded<Half>(normal(16 * 64));
  std::vector<float> x = normal(256);
  for (float& each : x) each = static_cast<float>(Half(each));
  const OnCard<Half> card_a(a);
  const OnCard<float> card_x(x), card_c(256);
  operand_kernel<Half, kTransposed><<<1, 32>>>(card_a.get(), card_x.get(), card_c.get());
  finish(name.c_str());
  const std::vector<float> c = card_c.fetch();
  double worst = 0;
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      double sum = 0;
      for (int m = 0; m < 16; ++m) {
        sum += static_cast<double>(static_cast<float>(a[i * 64 + m])) *
               x[kTransposed ? j * 16 + m : m * 16 + j];
      }
      worst = std::max(worst, std::abs(c[i * 16 + j] - sum));
      if (std::isnan(c[i * 16 + j])) worst = NAN;
    }
  }
  report(name, worst, 16 * 16 * 6e-8);
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
  test_operand<Half, false>(name + " A X, X from accumulators");
  test_operand<Half, true>(name + " A X^T, X from accumulators");
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
  test_split();
  test_inverse(
      "inverse, random", [&](int, int) { return 0.3 * normal_number(random_bits); }, 2e-5);
  test_inverse(
      "inverse, repeated keys, beta = 1", [](int, int) { return 1.0; }, 1e-6);
  test_inverse(
      "inverse, repeated keys, beta = 2", [](int, int) { return 2.0; }, 1e-6);
  test_inverse(
      "inverse, zero", [](int, int) { return 0.0; }, 0);
  test_sums("sums, normal", normal(64));
  std::vector<float> resets = normal(64, 0.05f);
  for (float& x : resets) x = -std::abs(x);
  resets[10] = resets[41] = -110;
  test_sums("sums, gates with resets", resets);
  std::printf("%d failed\n", failures);
  return failures == 0 ? 0 : 1;
}
