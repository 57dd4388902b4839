// Problem strings of every operation: what the others than gated_delta_net have of their own, and
// that a printed string is the problem exactly, whatever options and shapes are combined.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "deltaworks/status.h"
#include "deltaworks/text.h"
#include "problem/ports.h"
#include "problem/text.h"
#include "problem/validate.h"

namespace deltaworks {
namespace {

constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16, kF16 = DType::kFloat16,
                kI32 = DType::kInt32;

using Descs = std::map<Port, TensorDesc>;

void expect_tensors(const std::string& text, const Descs& expected) {
  SCOPED_TRACE(text);
  const Problem p = parse(text);
  EXPECT_NO_THROW(judge(p));
  for (int port = 0; port < kPortCount; ++port) {
    const auto found = expected.find(static_cast<Port>(port));
    EXPECT_EQ(p.tensors[port], found == expected.end() ? TensorDesc{} : found->second)
        << name(p.op, static_cast<Port>(port));
  }
  EXPECT_EQ(print(p), text);
}

TEST(TextOperations, GatesByChannels) {
  Descs tensors = {
      {Port::kQ, contiguous(kBf16, {12, 2, 16})}, {Port::kK, contiguous(kBf16, {12, 2, 16})},
      {Port::kV, contiguous(kBf16, {12, 4, 8})},  {Port::kG, contiguous(kF32, {12, 4, 16})},
      {Port::kBeta, contiguous(kF32, {12, 4})},   {Port::kDtBias, contiguous(kF16, {4, 16})},
      {Port::kCuSeqlens, contiguous(kI32, {3})},  {Port::kO, contiguous(kBf16, {12, 4, 8})}};
  expect_tensors("kda:fwd:bf16:N2T12H2HV4K16V8:safe:bound=-2.5:dt_bias=fp16", tensors);
  const Problem p = parse("kda:fwd:bf16:N2T12H2HV4K16V8:safe:bound=-2.5:dt_bias=fp16");
  EXPECT_EQ(p.op, Op::kKimiDeltaAttention);
  EXPECT_EQ(p.options.gate_lower_bound, -2.5);
  EXPECT_EQ(p.options.gate, GateKind::kSigmoid);
  EXPECT_EQ(parse("kda:fwd:bf16:N1T1H1K1V1:safe:softplus").options.gate, GateKind::kSoftplus);

  tensors[Port::kBeta] = contiguous(kBf16, {12, 4, 16});
  tensors[Port::kW] = contiguous(kBf16, {12, 4, 8});
  tensors.erase(Port::kDtBias);
  expect_tensors("gdn2:fwd:bf16:N2T12H2HV4K16V8:l2norm:guard:beta=bf16:w=bf16", tensors);
  EXPECT_TRUE(parse("gdn2:fwd:bf16:N1T1H1K1V1:l2norm:guard").options.beta_guard);
}

TEST(TextOperations, SubSteps) {
  Descs tensors = {{Port::kQ, contiguous(kBf16, {8192, 16, 128})},
                   {Port::kK, contiguous(kBf16, {16384, 16, 128})},
                   {Port::kV, contiguous(kBf16, {16384, 16, 128})},
                   {Port::kG, contiguous(kF32, {8192, 16})},
                   {Port::kBeta, contiguous(kF32, {16384, 16})},
                   {Port::kCuSeqlens, contiguous(kI32, {5})},
                   {Port::kO, contiguous(kBf16, {8192, 16, 128})}};
  const std::string text = "gdp:fwd:bf16:N4T8192H16K128V128:n=2";
  expect_tensors(text, tensors);
  EXPECT_EQ(parse(text).options.num_householder, 2);
  tensors[Port::kV] = contiguous(kBf16, {8192, 2, 16, 128});
  expect_tensors(text + ":token_major=v", tensors);
  EXPECT_EQ(parse("gdp:fwd:bf16:N4T8192H16K128V128:token_major=v:n=2"),
            parse(text + ":token_major=v"));
  tensors[Port::kK] = contiguous(kBf16, {8192, 2, 16, 128});
  tensors[Port::kBeta] = contiguous(kF32, {8192, 2, 16});
  expect_tensors(text + ":token_major", tensors);
  EXPECT_EQ(print(parse(text + ":token_major=beta,k,v")), text + ":token_major");
  tensors[Port::kK].stride = {9, 7, 5, 1};
  expect_tensors(text + ":token_major:k@9x7x5x1", tensors);

  // Gradients have the shapes of their inputs.
  const Problem p = parse("gdp:bwd:bf16:N1T6H2K4V4:n=3:token_major=k,beta");
  EXPECT_NO_THROW(judge(p));
  EXPECT_EQ(p[Port::kDK], contiguous(kBf16, {6, 3, 2, 4}));
  EXPECT_EQ(p[Port::kDV], contiguous(kBf16, {18, 2, 4}));
  EXPECT_EQ(p[Port::kDBeta], contiguous(kF32, {6, 3, 2}));
}

TEST(TextOperations, Mamba2) {
  const std::string text = "mamba2:fwd:bf16:N4T8192H64G8P64S128:D:z";
  Descs tensors = {{Port::kX, contiguous(kBf16, {8192, 64, 64})},
                   {Port::kDt, contiguous(kF32, {8192, 64})},
                   {Port::kA, contiguous(kF32, {64})},
                   {Port::kB, contiguous(kBf16, {8192, 8, 128})},
                   {Port::kC, contiguous(kBf16, {8192, 8, 128})},
                   {Port::kD, contiguous(kF32, {64})},
                   {Port::kZ, contiguous(kBf16, {8192, 64, 64})},
                   {Port::kCuSeqlens, contiguous(kI32, {5})},
                   {Port::kY, contiguous(kBf16, {8192, 64, 64})}};
  expect_tensors(text, tensors);
  EXPECT_EQ(judge(parse(text)), (Dims{8192, 4, 128, 64, 8, 8, 64, 64, 1}));
  tensors[Port::kD] = contiguous(kBf16, {64, 64});
  tensors[Port::kDt].dtype = kBf16;
  tensors[Port::kA].dtype = kF16;
  tensors[Port::kFinalState] = contiguous(kF32, {4, 64, 64, 128});
  expect_tensors("mamba2:fwd:bf16:N4T8192H64G8P64S128:dt=bf16:A=fp16:DP=bf16:z:final", tensors);
  // Groups are as many as the heads where they are not told.
  EXPECT_EQ(print(parse("mamba2:fwd:fp32:S4P3G2H2T5N1")), "mamba2:fwd:fp32:N1T5H2P3S4");
  EXPECT_EQ(parse("mamba2:fwd:fp32:N1T5H2P3S4")[Port::kB], contiguous(kF32, {5, 2, 4}));
  const Problem p = parse("mamba2:bwd:fp32:N1T5H2P3S4:DP=fp16:-dB:dy@0x0x1:x@9x3x1");
  EXPECT_NO_THROW(judge(p));
  EXPECT_EQ(p[Port::kDD], contiguous(kF16, {2, 3}));
  EXPECT_FALSE(p.has(Port::kDB) || p.has(Port::kDZ));
  EXPECT_EQ(p[Port::kX].stride[0], 9);
  EXPECT_EQ(p[Port::kDY].stride, (std::array<std::int64_t, kMaxRank>{0, 0, 1}));
}

TEST(TextOperations, StepOptions) {
  const auto options = [](const std::string& text) {
    return parse("mamba2:fwd:fp32:N1T1H1P1S1" + text).options;
  };
  EXPECT_FALSE(options(":linear_dt").dt_softplus);
  EXPECT_EQ(options(":dt_min=0.001:dt_max=0.1").dt_min, 0.001);
  EXPECT_EQ(options(":dt_min=0.001:dt_max=0.1").dt_max, 0.1);
  EXPECT_EQ(options(":dt_max=inf").dt_max, std::numeric_limits<double>::infinity());
  EXPECT_EQ(options("").dt_max, std::nullopt);
  EXPECT_EQ(print(parse("mamba2:fwd:fp32:N1T1H1P1S1:dt_max=inf:dt_min=-inf")),
            "mamba2:fwd:fp32:N1T1H1P1S1:dt_min=-inf:dt_max=inf");
}

// Every subset of a few options for each operation and pass: those that are valid print as they
// are written here, which is the canonical order, and read back as the same problem; no two
// problems have one string.
struct Operation {
  std::string variant, sizes;
  std::vector<std::string> options;
};

TEST(TextOperations, EverySubsetOfOptions) {
  const Operation operations[] = {
      {"gdn",
       "N2T12H2HV4K16V8",
       {":l2norm", ":safe", ":g=bf16", ":a_log", ":state=bf16", ":final"}},
      {"kda",
       "N2T12H4HV2K16V8",
       {":safe", ":softplus", ":bound=-0.25", ":scale=2", ":g=fp16", ":a_log", ":dt_bias=bf16",
        ":state", ":g@0x0x1"}},
      {"gdn2",
       "N2T12H2K16V8",
       {":l2norm", ":guard", ":safe", ":softplus", ":bound=-7", ":beta=bf16", ":w=bf16", ":dt_bias",
        ":final", ":w@1x1x1"}},
      {"gdp",
       "N2T12H2HK4HV4K16V8:n=3",
       {":token_major=k,beta", ":l2norm", ":linear", ":invariant", ":beta=bf16", ":state=fp16",
        ":every=64", ":v@7x8x1", ":plan=gdp_cpu"}},
      {"mamba2",
       "N2T12H4G2P8S16",
       {":linear_dt", ":dt_min=-1", ":dt_max=3e+20", ":dt=bf16", ":A=fp16", ":DP=bf16", ":dt_bias",
        ":z", ":state", ":final", ":B@0x16x1"}},
  };
  for (const Operation& operation : operations) {
    std::map<std::string, Problem> printed;
    const std::size_t subsets = std::size_t{1} << operation.options.size();
    for (const std::string pass : {"fwd", "bwd"}) {
      for (std::size_t subset = 0; subset < subsets; ++subset) {
        std::string text = operation.variant + ":" + pass + ":bf16:" + operation.sizes;
        std::string turned = text;
        for (std::size_t i = 0; i < operation.options.size(); ++i) {
          if (subset >> i & 1) text += operation.options[i];
        }
        for (std::size_t i = operation.options.size(); i-- > 0;) {
          if (subset >> i & 1) turned += operation.options[i];
        }
        SCOPED_TRACE(text);
        const Problem p = parse(text);
        ASSERT_EQ(parse(turned), p);
        try {
          judge(p);
        } catch (const Error&) {
          continue;
        }
        ASSERT_EQ(print(p), text);
        ASSERT_TRUE(printed.emplace(text, p).second);
        ASSERT_EQ(parse_problem(to_string(p)), p);  // through C
      }
    }
    EXPECT_GE(printed.size(), 40u) << operation.variant;
  }
}

// The longest string of each operation is far from the limit on what is read.
TEST(TextOperations, TheLongestProblems) {
  const std::string states = ":dt_bias=bf16:state=bf16:final:every=1000000000000:ckpt=fp32";
  const std::string delta =
      ":sigmoid:neg:safe:bound=-1.2345678901234567e-300:invariant"
      ":scale=1.2345678901234567e-300:g=bf16:beta=bf16";
  for (const std::string& text : {
           "kda:bwd:bf16:N2T12H2HV4K16V8:l2norm" + delta + ":a_log=bf16" + states,
           "gdn2:bwd:bf16:N2T12H2HV4K16V8:l2norm" + delta + ":w=bf16:a_log=bf16" + states,
           "gdp:bwd:bf16:N2T12H2HV4K16V8:n=2:token_major:l2norm:g=bf16" + states + ":safe:a_log",
           "mamba2:bwd:bf16:N2T12H4G2P8S16:dt_min=-1.2345678901234567e-300:dt_max="
           "1.2345678901234567e-300:linear_dt:A=bf16:DP=bf16:z" +
               states,
       }) {
    Problem p = parse(text + ":threads=1000:plan=" + std::string(64, 'x'));
    for (TensorDesc& tensor : p.tensors) {
      if (!tensor.present()) continue;
      tensor.device = {DeviceType::kOther, std::numeric_limits<std::int32_t>::min()};
      for (int axis = 0; axis < tensor.rank; ++axis) {
        tensor.stride[axis] *= -(std::int64_t{1} << 32);
      }
    }
    EXPECT_NO_THROW(judge(p)) << text;
    const std::string printed = print(p);
    EXPECT_LT(printed.size(), 3000u);
    EXPECT_EQ(parse(printed), p);
  }
}

}  // namespace
}  // namespace deltaworks
