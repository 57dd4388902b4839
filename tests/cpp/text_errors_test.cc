// Every error of problem strings with its text, and what can be written though it is not valid.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "deltaworks/status.h"
#include "deltaworks/text.h"
#include "problem/text.h"
#include "problem/validate.h"

namespace deltaworks {
namespace {

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::string parse_error(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kInvalidValue);
    return error.what();
  }
  return "nothing was thrown";
}

// What validation refuses can be written as well; it then says why.
TEST(TextErrors, DescribesWhatIsNotValid) {
  for (const auto& [options, text] : std::map<std::string, std::string>{
           {":-q", "q is missing"},
           {":+dO", "dO does not belong to this pass"},
           {":g=i64", "g must be float32, bfloat16 or float16, got int64"},
           {":neg", "allow_neg_eigval needs use_beta_sigmoid_in_kernel"},
           {":a_log", "a_log needs safe_gate"},
           {":+state_indices", "state_indices needs initial_state"},
           {":every=-1", "checkpoint_every_n_tokens must be >= 0, got -1"},
           {":final:-final_state", "final_state is missing (output_final_state is set)"},
           {":o@0x8x1",
            "o is written and must not overlap itself, got shape [12, 4, 8] with strides [0, 8, "
            "1]"},
           {":pool=7:-state_indices",
            "initial_state must have shape [N, HO, V, K] = [2, 4, 8, 16], got [7, 4, 8, 16]"},
       }) {
    const Problem p = parse("gdn:fwd:bf16:N2T12H2HV4K16V8" + options);
    EXPECT_EQ(error_of([&p = p] { judge(p); }), "gated_delta_net: " + text);
  }
  for (const auto& [written, text] : std::map<std::string, std::string>{
           {"gdn:fwd:bf16:N2T12H2K16V8:n=2",
            "gated_delta_net: num_householder is not an option of this operation"},
           {"kda:fwd:bf16:N2T12H2K16V8:dt_max=1",
            "kimi_delta_attention: dt_max is not an option of this operation"},
           {"gdp:bwd:bf16:N2T12H2K16V8:n=2:token_major=k:-k", "gated_delta_product: k is missing"},
           {"mamba2:fwd:bf16:N2T12H3G2P8S16",
            "mamba2: the heads of x must be a multiple of the groups of B and C, got 3 and 2"},
           {"mamba2:fwd:bf16:N2T12H4P8S16:z=fp32",
            "mamba2: z must be bfloat16 as x is, got float32"},
           {"mamba2:fwd:bf16:N2T12H4P8S16:dt_min=2:dt_max=1",
            "mamba2: dt_min must be <= dt_max, got 2 and 1"},
       }) {
    EXPECT_EQ(error_of([text = &written] { judge(parse(*text)); }), text);
  }
}

TEST(TextErrors, EveryError) {
  const std::string good = "gdn:fwd:fp32:N1T12H2K16V8";
  const std::string product = "gdp:fwd:fp32:N1T12H2K16V8";
  const std::string sizes = "sizes such as N4T8192H16HV32K128V128, got ";
  const std::string limit = "281474976710656";
  using namespace std::string_literals;
  for (const auto& [written, expected] : std::vector<std::pair<std::string, std::string>>{
           {"", "VARIANT:PASS:IO:DIMS[:OPTION]..., got ''"},
           {"gdn:fwd:fp32", "VARIANT:PASS:IO:DIMS[:OPTION]..., got 'gdn:fwd:fp32'"},
           {"gdn\0:x"s, "VARIANT:PASS:IO:DIMS[:OPTION]..., got 'gdn\\x00:x'"},
           {"gla:fwd:fp32:N1T12H2K16V8", "a variant (gdn, kda, gdn2, gdp, mamba2), got 'gla'"},
           {"gdn:both:fp32:N1T12H2K16V8", "a pass (fwd, bwd), got 'both'"},
           {"gdn:fwd:float:N1T12H2K16V8",
            "a dtype (fp32, bf16, fp16, fp64, i32, i64), got 'float'"},
           {"gdn:fwd:fp32:", "the size N, got ''"},
           {"gdn:fwd:fp32:N1H2K16V8", "the size T, got 'N1H2K16V8'"},
           {"gdn:fwd:fp32:N1T12H2K16V8 ", sizes + "' '"},
           {"gdn:fwd:fp32:N1T12X3H2K16V8", sizes + "'X3H2K16V8'"},
           {"gdn:fwd:fp32:N1T-12H2K16V8", sizes + "'T-12H2K16V8'"},
           {"gdn:fwd:fp32:N1T12H2K16V", sizes + "'V'"},
           {"gdn:fwd:fp32:N1T12H2K16V8T12", "each size once, got 'T12' after another T"},
           {"gdn:fwd:fp32:N1T281474976710657H2K16V8",
            "sizes of at most " + limit + ", got 'T281474976710657'"},
           {"gdn:fwd:fp32:N1T99999999999999999999H2K16V8",
            "sizes of at most " + limit + ", got 'T99999999999999999999'"},
           {"gdn:fwd:fp32:N1T281474976710656H1K2V1",
            "tensors of at most " + limit + " elements, got q [281474976710656, 1, 2]"},
           {"gdn:fwd:fp32:N1T0H16777216K281474976710656V1",
            "tensors of at most " + limit + " elements, got q [0, 16777216, 281474976710656]"},
           {"gdn:fwd:fp32:N281474976710656T1H1K1V1",
            "tensors of at most " + limit + " elements, got cu_seqlens [281474976710657]"},
           {good + ":pool=281474976710656", "tensors of at most " + limit +
                                                " elements, got initial_state [" + limit +
                                                ", 2, 8, 16]"},
           {good + ":l2norm:sigmoid:l2norm", "each option once, got 'l2norm' after 'l2norm'"},
           {good + ":g=bf16:g=fp16", "each option once, got 'g=fp16' after 'g=bf16'"},
           {good + ":+o:-o", "each option once, got '-o' after '+o'"},
           {good + ":q@1x1x1:q@1x1x1", "each option once, got 'q@1x1x1' after 'q@1x1x1'"},
           {good + ":l2norm=1", "l2norm, got 'l2norm=1'"},
           {good + ":linear=", "linear, got 'linear='"},
           {good + ":grad=true", "grad, got 'grad=true'"},
           {good + ":scale", "scale=NUMBER, got 'scale'"},
           {good + ":scale=", "scale=NUMBER, got 'scale='"},
           {good + ":scale=0.5x", "scale=NUMBER, got 'scale=0.5x'"},
           {good + ":scale=+1", "scale=NUMBER, got 'scale=+1'"},
           {good + ":scale=0.5\0"s, "scale=NUMBER, got 'scale=0.5\\x00'"},
           {good + ":scale=1e999", "scale=NUMBER, got 'scale=1e999'"},
           {good + ":scale=inf", "scale=NUMBER, got 'scale=inf'"},
           {good + ":scale=nan", "scale=NUMBER, got 'scale=nan'"},
           {good + ":g", "g=DTYPE, got 'g'"},
           {good + ":beta=float32", "beta=DTYPE, got 'beta=float32'"},
           {good + ":a_log=", "a_log[=DTYPE], got 'a_log='"},
           {good + ":dt_bias=x", "dt_bias[=DTYPE], got 'dt_bias=x'"},
           {good + ":cu_seqlens=int64", "cu_seqlens=DTYPE, got 'cu_seqlens=int64'"},
           {good + ":state=32", "state[=DTYPE], got 'state=32'"},
           {good + ":pool", "pool=ROWS, got 'pool'"},
           {good + ":pool=-1", "pool=ROWS, got 'pool=-1'"},
           {good + ":final=1", "final, got 'final=1'"},
           {good + ":every=9223372036854775808", "every=TOKENS, got 'every=9223372036854775808'"},
           {good + ":ckpt=", "ckpt=DTYPE, got 'ckpt='"},
           {good + ":-p", "the name of a tensor, got '-p'"},
           {good + ":+", "the name of a tensor, got '+'"},
           {good + ":Q@1x1x1", "the name of a tensor, got 'Q@1x1x1'"},
           {good + ":q@1x2", "3 strides such as 512x32x1, got 'q@1x2'"},
           {good + ":q@1x2x3x4", "3 strides such as 512x32x1, got 'q@1x2x3x4'"},
           {good + ":q@1x2x", "3 strides such as 512x32x1, got 'q@1x2x'"},
           {good + ":q@", "3 strides such as 512x32x1, got 'q@'"},
           {good + ":cu_seqlens@9223372036854775808",
            "1 strides such as 512x32x1, got 'cu_seqlens@9223372036854775808'"},
           {good + ":dO@1x1x1", "strides of tensors that take part, got 'dO@1x1x1'"},
           {good + ":-k:k@1x1x1", "strides of tensors that take part, got 'k@1x1x1'"},
           {good + ":device=cuda", "device=cpu or device=cuda0, got 'device=cuda'"},
           {good + ":device=gpu0", "device=cpu or device=cuda0, got 'device=gpu0'"},
           {good + ":device=cuda4294967296",
            "device=cpu or device=cuda0, got 'device=cuda4294967296'"},
           {good + ":threads=2147483648", "threads=COUNT, got 'threads=2147483648'"},
           {good + ":threads=1.5", "threads=COUNT, got 'threads=1.5'"},
           {good + ":plan=", "plan=NAME, got 'plan='"},
           {good + ":plan=gdn cpu", "plan=NAME, got 'plan=gdn cpu'"},
           {good + ":plan=" + std::string(65, 'x'),
            "plan=NAME, got 'plan=" + std::string(55, 'x') + "...'"},
           {good + ":bound=inf", "bound=NUMBER, got 'bound=inf'"},
           {good + ":softplus=1", "softplus, got 'softplus=1'"},
           {good + ":token_major",
            "token_major or token_major=TENSOR,TENSOR..., got 'token_major'"},
           {good + ":dt_min=nan", "dt_min=NUMBER, got 'dt_min=nan'"},
           {good + ":dt_max=nan", "dt_max=NUMBER, got 'dt_max=nan'"},
           {good + ":+z", "the name of a tensor, got '+z'"},
           {good + ":x@1x1x1", "the name of a tensor, got 'x@1x1x1'"},
           {product, "n=STEPS, at least 1, among the options"},
           {product + ":n=0", "n=STEPS, at least 1, among the options"},
           {product + ":n=-1", "n=STEPS, got 'n=-1'"},
           {product + ":n", "n=STEPS, got 'n'"},
           {product + ":n=281474976710656", "n=STEPS, got 'n=281474976710656'"},
           {product + ":n=2:token_major=k,q",
            "token_major or token_major=TENSOR,TENSOR..., got 'token_major=k,q'"},
           {product + ":n=2:token_major=k,k",
            "token_major or token_major=TENSOR,TENSOR..., got 'token_major=k,k'"},
           {product + ":n=2:token_major=",
            "token_major or token_major=TENSOR,TENSOR..., got 'token_major='"},
           {product + ":n=2:token_major:k@1x1x1", "4 strides such as 512x32x1, got 'k@1x1x1'"},
           {product + ":n=2:k@1x1x1x1", "3 strides such as 512x32x1, got 'k@1x1x1x1'"},
           {"mamba2:fwd:fp32:N1T12H2K16V8", "sizes such as N4T8192H64G8P64S128, got 'K16V8'"},
           {"mamba2:fwd:fp32:N1T12H2HK2P8S16", "sizes such as N4T8192H64G8P64S128, got 'HK2P8S16'"},
           {"mamba2:fwd:fp32:N1T12H2P8", "the size S, got 'N1T12H2P8'"},
           {"mamba2:fwd:fp32:N1T12H2P8S8:A", "A=DTYPE, got 'A'"},
           {"mamba2:fwd:fp32:N1T12H2P8S8:D=x", "D[=DTYPE], got 'D=x'"},
           {"mamba2:fwd:fp32:N1T12H2P8S8:D:DP", "DP[=DTYPE] in place of D, got 'DP'"},
           {"mamba2:fwd:fp32:N1T12H2P8S8:D@1x1", "strides of tensors that take part, got 'D@1x1'"},
           {"mamba2:fwd:fp32:N1T12H2P8S8:D:D@1x1", "1 strides such as 512x32x1, got 'D@1x1'"},
           {"mamba2:fwd:fp32:N1T12H2P8S8:-q", "the name of a tensor, got '-q'"},
           {"mamba2:fwd:fp32:N1T281474976710656H2P1S1",
            "tensors of at most " + limit + " elements, got x [281474976710656, 2, 1]"},
           {good + std::string(5000, ':'), "at most 4096 bytes, got 5025"},
       }) {
    EXPECT_EQ(parse_error(written), "problem string: expected " + expected) << written;
  }
  // An unknown option, or that of a tensor of another operation, is told all that there are.
  const std::string unknown = parse_error(good + ":l2norm:fast");
  EXPECT_TRUE(
      unknown.starts_with("problem string: expected an option (n=STEPS, token_major or "
                          "token_major=TENSOR,TENSOR..., l2norm, sigmoid, neg, guard, "))
      << unknown;
  EXPECT_NE(unknown.find(", g=DTYPE, beta=DTYPE, a_log[=DTYPE], dt_bias[=DTYPE], "), unknown.npos)
      << unknown;
  EXPECT_TRUE(
      unknown.ends_with(", +TENSOR, -TENSOR, TENSOR@STRIDExSTRIDE..., device=cpu or "
                        "device=cuda0, threads=COUNT, plan=NAME), got 'fast'"))
      << unknown;
  const std::string other = parse_error("mamba2:fwd:fp32:N1T12H2P8S8:beta=bf16");
  EXPECT_NE(other.find(", dt=DTYPE, A=DTYPE, D[=DTYPE], DP[=DTYPE] in place of D, dt_bias[=DTYPE], "
                       "z[=DTYPE], "),
            other.npos)
      << other;
  EXPECT_TRUE(other.ends_with(", got 'beta=bf16'")) << other;
  EXPECT_EQ(parse_error(good + ":").substr(0, 34), "problem string: expected an option");
}

TEST(TextErrors, WhatNoStringHolds) {
  Problem p = parse("gdn:fwd:bf16:N2T12H2HV4K16V8");
  p.plan_name = "gdn_cpu:l2norm";
  EXPECT_EQ(error_of([&] { print(p); }),
            "problem string: expected a plan_name of at most 64 letters, digits, '_', '-' and '.', "
            "got 'gdn_cpu:l2norm'");
  p.plan_name = std::string(65, 'x');
  EXPECT_NE(error_of([&] { print(p); }), "nothing was thrown");
}

TEST(TextErrors, ThroughThePublicHeaders) {
  try {
    parse_problem("gdn:up");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kInvalidValue);
    EXPECT_STREQ(error.what(),
                 "problem string: expected VARIANT:PASS:IO:DIMS[:OPTION]..., got 'gdn:up'");
    EXPECT_STREQ(dw_last_rule(), "");
  }
  // A name that no engine has does not leave the library.
  EXPECT_TRUE(error_of([] {
                parse_problem("gdn:fwd:bf16:N2T12H2HV4K16V8:plan=gdn_none");
              }).starts_with("gated_delta_net: plan_name must be one of gdn_cpu, "));
  EXPECT_STREQ(dw_last_rule(), "plan_name");
  Problem broken = parse_problem("gdn:fwd:bf16:N2T12H2HV4K16V8");
  broken[Port::kV].shape[0] = 11;
  EXPECT_EQ(error_of([&] { to_string(broken); }),
            "gated_delta_net: v must have shape [T, HV, V] = [12, 4, 8], got [11, 4, 8]");
}

}  // namespace
}  // namespace deltaworks
