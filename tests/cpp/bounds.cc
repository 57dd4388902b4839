// The bounds and their three metrics.
#include "bounds.h"

#include <algorithm>
#include <cmath>

#include "tolerances.h"

namespace deltaworks::kit {
namespace {

using namespace tolerances;

constexpr double kUnderflow = 1e-30;

// The bound before the fp32 loop's error is looked at.
double bound_of(const Call& call, Port port, DType dtype) {
  const bool forward = port == Port::kO || port == Port::kFinalState;
  const double bound = std::max(base_bound(forward, call.types.io), base_bound(forward, dtype));
  const bool narrow = bound > base_bound(forward, DType::kFloat32);
  const bool parameter = port == Port::kDALog || port == Port::kDDtBias;
  const bool gate = port == Port::kDG && dtype == DType::kBFloat16;
  return narrow && (parameter || gate) ? kGateSum : bound;
}

// The elements of one (sequence, head), or of the whole tensor.
struct Group {
  double squares = 0;
  std::int64_t count = 0;
  void add(double x) {
    squares += x * x;
    ++count;
  }
  double rms() const { return count == 0 ? 0 : std::sqrt(squares / static_cast<double>(count)); }
};

// Which (sequence, head) an element belongs to: -1 for rows of no sequence and for parameters.
class Grouping {
 public:
  Grouping(const Call& call, const Buffer& x, Port port)
      : call_(call), kind_(spec_of(port, call.op).kind) {
    const Shape& shape = spec_of(port, call.op).shape(x.desc.rank);
    if (kind_ == Kind::kParam) return;
    const bool steps = shape.axes[0] == Axis::kSteps;
    int head = 1;
    if (shape.axes[1] == Axis::kSubSteps) head = 2;
    rows_ = steps || head == 2 ? call.dims.n : 1;
    heads_ = x.desc.shape[head];
    for (int axis = head + 1; axis < x.desc.rank; ++axis) width_ *= x.desc.shape[axis];
    for (std::size_t n = 0; n + 1 < call.offsets.size(); ++n) {
      for (std::int64_t t = call.offsets[n]; t < call.offsets[n + 1]; ++t) {
        sequence_.push_back(static_cast<std::int64_t>(n));
      }
    }
  }
  std::int64_t groups() const {
    return static_cast<std::int64_t>(call_.offsets.size() - 1) * heads_;
  }
  std::int64_t of(std::int64_t i) const {
    if (kind_ == Kind::kParam) return -1;
    const std::int64_t first = i / width_ / heads_ / rows_, head = i / width_ % heads_;
    if (kind_ == Kind::kState) return first * heads_ + head;
    if (first >= static_cast<std::int64_t>(sequence_.size())) return -1;
    return sequence_[first] * heads_ + head;
  }

 private:
  const Call& call_;
  Kind kind_;
  std::int64_t heads_ = 0, width_ = 1;
  std::int64_t rows_ = 1;               // a token
  std::vector<std::int64_t> sequence_;  // of each token
};

// sum_d |q_d dq_d| + |k_d dk_d| of each (token, head of HO), whose difference a gate gradient is.
std::vector<double> gate_rows(const Judgement& x) {
  const std::int64_t HO = x.call.dims.HO, K = x.call.dims.K;
  std::vector<double> rows(x.call.dims.T * HO, 0);
  for (const auto& [port, gradient] : {std::pair{Port::kQ, Port::kDQ}, {Port::kK, Port::kDK}}) {
    const Buffer &value = x.inputs.at(port), &d = x.reference.at(gradient);
    const std::int64_t heads = value.desc.shape[value.desc.rank - 2];
    const std::int64_t steps = port == Port::kK ? x.call.dims.n : 1;
    for (std::int64_t i = 0; i < value.count(); ++i) {
      const std::int64_t t = i / K / heads / steps, head = i / K % heads, share = HO / heads;
      for (std::int64_t h = head * share; h < (head + 1) * share; ++h) {
        rows[t * HO + h] += std::abs(value.get(i) * d.get(i));
      }
    }
  }
  return rows;
}

void expect_tensor_close(const Judgement& x, Port port, const Buffer& got) {
  const Buffer &ref = x.reference.at(port), &loop = x.loop.at(port);
  ASSERT_EQ(got.count(), ref.count());
  if (got.count() == 0) return;
  const double base = bound_of(x.call, port, got.desc.dtype);
  const bool follows_loop = base == kForward[0] || base == kBackward[0];
  const std::vector<double> rows = port == Port::kDG ? gate_rows(x) : std::vector<double>{};
  const std::int64_t gates = port == Port::kDG && got.desc.rank == 3 ? got.desc.shape[2] : 1;

  const Grouping grouping(x.call, got, port);
  struct Groups {
    Group ref, error, loop_error, rows;
  };
  std::vector<Groups> groups(grouping.groups());
  Groups whole;
  double largest = 0;
  for (std::int64_t i = 0; i < got.count(); ++i) {
    ASSERT_TRUE(std::isfinite(got.get(i))) << "at " << i << " of " << got.count();
    const std::int64_t group = grouping.of(i);
    for (Groups* y : {&whole, group < 0 ? nullptr : &groups[group]}) {
      if (y == nullptr) continue;
      y->ref.add(ref.get(i));
      y->error.add(got.get(i) - ref.get(i));
      y->loop_error.add(loop.get(i) - ref.get(i));
      if (!rows.empty()) y->rows.add(rows[i / gates]);
    }
    largest = std::max(largest, std::abs(got.get(i) - ref.get(i)));
  }

  const double floor = got.desc.dtype == DType::kFloat16 ? kVanished16 : kUnderflow;
  const auto scale_of = [&](const Groups& y) {
    return std::max({y.ref.rms(), kGateFloor * y.rows.rms(), floor});
  };
  const double scale = scale_of(whole);
  EXPECT_GT(whole.ref.rms(), kNotTiny) << "nothing is tested";
  const auto limit = [&](double loop_error) {
    return follows_loop ? std::max(base, kLoop * loop_error) : base;
  };
  const double allowed = limit(whole.loop_error.rms() / scale);
  EXPECT_LE(whole.error.rms(), allowed * scale) << "relative to " << scale;
  EXPECT_LE(largest, kLargest * allowed * scale) << "largest, relative to " << scale;

  double worst_loop = 0;
  for (const Groups& y : groups) {
    worst_loop = std::max(worst_loop, y.loop_error.rms() / scale_of(y));
  }
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const Groups& y = groups[group];
    const bool small = y.ref.count < kSmallGroup;
    const double loop_error = small ? worst_loop : y.loop_error.rms() / scale_of(y);
    EXPECT_LE(y.error.rms(), limit(loop_error) * scale_of(y))
        << "(sequence, head) " << group << " relative to " << scale_of(y);
  }
}

}  // namespace

void expect_close(const Judgement& judgement, const Tensors& got) {
  for (const auto& [port, tensor] : got) {
    SCOPED_TRACE(name(judgement.call.op, port));
    expect_tensor_close(judgement, port, tensor);
  }
}

}  // namespace deltaworks::kit
