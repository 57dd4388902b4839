// The kernels for Arm NEON: 4 fp32 lanes. CMakeLists.txt beside this folder holds the flags.
#include "engines/cpu/kernels/table-inl.h"

namespace deltaworks::cpu {

static_assert(HWY_NAMESPACE::kLanes == 4);
extern const Kernels kNeonKernels;
const Kernels kNeonKernels = HWY_NAMESPACE::table("NEON");

}  // namespace deltaworks::cpu
