// The one-call functions: what they alone refuse.
#include "deltaworks/ops.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace deltaworks {
namespace {

// The workspace of the one-call functions is the host's: no kernel may get it.
TEST(Ops, TensorsOnACard) {
  float x = 0;
  std::int64_t offsets[] = {0, 1};
  GatedDeltaNetForward call{.q = view(&x, {1, 1, 1}),
                            .k = view(&x, {1, 1, 1}),
                            .v = view(&x, {1, 1, 1}),
                            .g = view(&x, {1, 1}),
                            .beta = view(&x, {1, 1}),
                            .cu_seqlens = view(offsets, {2}),
                            .o = view(&x, {1, 1, 1})};
  for (Tensor* tensor :
       {&call.q, &call.k, &call.v, &call.g, &call.beta, &call.cu_seqlens, &call.o}) {
    tensor->desc.device = {DeviceType::kCuda, 0};
  }
  Workspace workspace;
  try {
    gated_delta_net_forward(call, workspace);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kInvalidValue);
    EXPECT_STREQ(error.what(),
                 "a Workspace is memory of the host: find_plan and Plan::execute take a workspace "
                 "in the memory of the tensors");
  }
}

}  // namespace
}  // namespace deltaworks
