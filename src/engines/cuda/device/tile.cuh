// A tile of 16-bit elements in shared memory, [kRows, kColumns] row-major, its 16-byte vectors
// swizzled within a row: vector c of row r lies at c ^ (r mod 8). Eight consecutive rows of one
// column of vectors, which is what a phase of ldmatrix reads, then lie in eight different groups of
// four banks, whatever the width.
#pragma once

#include <cstdint>

#include "engines/cuda/device/half.cuh"

namespace deltaworks::cuda::device {

template <HalfType Half, int kRows, int kColumns>
class Tile {
  static_assert(kColumns % 64 == 0, "the swizzle needs eight vectors of a row");

 public:
  static constexpr int kBytes = kRows * kColumns * 2;
  static constexpr int kVectors = kColumns / 8;  // of 16 bytes, in a row

  // `base` is aligned to 16 bytes.
  __device__ explicit Tile(void* base) : base_(static_cast<Half*>(base)) {}

  __device__ Half* vector(int row, int c) const {
    return base_ + row * kColumns + swizzled(row, c) * 8;
  }
  __device__ Half& at(int row, int column) const { return vector(row, column / 8)[column % 8]; }
  // Address of a vector as the shared-memory instructions take it.
  __device__ std::uint32_t address(int row, int c) const {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(vector(row, c)));
  }

 private:
  __device__ static int swizzled(int row, int c) { return c ^ (row & 7); }
  Half* base_;
};

}  // namespace deltaworks::cuda::device
