// A Problem is everything about one operator call except the data: which operation and pass, the
// description of every tensor that takes part, and the options. Plans are made from problems.
// Problems can be written as strings: see text.h.
//
// Dimensions: T tokens of the packed batch, N sequences, K key dimension, V value dimension,
// H / HK / HV heads of q / k / v, HO = max(H, HV) heads of gates, states and outputs.
//
//   Problem problem;
//   problem[Port::kQ] = contiguous(DType::kBFloat16, {T, H, K});
//   ...
//   problem.options.use_qk_l2norm = true;
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "deltaworks/types.h"

namespace deltaworks {

enum class Op : std::int32_t { kGatedDeltaNet = 0 };
enum class Pass : std::int32_t { kForward = 0, kBackward = 1 };

// The tensors of an operation. d* are gradients: kDO and kDFinalState flow in, the others out.
enum class Port : std::int32_t {
  kQ = 0,         // [T, H, K]    float32, bfloat16 or float16 as v; float64: every tensor
  kK,             // [T, HK, K]   dtype of q; HK is H or HV
  kV,             // [T, HV, V]   dtype of q
  kG,             // [T, HO]      float32, bfloat16 or float16
  kBeta,          // [T, HO]      float32 or the dtype of q
  kALog,          // [HO]         float32, bfloat16 or float16
  kDtBias,        // [HO]         the same
  kCuSeqlens,     // [N+1]        int32 or int64; sequence n is rows cu_seqlens[n]:cu_seqlens[n+1]
  kInitialState,  // [N, HO, V, K] float32, bfloat16 or float16
  kStateIndices,  // [N] int32: rows of initial_state, which is a pool then
  kO,             // [T, HO, V]   dtype of q
  kFinalState,    // [N, HO, V, K] dtype of initial_state; float32 without one
  kDO,
  kDFinalState,
  kDQ,
  kDK,
  kDV,
  kDG,
  kDBeta,
  kDALog,
  kDDtBias,
  kDInitialState,
};
inline constexpr int kPortCount = static_cast<int>(Port::kDInitialState) + 1;

// Place of a port in the arrays of Problem and Pack.
constexpr int index(Port port) { return static_cast<int>(port); }

// "q", "a_log", "dO", ... as in the Python signatures.
constexpr const char* name(Port port) {
  constexpr const char* kNames[kPortCount] = {"q",
                                              "k",
                                              "v",
                                              "g",
                                              "beta",
                                              "a_log",
                                              "dt_bias",
                                              "cu_seqlens",
                                              "initial_state",
                                              "state_indices",
                                              "o",
                                              "final_state",
                                              "dO",
                                              "d_final_state",
                                              "dq",
                                              "dk",
                                              "dv",
                                              "dg",
                                              "dbeta",
                                              "da_log",
                                              "ddt_bias",
                                              "d_initial_state"};
  return kNames[index(port)];
}

enum class GateDomain : std::int32_t { kLog = 0, kLinear = 1 };

// Options of the operators, with their defaults; formulas: docs/design/gated-delta-rule.md.
struct Options {
  std::optional<double> scale = {};  // of the output; absent: K^-0.5
  bool use_qk_l2norm = false;        // q and k rows are divided by their 2-norm
  bool use_beta_sigmoid = false;     // beta holds logits
  bool allow_neg_eigval = false;     // beta is doubled, into (0, 2)
  bool safe_gate = false;            // g = -exp(a_log) softplus(g + dt_bias)
  GateDomain gate_domain = GateDomain::kLog;
  bool batch_invariant = false;  // always so on the CPU; on a card it cuts no sequence
  bool output_final_state = false;
  bool overwrite_initial_state = false;  // final states replace initial_state; no final_state then
  std::int64_t checkpoint_every_n_tokens = 0;
  std::optional<DType> checkpoint_dtype = {};  // absent: the dtype of q
  bool operator==(const Options&) const = default;
};

// One operator call without its data. Problems are equal if every field is.
struct Problem {
  Op op = Op::kGatedDeltaNet;
  Pass pass = Pass::kForward;
  std::array<TensorDesc, kPortCount> tensors{};
  Options options;
  // A gradient will be asked for: a forward plan is then taken only from an engine that has the
  // backward of the same problem.
  bool requires_gradient = false;
  std::string plan_name;     // pins an engine; empty: the first that accepts
  std::int32_t threads = 0;  // upper bound; 0: the process's default; over 1024: 1024

  TensorDesc& operator[](Port port) { return tensors[index(port)]; }
  const TensorDesc& operator[](Port port) const { return tensors[index(port)]; }
  bool has(Port port) const { return (*this)[port].present(); }
  bool operator==(const Problem&) const = default;
};

// The sizes that a valid problem's tensors agree on.
struct Dims {
  std::int64_t T = 0, N = 0, K = 0, V = 0;
  std::int64_t H = 0, HK = 0, HV = 0, HO = 0;
  bool operator==(const Dims&) const = default;
};

// Base pointers of the problem's tensors, by port. Inputs are never written, but for an
// initial_state that the options overwrite.
struct Pack {
  std::array<void*, kPortCount> pointers{};
  void*& operator[](Port port) { return pointers[index(port)]; }
  void* operator[](Port port) const { return pointers[index(port)]; }
};

}  // namespace deltaworks
