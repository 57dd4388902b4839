// Transposes through registers: 8 x 8 matrices, and stores of transposed accumulators into tiles.
#include "device_kit.cuh"
#include "engines/cuda/device/mma.cuh"

namespace deltaworks::cuda::device_test {
namespace {

__global__ void transpose_kernel(const std::uint32_t* x, std::uint32_t* y) {
  y[threadIdx.x] = transpose_8x8(x[threadIdx.x]);
}

void test_transpose() {
  std::vector<std::uint32_t> x(32);
  for (std::uint32_t& each : x) each = random_bits();  // any bits: no number is looked at
  const OnCard<std::uint32_t> card_x(x), card_y(32);
  transpose_kernel<<<1, 32>>>(card_x.get(), card_y.get());
  finish("transpose, 8 x 8");
  const std::vector<std::uint32_t> y = card_y.fetch();
  const auto element = [](const std::vector<std::uint32_t>& of, int row, int column) {
    return of[row * 4 + column / 2] >> (column % 2 * 16) & 0xffff;
  };
  int wrong = 0;
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 8; ++j) wrong += element(y, i, j) != element(x, j, i);
  }
  report("transpose, 8 x 8", wrong, 0);
}

constexpr int kStoreRows = 64;
constexpr float kUntouched = 7;

// Stores the blocks first..last-1 of 16 x 16, numbered by rows, of a tile that holds kUntouched:
// x is [kColumns, kStoreRows], the tile its transpose. One warp.
template <class Half, int kColumns>
__global__ void store_kernel(const float* x, int first, int last, Half* to) {
  __shared__ alignas(16) unsigned char memory[Tile<Half, kStoreRows, kColumns>::kBytes];
  const Tile<Half, kStoreRows, kColumns> tile(memory);
  for (int i = threadIdx.x; i < kStoreRows * kColumns; i += 32) {
    tile.at(i / kColumns, i % kColumns) = from_float<Half>(kUntouched);
  }
  __syncwarp();
  for (int block = first; block < last; ++block) {
    const int row = block / (kColumns / 16) * 16, column = block % (kColumns / 16) * 16;
    Accumulator held[2];
    for (int n = 0; n < 2; ++n) {
      for (int e = 0; e < 4; ++e) {
        held[n].x[e] =
            x[(column + Accumulator::row(e)) * kStoreRows + row + n * 8 + Accumulator::column(e)];
      }
    }
    store_transposed(tile, row, column, to_a<Half>(held[0], held[1]));
  }
  __syncwarp();
  for (int i = threadIdx.x; i < kStoreRows * kColumns; i += 32) {
    to[i] = tile.at(i / kColumns, i % kColumns);
  }
}

template <class Half, int kColumns>
int wrongly_stored(const std::string& name, int first, int last) {
  const std::vector<float> x = normal(kColumns * kStoreRows);
  const OnCard<float> from(x);
  const OnCard<Half> to(kStoreRows * kColumns);
  store_kernel<Half, kColumns><<<1, 32>>>(from.get(), first, last, to.get());
  finish(name);
  const std::vector<Half> got = to.fetch();
  int wrong = 0;
  for (int i = 0; i < kStoreRows; ++i) {
    for (int j = 0; j < kColumns; ++j) {
      const int block = i / 16 * (kColumns / 16) + j / 16;
      const float expected = first <= block && block < last ? x[j * kStoreRows + i] : kUntouched;
      wrong +=
          !(static_cast<float>(got[i * kColumns + j]) == value_of<Half>(bits_of<Half>(expected)));
    }
  }
  return wrong;
}

template <class Half, int kColumns>
void test_store(const std::string& half) {
  const std::string name = half + " store transposed, " + std::to_string(kColumns) + " columns";
  constexpr int kBlocks = kStoreRows / 16 * (kColumns / 16);
  report(name, wrongly_stored<Half, kColumns>(name, 0, kBlocks), 0);
  int wrong = 0;
  for (int block = 0; block < kBlocks; ++block) {
    wrong += wrongly_stored<Half, kColumns>(name, block, block + 1);
  }
  report(name + ", one", wrong, 0);
}

}  // namespace

void test_transposes() {
  test_transpose();
  test_store<__nv_bfloat16, 64>("bf16");
  test_store<__nv_bfloat16, 128>("bf16");
  test_store<__half, 64>("fp16");
  test_store<__half, 128>("fp16");
}

}  // namespace deltaworks::cuda::device_test
