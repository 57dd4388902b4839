// How close an engine must be to float64: the only place that holds tolerances for engines. Per
// tensor RMS(got - ref) / RMS(ref), the same for every (sequence, head), and the largest error
// against 30 x bound x RMS(ref), since one wrong token among many hides in an RMS. fp32 bounds
// follow the error that a plain fp32 token loop makes on the same inputs.
#pragma once

#include "kit.h"

namespace deltaworks::kit {

struct Judgement {
  const Call& call;
  const Tensors& inputs;
  // The pass's outputs in float64. Where dg is judged it holds dq and dk as well: the error of a
  // gate gradient is measured against the sums whose difference it is.
  const Tensors& reference;
  const Tensors& loop;  // of the plain fp32 loop
};

// Every tensor of `got` is finite and within its bounds; none of the reference is so small that
// nothing is tested.
void expect_close(const Judgement& judgement, const Tensors& got);

}  // namespace deltaworks::kit
