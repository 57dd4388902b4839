// Asynchronous copies from global to shared memory (cp.async, sm_80 and newer), and the narrow path
// for rows that 16-byte vectors do not fit.
#pragma once

#include <cstdint>

#include "engines/cuda/device/tile.cuh"

namespace deltaworks::cuda::device {

// 16 bytes; `from` is aligned to them.
__device__ inline void copy_async(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}
// The same, or zeros where `valid` is false; `from` is not read then.
__device__ inline void copy_async(std::uint32_t to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
// Closes a group of copies; wait_async<n> waits until at most n younger groups are under way. What
// a thread waited for is seen by others after the block's next barrier.
__device__ inline void commit_async() { asm volatile("cp.async.commit_group;"); }
template <int kYounger>
__device__ inline void wait_async() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kYounger));
}

// Rows 0..kRows-1 of a global [*, columns] array with any strides (in elements) into a tile, zeros
// past `rows` and `columns`. `wide`: the base and the row stride are multiples of 16 bytes, columns
// are contiguous and a multiple of 8; then the copies are asynchronous. All kThreads threads of the
// block take part.
template <int kThreads, HalfType Half, int kRows, int kColumns>
__device__ inline void load_rows(const Tile<Half, kRows, kColumns>& tile, const Half* from,
                                 std::int64_t row_stride, std::int64_t column_stride, int rows,
                                 int columns, bool wide) {
  if (wide) {
    constexpr int kVectors = kColumns / 8, kStep = kThreads / kVectors;
    static_assert(kThreads % kVectors == 0 && kRows % kStep == 0);
    const int row = threadIdx.x / kVectors, c = threadIdx.x % kVectors;
    const Half* x = from + row * row_stride + c * 8;
    if (rows == kRows && columns == kColumns) {
#pragma unroll
      for (int i = 0; i < kRows; i += kStep)
        copy_async(tile.address(row + i, c), x + i * row_stride);
    } else {
#pragma unroll
      for (int i = 0; i < kRows; i += kStep) {
        const bool valid = row + i < rows && c * 8 < columns;
        copy_async(tile.address(row + i, c), valid ? x + i * row_stride : from, valid);
      }
    }
    return;
  }
  for (int i = threadIdx.x; i < kRows * kColumns; i += kThreads) {
    const int row = i / kColumns, column = i % kColumns;
    const bool valid = row < rows && column < columns;
    tile.at(row, column) =
        valid ? from[row * row_stride + column * column_stride] : from_float<Half>(0.0f);
  }
}

// kCount vectors of 16 bytes that lie one after another, asynchronously.
template <int kThreads, int kCount>
__device__ inline void load_vectors(void* to, const void* from) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to)) + threadIdx.x * 16;
  const auto* x = static_cast<const unsigned char*>(from) + threadIdx.x * 16;
#pragma unroll
  for (int i = 0; i < kCount; i += kThreads) {
    if (i + kThreads <= kCount || static_cast<int>(threadIdx.x) < kCount - i) {
      copy_async(address + i * 16, x + i * 16);
    }
  }
}

}  // namespace deltaworks::cuda::device
