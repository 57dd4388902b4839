// A C++ problem and its pointers as a caller of the C interface has them, open to changes.
#pragma once

#include <algorithm>
#include <vector>

#include "deltaworks/c_api.h"
#include "deltaworks/detail/call.h"

namespace deltaworks::kit {

struct CCall {
  std::vector<dw_tensor> tensors;
  dw_problem problem;
  void* pointers[DW_PORT_COUNT];

  // `from` outlives the call: it holds the plan's name.
  explicit CCall(const Problem& from, const Pack& pack = {}) {
    const detail::CProblem c(from);
    problem = *c.get();
    tensors.assign(problem.tensors, problem.tensors + problem.tensor_count);
    problem.tensors = tensors.data();
    std::copy(pack.pointers.begin(), pack.pointers.end(), pointers);
  }
  CCall(const CCall&) = delete;
  CCall& operator=(const CCall&) = delete;

  dw_tensor& operator[](int port) {
    return *std::find_if(tensors.begin(), tensors.end(),
                         [port](const dw_tensor& tensor) { return tensor.port == port; });
  }
};

}  // namespace deltaworks::kit
