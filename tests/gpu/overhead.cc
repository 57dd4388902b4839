// What a plan's execute costs the host over its launches alone: prints, for a call that is not cut
// and for one that is, the times of execute and of as many launches of a kernel that does nothing
// with parameters of the same size. Medians, us; nothing is judged.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "deltaworks/plan.h"
#include "deltaworks/text.h"

void launch_nothing(int launches);  // overhead.cu

namespace {

using deltaworks::Pack;
using deltaworks::Plan;
using deltaworks::Port;
using deltaworks::Problem;

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
  std::exit(2);
}

// The card is idle at each call's begin, so that none waits for room in its queue.
template <class F>
double microseconds(F&& call) {
  std::vector<double> times;
  for (int i = 0; i < 300; ++i) {
    check(cudaDeviceSynchronize());
    const auto start = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    times.push_back(time.count());
  }
  std::nth_element(times.begin(), times.begin() + 150, times.end());
  return times[150];
}

void* zeros(std::size_t bytes) {
  void* data = nullptr;
  check(cudaMalloc(&data, bytes + 1));
  check(cudaMemset(data, 0, bytes + 1));
  return data;
}

void measure(const std::string& text, int launches) {
  const Problem problem = deltaworks::parse_problem(text);
  const Plan plan = deltaworks::find_plan(problem);
  constexpr std::size_t kBytes = std::size_t{1} << 28;  // of any tensor here at most
  Pack pack;
  for (int port = 0; port < deltaworks::kPortCount; ++port) {
    if (problem.has(static_cast<Port>(port))) pack[static_cast<Port>(port)] = zeros(kBytes);
  }
  void* workspace = zeros(plan.workspace_bytes());
  const double execute = microseconds([&] { plan.execute(pack, workspace); });
  const double bare = microseconds([&] { launch_nothing(launches); });
  std::printf("%s: %s\n  execute %.2f us, %d launches %.2f us, over them %.2f us\n", text.c_str(),
              plan.configuration().c_str(), execute, launches, bare, execute - bare);
  check(cudaDeviceSynchronize());
}

}  // namespace

int main() {
  measure("gdn:fwd:bf16:N1T256H4K128V128:device=cuda0", 3);
  measure("gdn:fwd:bf16:N1T2048H2K128V128:device=cuda0", 5);
}
