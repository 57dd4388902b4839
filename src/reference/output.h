// From the row that is read from the state to the output's row, and back:
//
//   y = (o + D x) silu(z),   silu(z) = z sigmoid(z)
//
// with the write row's x before any factor. A D or z that is absent, or that the operation does not
// have, drops out of the formula.
#pragma once

#include "reference/view.h"
#include "variants/activation.h"

namespace deltaworks::reference {

class OutputMap {
 public:
  OutputMap(const Problem& problem, const Pack& pack)
      : D_(problem, pack, Port::kD),
        z_(problem, pack, Port::kZ),
        dz_(problem, pack, Port::kDZ),
        per_value_(problem[Port::kD].rank == 2) {}

  // x is v's row; o becomes y.
  void apply(std::int64_t t, std::int64_t head, const double* x, std::int64_t V, double* o) const {
    for (std::int64_t j = 0; j < V; ++j) {
      if (D_.present()) o[j] += D(head, j) * x[j];
      if (z_.present()) o[j] *= silu(z_.at(t, head, j));
    }
  }

  // dy becomes the gradient before the z gate.
  void ungate(std::int64_t t, std::int64_t head, std::int64_t V, double* dy) const {
    if (!z_.present()) return;
    for (std::int64_t j = 0; j < V; ++j) dy[j] *= silu(z_.at(t, head, j));
  }

  // With o as it was read, the gradient dy of the output and its ungated row: stores dz, adds to
  // dx [V] and to dD [V].
  void gradient(std::int64_t t, std::int64_t head, const double* x, std::int64_t V, const double* o,
                const View& dy, const double* ungated, double* dx, double* dD) const {
    for (std::int64_t j = 0; j < V; ++j) {
      double sum = o[j];
      if (D_.present()) {
        sum += D(head, j) * x[j];
        dx[j] += D(head, j) * ungated[j];
        dD[j] += x[j] * ungated[j];
      }
      if (!z_.present()) continue;
      const double z = z_.at(t, head, j);
      dz_.set(dy.at(t, head, j) * sum * sigmoid(z) * (1 + z * sigmoid(-z)), t, head, j);
    }
  }

  // Row t belongs to no sequence.
  void clear_row(std::int64_t t, std::int64_t heads, std::int64_t V) const {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t j = 0; j < V; ++j) dz_.set(0, t, head, j);
    }
  }

 private:
  static double silu(double z) { return z * sigmoid(z); }
  double D(std::int64_t head, std::int64_t j) const { return D_.at(head, per_value_ ? j : 0); }

  View D_, z_, dz_;
  bool per_value_;
};

}  // namespace deltaworks::reference
