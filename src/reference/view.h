// Access to the elements of a strided tensor as doubles, whatever its dtype and strides, and the
// arena from which an execution takes its scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/convert.h"
#include "deltaworks/problem.h"
#include "problem/ports.h"

namespace deltaworks::reference {

// An absent tensor reads as zeros and drops what is written: every optional tensor has that
// meaning. Unused trailing indices are 0.
class View {
 public:
  View(const Problem& problem, const Pack& pack, Port port)
      : tensor_(&problem[port]), base_(problem.has(port) ? pack[port] : nullptr) {}

  bool present() const { return base_ != nullptr; }

  double at(std::int64_t a, std::int64_t b = 0, std::int64_t c = 0, std::int64_t d = 0) const {
    return base_ ? load<double>(tensor_->dtype, base_, offset(a, b, c, d)) : 0.0;
  }

  void set(double x, std::int64_t a, std::int64_t b = 0, std::int64_t c = 0,
           std::int64_t d = 0) const {
    if (base_) store(tensor_->dtype, base_, offset(a, b, c, d), x);
  }

  // Takes an element of a tensor of the same dtype, bit for bit; the tensor may be this one.
  void copy(const View& from, std::int64_t a, std::int64_t b, std::int64_t c,
            std::int64_t d) const {
    if (!base_) return;
    if (!from.base_) return set(0.0, a, b, c, d);
    const auto bytes = static_cast<std::int64_t>(size_of(tensor_->dtype));
    std::memmove(static_cast<std::byte*>(base_) + offset(a, b, c, d) * bytes,
                 static_cast<const std::byte*>(from.base_) + from.offset(a, b, c, d) * bytes,
                 static_cast<std::size_t>(bytes));
  }

 private:
  std::int64_t offset(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const {
    const auto& stride = tensor_->stride;
    return a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3];
  }

  const TensorDesc* tensor_;
  void* base_;
};

// A tensor with a row for every row of the recurrence, n a token: [T n, heads, ...] or
// [T, n, heads, ...]. Heads are counted as the recurrence's, of which consecutive ones share a head
// of a tensor that has fewer.
class RowView {
 public:
  // `primal` is the tensor whose shape this one has if it is present: of a gradient.
  RowView(const Problem& problem, const Dims& dims, const Pack& pack, Port port, Port primal)
      : view_(problem, pack, port), n_(0), group_(1) {
    const TensorDesc& shaped = problem[primal];
    for (const PortSpec& spec : ports(problem.op)) {
      if (spec.port == primal && spec.shape(shaped.rank).axes[1] == Axis::kSubSteps) n_ = dims.n;
    }
    const std::int64_t heads = shaped.shape[n_ > 0 ? 2 : 1];
    if (heads > 0) group_ = dims.HO / heads;
  }
  RowView(const Problem& problem, const Dims& dims, const Pack& pack, Port port)
      : RowView(problem, dims, pack, port, port) {}

  std::int64_t group() const { return group_; }  // heads of the recurrence that share one

  double at(std::int64_t row, std::int64_t head, std::int64_t i = 0) const {
    head /= group_;
    return n_ > 0 ? view_.at(row / n_, row % n_, head, i) : view_.at(row, head, i);
  }
  void set(double x, std::int64_t row, std::int64_t head, std::int64_t i = 0) const {
    head /= group_;
    if (n_ > 0) {
      view_.set(x, row / n_, row % n_, head, i);
    } else {
      view_.set(x, row, head, i);
    }
  }

 private:
  View view_;
  std::int64_t n_;  // 0: [T n, heads, ...]
  std::int64_t group_;
};

// Hands out consecutive arrays of doubles. Without a base it only counts them, so that the same
// code books a workspace and carves it up.
class Arena {
 public:
  explicit Arena(double* base = nullptr) : base_(base) {}

  double* take(std::int64_t count) {
    double* array = base_ ? base_ + used_ : nullptr;
    used_ += count;
    return array;
  }
  std::int64_t used() const { return used_; }

 private:
  double* base_;
  std::int64_t used_ = 0;
};

}  // namespace deltaworks::reference
