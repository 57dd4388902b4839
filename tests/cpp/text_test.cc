// Problem strings (docs/problems.md): what they mean, what is printed of every option, and that a
// printed string is the problem exactly.
#include "problem/text.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "deltaworks/status.h"
#include "deltaworks/text.h"
#include "problem/validate.h"

namespace deltaworks {
namespace {

constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16, kF16 = DType::kFloat16,
                kF64 = DType::kFloat64, kI32 = DType::kInt32, kI64 = DType::kInt64;

// gdn:PASS:bf16:N2T12H2HV4K16V8, made by hand.
Problem plain(Pass pass) {
  Problem p;
  p.pass = pass;
  p[Port::kQ] = contiguous(kBf16, {12, 2, 16});
  p[Port::kK] = contiguous(kBf16, {12, 2, 16});
  p[Port::kV] = contiguous(kBf16, {12, 4, 8});
  p[Port::kG] = contiguous(kF32, {12, 4});
  p[Port::kBeta] = contiguous(kF32, {12, 4});
  p[Port::kCuSeqlens] = contiguous(kI32, {3});
  if (pass == Pass::kForward) {
    p[Port::kO] = contiguous(kBf16, {12, 4, 8});
  } else {
    p[Port::kDO] = contiguous(kBf16, {12, 4, 8});
    for (Port gradient : {Port::kDQ, Port::kDK, Port::kDV, Port::kDG, Port::kDBeta}) {
      p[gradient] = p[static_cast<Port>(index(gradient) - index(Port::kDQ))];
    }
  }
  return p;
}
std::string plain_text(Pass pass) {
  return pass == Pass::kForward ? "gdn:fwd:bf16:N2T12H2HV4K16V8" : "gdn:bwd:bf16:N2T12H2HV4K16V8";
}

// An input, and in the backward its gradient.
void give(Problem& p, Port port, const TensorDesc& desc) {
  p[port] = desc;
  if (p.pass == Pass::kForward) return;
  const Port gradient = port == Port::kInitialState
                            ? Port::kDInitialState
                            : static_cast<Port>(index(port) - index(Port::kQ) + index(Port::kDQ));
  p[gradient] = desc;
}
void give_state(Problem& p, DType dtype) {
  give(p, Port::kInitialState, contiguous(dtype, {2, 4, 8, 16}));
}
void want_final(Problem& p) {
  p.options.output_final_state = true;
  const DType dtype = p.has(Port::kInitialState) ? p[Port::kInitialState].dtype : kF32;
  p[p.pass == Pass::kForward ? Port::kFinalState : Port::kDFinalState] =
      contiguous(dtype, {2, 4, 8, 16});
}
void move_to(Problem& p, Device device) {
  for (TensorDesc& tensor : p.tensors) {
    if (tensor.present()) tensor.device = device;
  }
}
void retype(Problem& p, DType dtype) {  // every floating tensor
  for (TensorDesc& tensor : p.tensors) {
    if (tensor.present() && tensor.dtype != kI32) tensor.dtype = dtype;
  }
}

// A change of the plain problem, and what it adds to its string; in canonical order.
struct Change {
  std::string text;
  std::function<void(Problem&)> make;
};
std::vector<Change> changes() {
  using P = Problem&;
  return {
      {":l2norm", [](P p) { p.options.use_qk_l2norm = true; }},
      {":sigmoid", [](P p) { p.options.use_beta_sigmoid = true; }},
      {":safe", [](P p) { p.options.safe_gate = true; }},
      {":linear", [](P p) { p.options.gate_domain = GateDomain::kLinear; }},
      {":invariant", [](P p) { p.options.batch_invariant = true; }},
      {":grad", [](P p) { p.requires_gradient = true; }},
      {":scale=0.1", [](P p) { p.options.scale = 0.1; }},
      {":scale=0.25", [](P p) { p.options.scale = 0.25; }},  // the default's value, but given
      {":scale=0", [](P p) { p.options.scale = -0.0; }},
      {":scale=1e+30", [](P p) { p.options.scale = 1e30; }},
      {":scale=5e-324", [](P p) { p.options.scale = std::numeric_limits<double>::denorm_min(); }},
      {":scale=1.7976931348623157e+308",
       [](P p) { p.options.scale = std::numeric_limits<double>::max(); }},
      {":g=bf16",
       [](P p) {
         give(p, Port::kG, contiguous(kBf16, {12, 4}));
       }},
      {":g=fp16",
       [](P p) {
         give(p, Port::kG, contiguous(kF16, {12, 4}));
       }},
      {":beta=bf16",
       [](P p) {
         give(p, Port::kBeta, contiguous(kBf16, {12, 4}));
       }},
      {":cu_seqlens=i64", [](P p) { p[Port::kCuSeqlens].dtype = kI64; }},
      {":state", [](P p) { give_state(p, kF32); }},
      {":state=bf16", [](P p) { give_state(p, kBf16); }},
      {":state=fp16", [](P p) { give_state(p, kF16); }},
      {":final", [](P p) { want_final(p); }},
      {":every=64", [](P p) { p.options.checkpoint_every_n_tokens = 64; }},
      {":ckpt=fp32", [](P p) { p.options.checkpoint_dtype = kF32; }},
      {":ckpt=bf16", [](P p) { p.options.checkpoint_dtype = kBf16; }},
      {":q@32x1x2",
       [](P p) {
         p[Port::kQ].stride = {32, 1, 2};
       }},
      {":k@0x0x1",
       [](P p) {
         p[Port::kK].stride = {0, 0, 1};
       }},
      {":v@-32x8x35184372088832",
       [](P p) {
         p[Port::kV].stride = {-32, 8, std::int64_t{1} << 45};
       }},
      {":g@1x12",
       [](P p) {
         p[Port::kG].stride = {1, 12};
       }},
      {":cu_seqlens@2", [](P p) { p[Port::kCuSeqlens].stride = {2}; }},
      {":device=cuda0",
       [](P p) {
         move_to(p, {DeviceType::kCuda, 0});
       }},
      {":device=cuda7",
       [](P p) {
         move_to(p, {DeviceType::kCuda, 7});
       }},
      {":device=cuda-1",
       [](P p) {
         move_to(p, {DeviceType::kCuda, -1});
       }},
      {":device=cpu1",
       [](P p) {
         move_to(p, {DeviceType::kCpu, 1});
       }},
      {":device=other0",
       [](P p) {
         move_to(p, {DeviceType::kOther, 0});
       }},
      {":threads=4", [](P p) { p.threads = 4; }},
      {":threads=2147483647", [](P p) { p.threads = std::numeric_limits<std::int32_t>::max(); }},
      {":plan=gdn_cpu", [](P p) { p.plan_name = "gdn_cpu"; }},
      {":plan=" + std::string(64, 'x'), [](P p) { p.plan_name = std::string(64, 'x'); }},
  };
}

bool is_valid(const Problem& p) {
  try {
    judge(p);
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(Text, TheExample) {
  const Problem p = parse("gdn:fwd:bf16:N4T8192H16HV32K128V128:l2norm");
  Problem expected;
  expected[Port::kQ] = expected[Port::kK] = contiguous(kBf16, {8192, 16, 128});
  expected[Port::kV] = expected[Port::kO] = contiguous(kBf16, {8192, 32, 128});
  expected[Port::kG] = expected[Port::kBeta] = contiguous(kF32, {8192, 32});
  expected[Port::kCuSeqlens] = contiguous(kI32, {5});
  expected.options.use_qk_l2norm = true;
  EXPECT_EQ(p, expected);
  EXPECT_EQ(judge(p), (Dims{8192, 4, 128, 128, 16, 16, 32, 32, 1}));
  EXPECT_EQ(print(p), "gdn:fwd:bf16:N4T8192H16HV32K128V128:l2norm");
}

TEST(Text, EveryOption) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    EXPECT_EQ(print(plain(pass)), plain_text(pass));
    EXPECT_EQ(parse(plain_text(pass)), plain(pass));
    for (const Change& change : changes()) {
      SCOPED_TRACE(plain_text(pass) + change.text);
      Problem p = plain(pass);
      change.make(p);
      ASSERT_TRUE(is_valid(p));
      EXPECT_EQ(print(p), plain_text(pass) + change.text);
      EXPECT_EQ(parse(plain_text(pass) + change.text), p);
    }
  }
}

// Any two options together, in whichever order they are made or written; and no two problems have
// one string.
TEST(Text, EveryPairOfOptions) {
  const std::vector<Change> all = changes();
  int pairs = 0;
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    std::map<std::string, Problem> printed;
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (std::size_t j = i + 1; j < all.size(); ++j) {
        const std::string text = plain_text(pass) + all[i].text + all[j].text;
        SCOPED_TRACE(text);
        Problem p = plain(pass);
        all[i].make(p);
        all[j].make(p);
        if (!is_valid(p)) continue;
        ++pairs;
        const std::string canonical = print(p);
        EXPECT_EQ(parse(canonical), p);
        EXPECT_EQ(printed.emplace(canonical, p).first->second, p);
        const std::string_view name_i = all[i].text, name_j = all[j].text;
        const auto name = [](std::string_view option) {
          return option.substr(0, option.find_first_of("=@"));
        };
        if (name(name_i) == name(name_j)) continue;  // one option; the second change stands
        EXPECT_EQ(canonical, text);
        EXPECT_EQ(parse(plain_text(pass) + all[j].text + all[i].text), p);
      }
    }
  }
  EXPECT_GT(pairs, 1000);
}

// Options that are valid, or mean something, only together.
TEST(Text, OptionsThatNeedOthers) {
  const auto expect = [](Pass pass, const std::string& options, auto make) {
    SCOPED_TRACE(options);
    Problem p = plain(pass);
    make(p);
    ASSERT_TRUE(is_valid(p));
    EXPECT_EQ(print(p), plain_text(pass) + options);
    EXPECT_EQ(parse(plain_text(pass) + options), p);
  };
  using P = Problem&;
  const auto parameters = [](P p, DType a_log, DType dt_bias) {
    p.options.safe_gate = true;
    give(p, Port::kALog, contiguous(a_log, {4}));
    give(p, Port::kDtBias, contiguous(dt_bias, {4}));
  };
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    expect(pass, ":sigmoid:neg",
           [](P p) { p.options.use_beta_sigmoid = p.options.allow_neg_eigval = true; });
    expect(pass, ":safe:a_log:dt_bias=bf16", [&](P p) { parameters(p, kF32, kBf16); });
    expect(pass, ":safe:a_log=fp16:dt_bias", [&](P p) { parameters(p, kF16, kF32); });
    expect(pass, ":state=fp16:final", [](P p) {
      give_state(p, kF16);
      want_final(p);
    });
  }
  const auto pool = [](P p, std::int64_t rows, DType dtype) {
    p[Port::kInitialState] = contiguous(dtype, {rows, 4, 8, 16});
    p[Port::kStateIndices] = contiguous(kI32, {2});
  };
  expect(Pass::kForward, ":pool=0", [&](P p) { pool(p, 0, kF32); });
  expect(Pass::kForward, ":state=bf16:pool=9:final:overwrite", [&](P p) {
    pool(p, 9, kBf16);
    p.options.output_final_state = p.options.overwrite_initial_state = true;
  });
  expect(Pass::kForward, ":state:overwrite", [&](P p) {
    give_state(p, kF32);
    p.options.overwrite_initial_state = true;
  });
  expect(Pass::kForward, ":pool=2:initial_state@600x128x16x1", [&](P p) {
    pool(p, 2, kF32);
    p[Port::kInitialState].stride[0] = 600;
  });
  // Tensors against their defaults; final_state takes part exactly if asked for.
  expect(Pass::kBackward, ":-dO:-dk:-dbeta",
         [](P p) { p[Port::kDO] = p[Port::kDK] = p[Port::kDBeta] = TensorDesc{}; });
  expect(Pass::kBackward, ":final:-d_final_state",
         [](P p) { p.options.output_final_state = true; });
  expect(Pass::kBackward, ":+d_final_state", [](P p) {
    want_final(p);
    p.options.output_final_state = false;
  });
  expect(Pass::kBackward, ":state=bf16:-d_initial_state", [](P p) {
    give_state(p, kBf16);
    p[Port::kDInitialState] = TensorDesc{};
  });
}

TEST(Text, DefaultsOfFloat64) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    Problem p = plain(pass);
    p.options.safe_gate = true;
    give(p, Port::kALog, contiguous(kF32, {4}));
    give_state(p, kF32);
    want_final(p);
    retype(p, kF64);
    ASSERT_TRUE(is_valid(p));
    const std::string text = std::string("gdn:") + (pass == Pass::kForward ? "fwd" : "bwd") +
                             ":fp64:N2T12H2HV4K16V8:safe:a_log:state:final";
    EXPECT_EQ(print(p), text);
    EXPECT_EQ(parse(text), p);
  }
}

TEST(Text, ReadsMoreThanItPrints) {
  for (const auto& [written, canonical] : std::map<std::string, std::string>{
           {"gdn:fwd:fp32:V8K16HV2HK2H2T12N1", "gdn:fwd:fp32:N1T12H2K16V8"},
           {"gdn:fwd:fp32:N1T12H2HK4HV4K16V8", "gdn:fwd:fp32:N1T12H2HK4HV4K16V8"},
           {"gdn:fwd:fp32:N0T0H0K1V1", "gdn:fwd:fp32:N0T0H0K1V1"},
           {"gdn:fwd:fp32:N001T12H2K16V8:g=fp32:threads=0:every=0:device=cpu:cu_seqlens=i32",
            "gdn:fwd:fp32:N1T12H2K16V8"},
           {"gdn:fwd:fp32:N1T12H2K16V8:q@32x16x1:+o:+q", "gdn:fwd:fp32:N1T12H2K16V8"},
           {"gdn:fwd:fp32:N1T12H2K16V8:scale=0.1000:l2norm",
            "gdn:fwd:fp32:N1T12H2K16V8:l2norm:scale=0.1"},
           {"gdn:fwd:fp32:N1T12H2K16V8:safe:+a_log:state=fp32:-state_indices",
            "gdn:fwd:fp32:N1T12H2K16V8:safe:a_log:state"},
           {"gdn:fwd:fp32:N1T12H2K16V8:pool=3:state=bf16:final:g@1x12",
            "gdn:fwd:fp32:N1T12H2K16V8:state=bf16:pool=3:final:g@1x12"},
           {"gdn:fwd:fp32:N1T12H2K16V8:state:+state_indices", "gdn:fwd:fp32:N1T12H2K16V8:pool=1"},
       }) {
    SCOPED_TRACE(written);
    const Problem p = parse(written);
    ASSERT_TRUE(is_valid(p));
    EXPECT_EQ(print(p), canonical);
    EXPECT_EQ(parse(canonical), p);
  }
}

// The longest strings that problems have are far from the limit on what is read.
TEST(Text, TheLongestProblem) {
  Problem p = plain(Pass::kBackward);
  for (const Change& change : changes()) change.make(p);
  p.options.gate_domain = GateDomain::kLog;
  give(p, Port::kALog, contiguous(kBf16, {4}));
  give(p, Port::kDtBias, contiguous(kBf16, {4}));
  give_state(p, kBf16);
  want_final(p);
  move_to(p, {DeviceType::kOther, std::numeric_limits<std::int32_t>::min()});
  for (TensorDesc& tensor : p.tensors) {
    for (int axis = 0; axis < tensor.rank; ++axis) {
      tensor.stride[axis] *= -(std::int64_t{1} << 33);
    }
  }
  ASSERT_TRUE(is_valid(p));
  const std::string text = print(p);
  EXPECT_LT(text.size(), 3000u);
  EXPECT_EQ(parse(text), p);
}

// The public headers, and the C interface below them.
TEST(Text, ThroughThePublicHeaders) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    for (const Change& change : changes()) {
      SCOPED_TRACE(plain_text(pass) + change.text);
      Problem p = plain(pass);
      change.make(p);
      if (!p.plan_name.empty() && p.plan_name != "gdn_cpu") continue;  // refused: TextErrors
      EXPECT_EQ(to_string(p), plain_text(pass) + change.text);
      EXPECT_EQ(parse_problem(plain_text(pass) + change.text), p);
    }
  }
}

TEST(Text, TheCInterfaceWritesWhatFits) {
  const std::string text = plain_text(Pass::kForward) + ":l2norm:plan=gdn_cpu";
  dw_problem problem{};
  problem.struct_size = sizeof problem;
  dw_tensor tensors[DW_PORT_COUNT];
  ASSERT_EQ(dw_problem_parse(text.c_str(), &problem, tensors, DW_PORT_COUNT), DW_OK);
  EXPECT_EQ(problem.tensors, tensors);
  EXPECT_EQ(problem.tensor_count, 7u);
  EXPECT_EQ(problem.flags, static_cast<std::uint32_t>(DW_L2NORM));
  EXPECT_STREQ(problem.plan_name, "gdn_cpu");
  for (std::size_t size = 0; size <= text.size() + 2; ++size) {
    std::string written(size + 1, '#');
    std::size_t needed = 0;
    ASSERT_EQ(dw_problem_format(&problem, written.data(), size, &needed), DW_OK);
    EXPECT_EQ(needed, text.size() + 1);
    const std::size_t fits = std::min(text.size(), size > 0 ? size - 1 : 0);
    EXPECT_EQ(written.substr(0, fits), text.substr(0, fits));
    EXPECT_EQ(written[fits], size > 0 ? '\0' : '#');
    EXPECT_EQ(written[size], '#');
  }
}

}  // namespace
}  // namespace deltaworks
