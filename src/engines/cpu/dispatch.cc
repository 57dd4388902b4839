// Chooses the instruction set. Tables are in the order of preference.
#include "engines/cpu/dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/strings.h"
#include "deltaworks/status.h"

namespace deltaworks::cpu {

#if defined(__x86_64__)
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kSse4Kernels;
#elif defined(__aarch64__)
extern const Kernels kNeonKernels;
#else
#error "no instruction set is built for this processor"
#endif

namespace {

struct Candidate {
  const Kernels* kernels;
  bool runs_here;
};

#if defined(__x86_64__)
// By hand: not every compiler's __builtin_cpu_supports knows it.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
// Every extension that CMakeLists.txt compiles a set for.
bool has_sse4() {
  return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("aes") &&
         __builtin_cpu_supports("pclmul");
}
bool has_avx2() {
  return has_sse4() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && has_f16c();
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512cd");
}
#endif

const Kernels& choose() {
#if defined(__x86_64__)
  const Candidate candidates[] = {
      {&kAvx512Kernels, has_avx512()}, {&kAvx2Kernels, has_avx2()}, {&kSse4Kernels, has_sse4()}};
#else
  const Candidate candidates[] = {{&kNeonKernels, true}};
#endif
  const char* forced = std::getenv("DELTAWORKS_ISA");
  if (forced != nullptr && forced[0] == '\0') forced = nullptr;
  std::string names;
  for (const Candidate& candidate : candidates) {
    if (!candidate.runs_here) continue;
    if (forced == nullptr || std::strcmp(forced, candidate.kernels->isa) == 0) {
      return *candidate.kernels;
    }
    names += cat(names.empty() ? "" : ", ", candidate.kernels->isa);
  }
  throw Error(Status::kInvalidValue,
              forced != nullptr ? cat("DELTAWORKS_ISA must be one of ", names, ", got ", forced)
                                : "this processor lacks SSE4.2");
}

}  // namespace

const Kernels& kernels() {
  // No static of the function: a fork in the middle of its initialisation would leave the child
  // waiting. Two threads may both choose; they choose alike.
  static std::atomic<const Kernels*> chosen{nullptr};
  const Kernels* found = chosen.load(std::memory_order_acquire);
  if (found == nullptr) {
    found = &choose();
    chosen.store(found, std::memory_order_release);
  }
  return *found;
}

}  // namespace deltaworks::cpu
