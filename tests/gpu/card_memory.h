// Memory of the card, for GoogleTest.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>

namespace deltaworks {

inline void check(cudaError_t status) {
  ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status);
}

// Bytes on the card; poison until something is copied in.
class CardMemory {
 public:
  explicit CardMemory(std::size_t bytes) : bytes_(bytes) {
    check(cudaMalloc(&data_, bytes + 1));
    check(cudaMemset(data_, 0xff, bytes + 1));
  }
  CardMemory(const CardMemory&) = delete;
  CardMemory& operator=(const CardMemory&) = delete;
  ~CardMemory() { cudaFree(data_); }
  std::byte* get() const { return static_cast<std::byte*>(data_); }
  void put(const void* from) { check(cudaMemcpy(data_, from, bytes_, cudaMemcpyHostToDevice)); }
  void fetch(void* to) const { check(cudaMemcpy(to, data_, bytes_, cudaMemcpyDeviceToHost)); }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace deltaworks
