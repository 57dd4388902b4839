// A Problem is everything about one operator call except the data: which operation and pass, the
// description of every tensor that takes part, and the options. Plans are made from problems.
//
// Dimensions: T tokens of the packed batch, N sequences, K key dimension, V value dimension,
// H / HK / HV heads of q / k / v, HO = max(H, HV) heads of gates, states and outputs.
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
  kQ = 0,
  kK,
  kV,
  kG,
  kBeta,
  kALog,
  kDtBias,
  kCuSeqlens,
  kInitialState,
  kO,
  kFinalState,
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

constexpr int index(Port port) { return static_cast<int>(port); }
// "q", "a_log", "dO", ... as in the Python signatures.
const char* name(Port port);

enum class GateDomain : std::int32_t { kLog = 0, kLinear = 1 };

// Options of the operators, with their defaults; formulas: docs/design/gated-delta-rule.md.
struct Options {
  std::optional<double> scale = {};  // of the output; absent: K^-0.5
  bool use_qk_l2norm = false;        // q and k rows are divided by their 2-norm
  bool use_beta_sigmoid = false;     // beta holds logits
  bool allow_neg_eigval = false;     // beta is doubled, into (0, 2)
  bool safe_gate = false;            // g = -exp(a_log) softplus(g + dt_bias)
  GateDomain gate_domain = GateDomain::kLog;
  bool batch_invariant = false;  // every engine here always is; part of the contract
  bool output_final_state = false;
  bool overwrite_initial_state = false;
  bool has_state_indices = false;
  std::int64_t checkpoint_every_n_tokens = 0;
  bool operator==(const Options&) const = default;
};

struct Problem {
  Op op = Op::kGatedDeltaNet;
  Pass pass = Pass::kForward;
  std::array<TensorDesc, kPortCount> tensors{};
  Options options;
  // A gradient will be asked for: a forward plan is then taken only from an engine that has the
  // backward of the same problem.
  bool requires_gradient = false;
  std::string plan_name;     // pins an engine; empty: the first that accepts
  std::int32_t threads = 0;  // upper bound on CPU threads; 0: the process's default

  TensorDesc& operator[](Port port) { return tensors[index(port)]; }
  const TensorDesc& operator[](Port port) const { return tensors[index(port)]; }
  bool has(Port port) const { return (*this)[port].present(); }
  bool operator==(const Problem&) const = default;
};

// The sizes that a valid problem's tensors agree on.
struct Dims {
  std::int64_t T = 0, N = 0, K = 0, V = 0;
  std::int64_t H = 0, HK = 0, HV = 0, HO = 0;
};

// Judges every shape, dtype and combination; throws Error on the first rule that is broken.
// Engines are asked only after this.
Dims validate(const Problem& problem);

}  // namespace deltaworks
