// What rows do to a valid problem.
#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "deltaworks/problem.h"

namespace deltaworks::kit {

using Breaks = std::function<void(Problem&)>;

inline Breaks drop(Port port) {
  return [port](Problem& p) { p[port] = TensorDesc{}; };
}
inline Breaks reshape(Port port, std::initializer_list<std::int64_t> shape) {
  const std::vector<std::int64_t> axes(shape);
  return [port, axes](Problem& p) {
    TensorDesc& x = p[port];
    x.rank = static_cast<std::int32_t>(axes.size());
    x.shape = x.stride = {};
    std::int64_t stride = 1;
    for (int axis = std::min(x.rank, kMaxRank) - 1; axis >= 0; --axis) {
      x.shape[axis] = axes[axis];
      x.stride[axis] = stride;
      stride *= axes[axis];
    }
  };
}
inline Breaks retype(Port port, DType dtype) {
  return [port, dtype](Problem& p) { p[port].dtype = dtype; };
}
inline Breaks all_of(std::vector<Breaks> parts) {
  return [parts](Problem& p) {
    for (const Breaks& part : parts) part(p);
  };
}
inline Breaks option(std::function<void(Options&)> set) {
  return [set](Problem& p) { set(p.options); };
}

// "gdn_cpu, gdn_reference": the plans there are.
inline std::string plan_list(const std::string& variant) {
#ifdef DELTAWORKS_REFERENCE
  return variant + "_cpu, " + variant + "_reference";
#else
  return variant + "_cpu";
#endif
}

}  // namespace deltaworks::kit
