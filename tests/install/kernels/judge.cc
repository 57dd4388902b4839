// See judge.h.
#include "judge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tolerances.h"

using deltaworks::DType;
using deltaworks::Pass;
using deltaworks::Port;
using deltaworks::Problem;

namespace {

using namespace deltaworks::tolerances;

double bound_of(const Problem& problem, Port port) {
  const DType io = problem[Port::kQ].dtype, own = problem[port].dtype;
  const bool narrow = size_of(io) == 2 || size_of(own) == 2;
  const bool sum = port == Port::kDALog || port == Port::kDDtBias ||
                   (port == Port::kDG && own == DType::kBFloat16);
  if (narrow && sum) return kGateSum;
  const bool forward = problem.pass == Pass::kForward;
  return std::max(base_bound(forward, io), base_bound(forward, own));
}

// Which (sequence, head) every element belongs to; -1 for rows of none, and for parameters.
std::vector<std::int64_t> groups_of(const Array& x, const Array& cu_seqlens) {
  const std::int64_t N = cu_seqlens.count() - 1;
  std::vector<std::int64_t> groups(x.count(), -1);
  if (x.desc.rank == 1) return groups;
  const std::int64_t heads = x.desc.shape[1], row = x.count() / x.desc.shape[0];
  const bool is_state = x.desc.rank == 4;
  for (std::int64_t n = 0; n < N; ++n) {
    const auto begin = is_state ? n : static_cast<std::int64_t>(cu_seqlens.get(n));
    const auto end = is_state ? n + 1 : static_cast<std::int64_t>(cu_seqlens.get(n + 1));
    for (std::int64_t i = begin * row; i < end * row; ++i) {
      groups[i] = n * heads + i % row / (row / heads);
    }
  }
  return groups;
}

struct Sums {
  double error = 0, size = 0;  // of squares
  std::int64_t count = 0;
};

// 0 where both are 0.
double share(const Sums& x, double bound) {
  return x.error == 0 ? 0 : std::sqrt(x.error / x.size) / bound;
}

}  // namespace

double worst_share(const Problem& problem, Port port, const Arrays& got, const Arrays& reference) {
  const Array &x = got[index(port)], &want = reference[index(port)];
  const double bound = bound_of(problem, port);
  const std::vector<std::int64_t> groups = groups_of(x, got[index(Port::kCuSeqlens)]);
  Sums whole;
  std::vector<Sums> parts(groups.empty() ? 0 : *std::max_element(groups.begin(), groups.end()) + 1);
  double largest = 0;
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const double error = std::abs(x.get(i) - want.get(i));
    if (!std::isfinite(error)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, error);
    for (Sums* sums : {&whole, groups[i] < 0 ? nullptr : &parts[groups[i]]}) {
      if (sums == nullptr) continue;
      sums->error += error * error;
      sums->size += want.get(i) * want.get(i);
      ++sums->count;
    }
  }
  const double rms = std::sqrt(whole.size / static_cast<double>(whole.count));
  if (!(rms > kNotTiny)) return std::numeric_limits<double>::infinity();
  double worst = std::max(share(whole, bound), largest / (kLargest * bound * rms));
  for (const Sums& part : parts) worst = std::max(worst, share(part, bound));
  return worst;
}
