// The kernels for SSE4.2: 4 fp32 lanes. CMakeLists.txt beside this folder holds the flags.
#include "engines/cpu/kernels/table-inl.h"

namespace deltaworks::cpu {

static_assert(HWY_NAMESPACE::kLanes == 4);
extern const Kernels kSse4Kernels;
const Kernels kSse4Kernels = HWY_NAMESPACE::table("SSE4");

}  // namespace deltaworks::cpu
