// The triangular inverse, and sums across a warp.
#include <algorithm>
#include <functional>

#include "device_kit.cuh"
#include "engines/cuda/device/inverse.cuh"
#include "engines/cuda/device/warp.cuh"

namespace deltaworks::cuda::device_test {
namespace {

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
  finish(name);
  const std::vector<float> x = card_x.fetch();
  double worst = 0, largest = 0;
  for (int j = 0; j < 64; ++j) {
    double solved[64];
    for (int i = 0; i < 64; ++i) {
      solved[i] = i == j;
      for (int m = j; m < i; ++m) solved[i] -= static_cast<double>(a[i * 64 + m]) * solved[m];
      if (i / 16 < j / 16) continue;  // a block that is not made
      largest = std::max(largest, std::abs(solved[i]));
      keep_largest(worst, std::abs(x[i * 64 + j] - solved[i]));
    }
  }
  report(name, worst / largest, bound);
}

__global__ void sum_kernel(const float* x, float* prefixes) {
  __shared__ float memory[64];
  memory[threadIdx.x] = x[threadIdx.x];
  memory[threadIdx.x + 32] = x[threadIdx.x + 32];
  __syncwarp();
  prefix_sum_64(memory);
  __syncwarp();
  prefixes[threadIdx.x] = memory[threadIdx.x];
  prefixes[threadIdx.x + 32] = memory[threadIdx.x + 32];
}

// A sum takes in what lies before it alone, through at most 7 additions: an error of 7 * 2^-24 of
// the absolute sum so far. A large value behind it must not show.
void test_sums(const std::string& name, const std::vector<float>& x) {
  const OnCard<float> card_x(x), prefixes(64);
  sum_kernel<<<1, 32>>>(card_x.get(), prefixes.get());
  finish(name);
  const std::vector<float> prefix = prefixes.fetch();
  double through = 0, size = 0, worst = 0;
  for (int i = 0; i < 64; ++i) {
    through += x[i];
    size += std::abs(x[i]);
    keep_largest(worst, std::abs(prefix[i] - through) / size);
  }
  report(name + ", prefixes", worst, 7 * 0x1p-24);
}

}  // namespace

void test_solves() {
  std::normal_distribution<double> normal_number;
  test_inverse(
      "inverse, random", [&](int, int) { return 0.3 * normal_number(random_bits); }, 2e-5);
  test_inverse(
      "inverse, repeated keys, beta = 1", [](int, int) { return 1.0; }, 1e-6);
  test_inverse(
      "inverse, repeated keys, beta = 2", [](int, int) { return 2.0; }, 1e-6);
  test_inverse(
      "inverse, zero", [](int, int) { return 0.0; }, 0);
  test_sums("sums, normal", normal(64));
  std::vector<float> gates = normal(64, 0.05f);
  for (float& x : gates) x = -std::abs(x);
  std::vector<float> resets = gates;
  resets[10] = resets[41] = -110;
  test_sums("sums, gates with resets", resets);
  gates[1] = -110;
  test_sums("sums, early reset", gates);
}

}  // namespace deltaworks::cuda::device_test
