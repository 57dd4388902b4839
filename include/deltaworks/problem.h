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

enum class Op : std::int32_t {
  kGatedDeltaNet = 0,
  kKimiDeltaAttention,
  kGatedDeltaNetV2,
  kGatedDeltaProduct,
  kMamba2,
};
inline constexpr int kOpCount = static_cast<int>(Op::kMamba2) + 1;
enum class Pass : std::int32_t { kForward = 0, kBackward = 1 };

// The tensors of an operation. d* are gradients: kDO and kDFinalState flow in, the others out.
// Shapes: g, beta, a_log and dt_bias of gated_delta_net; an operation that differs is named. n are
// the sub-steps a token of gated_delta_product, whose tensors on n rows a token may also be given
// as [T, n, heads, ...].
enum class Port : std::int32_t {
  kQ = 0,         // [T, H, K]    float32, bfloat16 or float16 as v; float64: every tensor
  kK,             // [T, HK, K]   dtype of q; HK is H or HV; GDP: [T n, HK, K]
  kV,             // [T, HV, V]   dtype of q; GDP: [T n, HV, V]
  kG,             // [T, HO]      float32, bfloat16 or float16; KDA and GDN-2: [T, HO, K]
  kBeta,          // [T, HO]      float32 or the dtype of q; GDN-2: [T, HO, K]; GDP: [T n, HO]
  kALog,          // [HO]         float32, bfloat16 or float16
  kDtBias,        // [HO]         the same; KDA and GDN-2: [HO, K]
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
  kW,  // [T, HO, V]   GDN-2: float32 or the dtype of q
  kD,  // [HO] or [HO, V]   Mamba-2: float32, bfloat16 or float16
  kZ,  // [T, HO, V]   Mamba-2: dtype of q
  kDW,
  kDD,
  kDZ,
  // Mamba-2 has names of its own for what the recurrence shares.
  kC = kQ,      // [T, G, N_state]
  kB = kK,      // [T, G, N_state]
  kX = kV,      // [T, H, P]
  kDt = kG,     // [T, H]
  kA = kALog,   // [H], negative
  kY = kO,      // [T, H, P]
  kDY = kDO,    //
  kDC = kDQ,    //
  kDB = kDK,    //
  kDX = kDV,    //
  kDDt = kDG,   //
  kDA = kDALog  //
};
inline constexpr int kPortCount = static_cast<int>(Port::kDZ) + 1;

// Place of a port in the arrays of Problem and Pack.
constexpr int index(Port port) { return static_cast<int>(port); }

// "q", "k", "v", "a_log", "dO", ...: Mamba-2 calls some of them by other names.
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
                                              "d_initial_state",
                                              "w",
                                              "D",
                                              "z",
                                              "dw",
                                              "dD",
                                              "dz"};
  return kNames[index(port)];
}

enum class GateDomain : std::int32_t { kLog = 0, kLinear = 1 };
// What safe_gate makes of a gate a channel.
enum class GateKind : std::int32_t { kSigmoid = 0, kSoftplus = 1 };

// Options of the operators, with their defaults; formulas: docs/design/gated-delta-rule.md. Those
// that an operation does not take must have their defaults.
struct Options {
  std::optional<double> scale = {};  // of the output; absent: K^-0.5
  bool use_qk_l2norm = false;        // q and k rows are divided by their 2-norm
  bool use_beta_sigmoid = false;     // beta holds logits
  bool allow_neg_eigval = false;     // beta is doubled, into (0, 2)
  bool safe_gate = false;            // g = -exp(a_log) softplus(g + dt_bias), or a sigmoid
  GateDomain gate_domain = GateDomain::kLog;
  bool batch_invariant = false;  // always so on the CPU; on a card it cuts no sequence
  bool output_final_state = false;
  bool overwrite_initial_state = false;  // final states replace initial_state; no final_state then
  std::int64_t checkpoint_every_n_tokens = 0;
  std::optional<DType> checkpoint_dtype = {};  // absent: the dtype of q

  // KDA and GDN-2: safe_gate is gate_lower_bound sigmoid(exp(a_log) (g + dt_bias)), or softplus.
  GateKind gate = GateKind::kSigmoid;
  std::optional<double> gate_lower_bound = {};  // < 0; absent: -5
  bool beta_guard = false;                      // GDN-2: beta is drawn to its mean where it must
  std::int64_t num_householder = 0;             // GDP: sub-steps a token, n >= 1

  // Mamba-2: the step is clamp(softplus(dt + dt_bias), dt_min, dt_max).
  bool dt_softplus = true;
  double dt_min = 0;
  std::optional<double> dt_max = {};  // absent: infinity
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

// The sizes that a valid problem's tensors agree on. Of Mamba-2: H and HK are G, the groups of B
// and C; HV and HO the heads of x; K is N_state and V is P.
struct Dims {
  std::int64_t T = 0, N = 0, K = 0, V = 0;
  std::int64_t H = 0, HK = 0, HV = 0, HO = 0;
  std::int64_t n = 1;  // sub-steps a token
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
