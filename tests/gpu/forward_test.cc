// The CUDA engine's forward through the public interface, on tensors in the card's memory, against
// the reference engine within the bounds of the CPU tests.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "bounds.h"
#include "card_memory.h"
#include "deltaworks/plan.h"
#include "kit.h"
#include "oracle.h"

namespace deltaworks {
namespace {

using namespace kit;

// The call on the card. Buffers travel whole, with the guards around their elements.
// `configuration` is part of what the plan says of itself.
Tensors run_on_card(const Call& call, const Tensors& inputs, int repeats = 1,
                    const std::string& configuration = "") {
  Tensors copies = inputs;
  Prepared prepared = prepare("gdn_sm80", call, Pass::kForward, copies);
  std::map<Port, std::unique_ptr<CardMemory>> memory;
  const auto move = [&](Port port, Buffer& buffer) {
    auto& card = memory[port] = std::make_unique<CardMemory>(buffer.storage.size());
    card->put(buffer.storage.data());
    const auto offset = static_cast<std::byte*>(buffer.data()) - buffer.storage.data();
    prepared.pack[port] = card->get() + offset;
    prepared.problem[port].device = {DeviceType::kCuda, 0};
  };
  for (auto& [port, buffer] : copies) {
    if (prepared.problem.has(port)) move(port, buffer);
  }
  for (auto& [port, buffer] : prepared.outputs) move(port, buffer);

  const Plan plan = find_plan(prepared.problem);
  EXPECT_EQ(plan.name(), "gdn_sm80");
  EXPECT_NE(plan.configuration().find(configuration), std::string::npos) << plan.configuration();
  const CardMemory workspace(plan.workspace_bytes());
  for (int i = 0; i < repeats; ++i) plan.execute(prepared.pack, workspace.get());
  check(cudaDeviceSynchronize());
  for (auto& [port, buffer] : copies) {
    if (!prepared.problem.has(port)) continue;
    Buffer after = buffer;
    memory.at(port)->fetch(after.storage.data());
    EXPECT_TRUE(after.storage == buffer.storage) << name(port) << " was written";
  }
  for (auto& [port, buffer] : prepared.outputs) {
    memory.at(port)->fetch(buffer.storage.data());
    EXPECT_TRUE(buffer.gaps_untouched()) << "memory beside " << name(port) << " was written";
  }
  return std::move(prepared.outputs);
}

void expect_accurate(const Call& call, unsigned seed, const std::string& configuration = "") {
  const Tensors inputs = make_inputs(call, seed);
  const Tensors reference = oracle<double>(call, Pass::kForward, inputs);
  const Tensors loop = oracle<float>(call, Pass::kForward, inputs);
  expect_close({call, inputs, reference, loop}, run_on_card(call, inputs, 1, configuration));
}

constexpr DType kBf16 = DType::kBFloat16, kF16 = DType::kFloat16, kF32 = DType::kFloat32;

Types types(DType io, DType state = kF32) {
  return {.io = io, .g = kF32, .beta = kF32, .param = kF32, .state = state};
}

TEST(CudaForward, HeadDims) {
  for (DType io : {kBf16, kF16}) {
    for (std::int64_t K : {16, 64, 80, 128, 256}) {
      for (std::int64_t V : {16, 64, 112, 128, 256}) {
        SCOPED_TRACE(testing::Message() << name(io) << " " << K << " " << V);
        expect_accurate({.dims = make_dims(150, 2, 2, 2, K, V),
                         .offsets = {0, 20, 150},
                         .options = {.use_qk_l2norm = true},
                         .types = types(io),
                         .decay = 0.1},
                        1);
      }
    }
  }
}

TEST(CudaForward, HeadLayouts) {
  constexpr std::int64_t kHeads[][3] = {{1, 1, 1}, {2, 2, 4}, {2, 4, 4}, {4, 4, 1}, {6, 2, 2}};
  for (const auto& [H, HK, HV] : kHeads) {
    SCOPED_TRACE(testing::Message() << H << " " << HK << " " << HV);
    expect_accurate({.dims = make_dims(100, H, HK, HV, 64, 64),
                     .offsets = {0, 37, 100},
                     .options = {.use_qk_l2norm = true},
                     .types = types(kBf16),
                     .decay = 0.1},
                    2);
  }
}

TEST(CudaForward, Lengths) {
  for (std::int64_t length : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000}) {
    SCOPED_TRACE(length);
    expect_accurate({.dims = make_dims(length + 3, 1, 1, 2, 64, 64),
                     .offsets = {0, 0, length, length},
                     .options = {.use_qk_l2norm = true},
                     .types = types(kBf16),
                     .decay = 0.02},
                    3);
  }
}

TEST(CudaForward, Options) {
  const Options options[] = {
      {.scale = 0.5},
      {.use_qk_l2norm = true, .use_beta_sigmoid = true},
      {.use_qk_l2norm = true, .use_beta_sigmoid = true, .allow_neg_eigval = true},
      {.use_qk_l2norm = true, .safe_gate = true},
      {.use_qk_l2norm = true, .gate_domain = GateDomain::kLinear},
  };
  for (const Options& each : options) {
    for (double decay : {0.001, 1.0, 30.0}) {
      SCOPED_TRACE(decay);
      expect_accurate({.dims = make_dims(200, 2, 2, 2, 64, 64),
                       .offsets = {0, 70, 200},
                       .options = each,
                       .a_log = each.safe_gate,
                       .dt_bias = each.safe_gate,
                       .types = types(kBf16),
                       .decay = decay},
                      4);
    }
  }
}

TEST(CudaForward, States) {
  for (DType state : {kF32, kBf16, kF16}) {
    for (bool initial : {false, true}) {
      SCOPED_TRACE(testing::Message() << name(state) << " " << initial);
      if (!initial && state != kF32) continue;
      expect_accurate({.dims = make_dims(130, 2, 2, 2, 64, 128),
                       .offsets = {0, 66, 66, 130},
                       .options = {.use_qk_l2norm = true},
                       .initial_state = initial,
                       .types = types(kBf16, state),
                       .decay = 0.1},
                      5);
    }
  }
}

// One long sequence with few heads is cut: first, inner and last segments, and what enters them.
TEST(CudaForward, Segments) {
  constexpr std::int64_t kDims[][2] = {{64, 64}, {128, 128}, {48, 112}, {256, 64}, {64, 256}};
  for (const auto& [K, V] : kDims) {
    for (DType io : {kBf16, kF16}) {
      for (double decay : {0.002, 0.1}) {
        SCOPED_TRACE(testing::Message() << name(io) << " " << K << " " << V << " " << decay);
        expect_accurate({.dims = make_dims(2700, 1, 2, 2, K, V),
                         .offsets = {0, 2607, 2607, 2690},
                         .options = {.use_qk_l2norm = true},
                         .initial_state = true,
                         .types = types(io),
                         .decay = decay},
                        8, "segments of ");
      }
    }
  }
}

// The same for the sanitizers: the fewest tokens that give an inner segment, each padded size once.
TEST(CudaForward, SmallSegments) {
  constexpr std::int64_t kDims[][2] = {{16, 64}, {80, 16}, {144, 16}};
  for (const auto& [K, V] : kDims) {
    SCOPED_TRACE(K);
    expect_accurate({.dims = make_dims(1541, 1, 1, 1, K, V),
                     .offsets = {0, 1541},
                     .options = {.use_qk_l2norm = true},
                     .types = types(kBf16),
                     .decay = 0.01},
                    9, "segments of ");
  }
}

TEST(CudaForward, RepeatsAndFirstCallsAgree) {
  const Call call{.dims = make_dims(500, 2, 2, 4, 128, 128),
                  .offsets = {0, 100, 110, 499},
                  .options = {.use_qk_l2norm = true},
                  .types = types(kBf16),
                  .decay = 0.1};
  const Tensors inputs = make_inputs(call, 6);
  const Tensors first = run_on_card(call, inputs);
  expect_same_bits(first, run_on_card(call, inputs));
  expect_same_bits(first, run_on_card(call, inputs, 20));
}

// Whatever cu_seqlens holds, nothing out of bounds is touched; run under memcheck. The longer calls
// are cut where the offsets give a sequence that is long enough.
TEST(CudaForward, HostileOffsets) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  for (std::int64_t T : {100, 1541}) {
    const std::vector<std::int64_t> rows[] = {{5, 3, 1}, {-7, kHuge, 20}, {0, kHuge, -1},
                                              {T, T, T}, {0, T - 10, 10}, {0, -kHuge, T}};
    for (const auto& offsets : rows) {
      const Call call{.dims = make_dims(T, 1, 1, 1, 64, 64),
                      .offsets = offsets,
                      .options = {.use_qk_l2norm = true},
                      .types = types(kBf16),
                      .decay = 0.1};
      run_on_card(call, make_inputs(call, 7));
    }
  }
}

}  // namespace
}  // namespace deltaworks
