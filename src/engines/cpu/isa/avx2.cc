// The kernels for AVX2 with FMA: 8 fp32 lanes. CMakeLists.txt beside this folder holds the flags.
#include "engines/cpu/kernels/table-inl.h"

namespace deltaworks::cpu {

static_assert(HWY_NAMESPACE::kLanes == 8);
extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = HWY_NAMESPACE::table("AVX2");

}  // namespace deltaworks::cpu
