// What the CUDA engine says of problems, with and without a card.
#include "deltaworks/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "deltaworks/explain.h"
#include "deltaworks/text.h"
#include "engines/cuda/plan.h"

namespace deltaworks {
namespace {

Verdict verdict(const std::string& text) {
  for (const Verdict& each : explain(parse_problem(text))) {
    if (each.plan_name == "gdn_sm80") return each;
  }
  ADD_FAILURE() << "there is no gdn_sm80";
  return {};
}

bool gives(const Verdict& verdict, const std::string& reason) {
  return std::find(verdict.reasons.begin(), verdict.reasons.end(), reason) != verdict.reasons.end();
}

TEST(CudaPlan, TensorsOfTheCpuGoToTheCpuEngine) {
  const std::string text = "gdn:fwd:bf16:N2T64H4K64V64";
  EXPECT_EQ(verdict(text).reasons,
            std::vector<std::string>{"tensors must be in CUDA memory, got cpu"});
  EXPECT_EQ(find_plan(parse_problem(text)).name(), "gdn_cpu");
}

TEST(CudaPlan, WhatItDeclines) {
  const std::string on_card = ":device=cuda0";
  const std::pair<const char*, const char*> rows[] = {
      {"gdn:fwd:fp32:N2T64H4K64V64", "q k v must be bfloat16 or float16, got float32"},
      {"gdn:fwd:bf16:N2T64H4K24V64",
       "the key dimension must be a multiple of 16 up to 256, got 24"},
      {"gdn:fwd:bf16:N2T64H4K64V272",
       "the value dimension must be a multiple of 16 up to 256, got 272"},
      {"gdn:bwd:bf16:N2T64H4K64V64",
       "no gradient may be asked for (the backward is not supported yet), got a backward"},
      {"gdn:fwd:bf16:N2T64H4K64V64:grad",
       "no gradient may be asked for (the backward is not supported yet), got a forward that "
       "requires one"},
      {"gdn:fwd:bf16:N2T64H4K64V64:every=64",
       "checkpoint_every_n_tokens must be 0 (state checkpoints are not supported yet), got 64"},
  };
  for (const auto& [text, reason] : rows) {
    EXPECT_TRUE(gives(verdict(text + on_card), reason)) << text;
  }
}

// How a call of `N` sequences of `length` tokens is divided, K = V = 128.
cuda::Params divided(int N, std::int64_t length, int heads, bool whole = false,
                     int shared_bytes = 232448) {
  cuda::Params p;
  p.N = N;
  p.T = N * length;
  p.HO = heads;
  p.K = p.V = 128;
  cuda::divide(p, {.shared_bytes = shared_bytes}, whole);
  return p;
}

TEST(CudaDivision, FewHeadsAreCutAndManyAreNot) {
  // Segments of one sequence: the further ones that a grid is booked for, and the first.
  const auto segments = [](const cuda::Params& p) { return p.max_further + 1; };
  EXPECT_EQ(segments(divided(1, 32768, 16)), 9);
  EXPECT_EQ(segments(divided(1, 8192, 64)), 1);
  EXPECT_EQ(segments(divided(1, 500, 1)), 1);
  // Equal lengths of a full card fit into a segment; one sequence of all tokens would not.
  EXPECT_GE(divided(4, 8192, 32).segment_chunks, 8192 / 64);
  EXPECT_GT(divided(4, 8192, 32).max_further, 0);
}

TEST(CudaDivision, SegmentsAreNeverShort) {
  for (int N : {1, 3, 49, 2000}) {
    for (std::int64_t length : {1, 6, 65, 700, 5000}) {
      for (int heads : {1, 4, 32}) EXPECT_GE(divided(N, length, heads).segment_chunks, 8);
    }
  }
}

TEST(CudaDivision, BatchInvarianceCutsNothing) {
  EXPECT_EQ(divided(1, 32768, 16, true).max_further, 0);
  EXPECT_EQ(divided(4, 8192, 2, true).max_further, 0);
}

TEST(CudaDivision, ACardsSharedMemoryDecidesStagesAlone) {
  const cuda::Params large = divided(1, 32768, 16), small = divided(1, 32768, 16, false, 101376);
  EXPECT_EQ(large.stages, 2);
  EXPECT_EQ(small.stages, 1);
  EXPECT_EQ(large.segment_chunks, small.segment_chunks);
}

// Where there is no driver, or no such card, that is the one reason.
TEST(CudaPlan, ACardThatIsNotThere) {
  const Verdict none = verdict("gdn:fwd:bf16:N2T64H4K64V64:device=cuda77");
  ASSERT_EQ(none.reasons.size(), 1u);
  EXPECT_TRUE(none.reasons[0].starts_with("a CUDA driver with the tensors' device, got "))
      << none.reasons[0];
}

}  // namespace
}  // namespace deltaworks
