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
  // Gradients of both passes as float64 has them; a gate gradient is judged against the sums of
  // which it is the difference, and those take dq and dk.
  const Tensors& reference;
  const Tensors& loop;  // of the plain fp32 loop
  // The inputs may make some tensor's reference vanish; else a tiny one fails the test, for it
  // would test nothing.
  bool may_vanish = false;
};

// Every tensor of `got` is finite and within its bounds.
void expect_close(const Judgement& judgement, const Tensors& got);

}  // namespace deltaworks::kit
