// Counts every allocation of this process, C's and C++'s, by standing before the C library's
// allocator. Sanitizers bring an allocator of their own; then there is no count.
#pragma once

#include <cstdint>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DELTAWORKS_COUNTS_ALLOCATIONS 1
#endif

namespace deltaworks::kit {

// Allocations so far, in all threads.
std::int64_t allocations();

}  // namespace deltaworks::kit
