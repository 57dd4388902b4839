// The counting allocator: operator new ends in malloc, so these functions see everything.
#include "allocations.h"

#ifdef DELTAWORKS_COUNTS_ALLOCATIONS

#include <atomic>
#include <cerrno>
#include <cstddef>

namespace deltaworks::kit {
namespace {
std::atomic<std::int64_t> count{0};
}
std::int64_t allocations() { return count.load(); }
}  // namespace deltaworks::kit

using deltaworks::kit::count;

extern "C" {

void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t items, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);

__attribute__((visibility("default"))) void* malloc(std::size_t size) noexcept {
  ++count;
  return __libc_malloc(size);
}
__attribute__((visibility("default"))) void* calloc(std::size_t items, std::size_t size) noexcept {
  ++count;
  return __libc_calloc(items, size);
}
__attribute__((visibility("default"))) void* realloc(void* memory, std::size_t size) noexcept {
  ++count;
  return __libc_realloc(memory, size);
}
__attribute__((visibility("default"))) void* memalign(std::size_t alignment,
                                                      std::size_t size) noexcept {
  ++count;
  return __libc_memalign(alignment, size);
}
__attribute__((visibility("default"))) void* aligned_alloc(std::size_t alignment,
                                                           std::size_t size) noexcept {
  ++count;
  return __libc_memalign(alignment, size);
}
__attribute__((visibility("default"))) int posix_memalign(void** memory, std::size_t alignment,
                                                          std::size_t size) noexcept {
  ++count;
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}

}  // extern "C"

#endif
