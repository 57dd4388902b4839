// The device vocabulary on a card: each primitive of src/engines/cuda/device against double
// precision, or exactly, on the host. Prints one line a test: name, largest error (or how many are
// wrong), bound, ok or FAILED. Primitives that have instructions of 9.0 have a second path, which
// newer cards take too under CUDA_FORCE_PTX_JIT=1: the PTX built here is of 8.0.
#include "device_kit.cuh"

int main() {
  using namespace deltaworks::cuda::device_test;
  test_products();
  test_transposes();
  test_solves();
  test_copies();
  test_halves();
  test_gates();
  test_chunks();
  std::printf("%d failed\n", failures);
  return failures == 0 ? 0 : 1;
}
