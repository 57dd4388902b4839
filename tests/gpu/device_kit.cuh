// What the tests of the device vocabulary share: arrays on the card, random numbers, 16-bit floats
// on the host (core/convert.h, exact integer arithmetic), and the report, one line a test.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "core/convert.h"
#include "engines/cuda/device/half.cuh"

namespace deltaworks::cuda::device_test {

using namespace device;

// The groups of tests, a file each.
void test_products();
void test_transposes();
void test_solves();
void test_copies();
void test_halves();
void test_gates();
void test_chunks();

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(2);
}

// An array on the card that holds what the host gave, or poison: every byte 0xff.
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

inline void finish(const std::string& name) {
  check(cudaGetLastError(), name.c_str());
  check(cudaDeviceSynchronize(), name.c_str());
}

// Blocks of 256 threads, a thread for each of `count`.
inline unsigned blocks_for(std::size_t count) { return static_cast<unsigned>((count + 255) / 256); }
__device__ inline int thread_number() {
  return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

inline std::mt19937 random_bits(1);
inline std::vector<float> normal(std::size_t count, float spread = 1) {
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

// The bits of a number rounded to a 16-bit float, and the value of such bits.
template <class Half>
std::uint16_t bits_of(float x) {
  return std::is_same_v<Half, __half> ? fp16_from_float(x) : bf16_from_float(x);
}
template <class Half>
float value_of(std::uint16_t bits) {
  return std::is_same_v<Half, __half> ? float_from_fp16(bits) : float_from_bf16(bits);
}

// The same bits, or both NaN.
inline bool same(float a, float b) {
  if (std::isnan(a)) return std::isnan(b);
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

// Keeps the largest error; NaN is larger than any other.
inline void keep_largest(double& worst, double error) {
  if (!std::isnan(worst) && !(error <= worst)) worst = error;
}

inline int failures = 0;
inline void report(const std::string& name, double error, double bound) {
  const bool ok = error <= bound;  // not of NaN
  failures += !ok;
  std::printf("%-44s %.3e %.3e %s\n", name.c_str(), error, bound, ok ? "ok" : "FAILED");
}

}  // namespace deltaworks::cuda::device_test
