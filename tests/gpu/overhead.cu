// Launches that do nothing, for overhead.cc.
#include "engines/cuda/params.h"

namespace {

__global__ void nothing(const __grid_constant__ deltaworks::cuda::Params) {}

}  // namespace

void launch_nothing(int launches);
void launch_nothing(int launches) {
  const deltaworks::cuda::Params params;
  for (int i = 0; i < launches; ++i) nothing<<<1, 128>>>(params);
}
