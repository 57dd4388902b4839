#include "engines/cuda/plan.h"

#include <algorithm>
#include <cstdint>

#include "engines/cuda/launch.h"

namespace deltaworks::cuda {
namespace {

// A walk as times were measured on an H200 (docs/design/cuda.md). They are constants, not asked of
// the card, so that results do not depend on it; only how they compare matters.
constexpr double kMultiprocessors = 132;
constexpr double kAlone = 2.5;         // us a chunk of a block that has a multiprocessor for itself
constexpr double kShared = 4.2;        // of two blocks that share one
constexpr double kSummary = 0.6;       // of a block that makes no outputs
constexpr double kFixUp = 5.4;         // us a segment that is fixed up
constexpr double kLaunches = 6;        // us that two launches more take
constexpr std::int64_t kShortest = 8;  // chunks of a segment
constexpr std::int64_t kMostSegments = 32;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// us that `blocks` blocks walk `chunks` chunks each; `work` counts them in blocks with outputs.
double walk_time(double blocks, double work, std::int64_t chunks) {
  const double a_chunk =
      blocks <= kMultiprocessors ? kAlone : kShared * std::max(1.0, work / (2 * kMultiprocessors));
  return a_chunk * static_cast<double>(chunks);
}

// Of `pairs` sequences and heads with `chunks` chunks each, cut into `segments` each.
double time_of(double pairs, double value_blocks, double key_blocks, std::int64_t chunks,
               std::int64_t segments) {
  const std::int64_t length = ceil_div(chunks, segments);
  const double first = pairs * value_blocks;
  if (segments == 1) return walk_time(first, first, length);
  const double inner = static_cast<double>(segments - 2);
  const double summaries = inner * pairs * (value_blocks + key_blocks);
  const double further = first * static_cast<double>(segments - 1);
  return walk_time(first + summaries, first + kSummary * summaries, length) +
         walk_time(further, further, length) + kFixUp * inner + kLaunches;
}

}  // namespace

void divide(Params& p, const CardLimits& card, bool whole) {
  p.max_chunks = p.T / kChunk + p.N;
  const bool fits = static_cast<int>(shared_bytes(p.K, 2)) <= card.shared_bytes;
  p.stages = p.K <= 128 && fits ? 2 : 1;
  const std::int64_t all = std::max<std::int64_t>(ceil_div(p.T, kChunk), 1);
  p.segment_chunks = all;
  if (!whole && p.N > 0) {
    const double pairs = static_cast<double>(p.N) * p.HO;
    const auto blocks = [](int columns) { return static_cast<double>(ceil_div(columns, 64)); };
    const std::int64_t mean = ceil_div(all, p.N);  // a sequence's chunks, as far as is known
    const auto time = [&](std::int64_t segments) {
      return time_of(pairs, blocks(p.V), blocks(p.K), mean, segments);
    };
    std::int64_t best = 1;
    for (std::int64_t n = 2; n <= std::min(kMostSegments, mean / kShortest); ++n) {
      if (time(n) < time(best)) best = n;
    }
    // A sequence longer than the mean is cut all the same, but for what keeps the card busy anyway.
    const double share = static_cast<double>(all) * p.HO * blocks(p.V) / (2 * kMultiprocessors);
    p.segment_chunks = std::max(ceil_div(mean, best), kShortest);
    if (best == 1) {
      p.segment_chunks = std::max(p.segment_chunks, static_cast<std::int64_t>(share));
    }
  }
  p.max_further = p.T == 0 ? 0 : (all - 1) / p.segment_chunks;
}

}  // namespace deltaworks::cuda
