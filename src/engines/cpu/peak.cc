// Every thread runs the kernel in short blocks until the same moment; its rate is that of its
// median block, for what is put aside by other work loses a block and not a share of the rate. The
// clock is read here and not in the kernel, whose file has the instruction set's flags.
#include "engines/cpu/peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "core/strings.h"
#include "core/threads.h"
#include "deltaworks/status.h"
#include "engines/cpu/dispatch.h"

namespace deltaworks::cpu {
namespace {

constexpr int kMostThreads = 1024;
constexpr double kMostSeconds = 60;
constexpr std::int64_t kSteps = 8192;  // of a block: tens of microseconds
constexpr std::size_t kBlocks = 4096;  // the last ones are kept

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

// One thread's blocks: their seconds, in a ring.
struct Blocks {
  std::vector<double> seconds = std::vector<double>(kBlocks);
  std::size_t count = 0;
  float sum = 0;

  void run(const Kernels& chosen, Clock::time_point start, double limit) {
    Clock::time_point before = Clock::now();
    do {
      sum += chosen.peak(kSteps);
      const Clock::time_point after = Clock::now();
      seconds[count++ % kBlocks] = seconds_between(before, after);
      before = after;
    } while (seconds_between(start, before) < limit);
  }

  double median() {
    const auto end = seconds.begin() + static_cast<std::ptrdiff_t>(std::min(count, kBlocks));
    const auto middle = seconds.begin() + (end - seconds.begin()) / 2;
    std::nth_element(seconds.begin(), middle, end);
    return *middle;
  }
};

}  // namespace

double peak_rate(int threads, double seconds) {
  if (threads < 1 || threads > kMostThreads) {
    throw Error(Status::kInvalidValue,
                cat("threads must be in 1..", kMostThreads, ", got ", threads));
  }
  if (!(seconds > 0 && seconds <= kMostSeconds)) {
    throw Error(Status::kInvalidValue, cat("seconds must be in (0, 60], got ", seconds));
  }
  const Kernels& chosen = kernels();
  std::vector<Blocks> blocks(static_cast<std::size_t>(threads));
  const Clock::time_point start = Clock::now();
  parallel_for(threads, threads, [&](std::int64_t item, int) {
    blocks[static_cast<std::size_t>(item)].run(chosen, start, seconds);
  });
  const double lane_ops = static_cast<double>(kSteps * kPeakChains * chosen.lanes);
  double rate = 0;
  for (Blocks& own : blocks) rate += lane_ops / own.median();
  return rate;
}

}  // namespace deltaworks::cpu
