// Products of 16-bit tiles on tensor cores, their operands taken every way; and of split fp32.
#include <algorithm>

#include "device_kit.cuh"
#include "engines/cuda/device/copy.cuh"
#include "engines/cuda/device/mma.cuh"
#include "engines/cuda/device/split.cuh"

namespace deltaworks::cuda::device_test {
namespace {

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
  finish(name);
  const std::vector<float> c = card_c.fetch();
  double worst = 0;
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 64; ++j) {
      double sum = 0;
      for (int m = 0; m < 64; ++m) {
        sum += static_cast<double>(static_cast<float>(a[kTransposedA ? m * 64 + i : i * 64 + m])) *
               static_cast<double>(static_cast<float>(b[kTransposedB ? j * 64 + m : m * 64 + j]));
      }
      keep_largest(worst, std::abs(c[i * 64 + j] - sum));
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
  finish(name);
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
      keep_largest(worst, std::abs(c[i * 64 + j] - sum));
    }
  }
  // A square near the middle of two 16-bit numbers may be rounded to the other one.
  report(name, worst, 2e-2);
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
  finish(name);
  const std::vector<float> c = card_c.fetch();
  double worst = 0;
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      double sum = 0;
      for (int m = 0; m < 16; ++m) {
        sum += static_cast<double>(static_cast<float>(a[i * 64 + m])) *
               x[kTransposed ? j * 16 + m : m * 16 + j];
      }
      keep_largest(worst, std::abs(c[i * 16 + j] - sum));
    }
  }
  report(name, worst, 16 * 16 * 6e-8);
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

template <class Half>
void test_products_of(const std::string& name) {
  test_product<Half, false, false>(name + " A B");
  test_product<Half, true, false>(name + " A^T B");
  test_product<Half, false, true>(name + " A B^T");
  test_product<Half, true, true>(name + " A^T B^T");
  test_operand<Half, false>(name + " A X, X from accumulators");
  test_operand<Half, true>(name + " A X^T, X from accumulators");
  test_chain<Half>(name + " (A A) A through registers");
}

}  // namespace

void test_products() {
  test_products_of<__nv_bfloat16>("bf16");
  test_products_of<__half>("fp16");
  test_split();
}

}  // namespace deltaworks::cuda::device_test
