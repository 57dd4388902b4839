// The kernels for AVX-512 (F, VL, BW, DQ, CD): 16 fp32 lanes. CMakeLists.txt beside this folder
// holds the flags.
#include "engines/cpu/kernels/table-inl.h"

namespace deltaworks::cpu {

static_assert(HWY_NAMESPACE::kLanes == 16);
extern const Kernels kAvx512Kernels;
const Kernels kAvx512Kernels = HWY_NAMESPACE::table("AVX512");

}  // namespace deltaworks::cpu
