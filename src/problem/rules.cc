// Names of the rules.
#include "problem/rules.h"

namespace deltaworks {

const char* name(Rule rule) {
  static constexpr const char* kNames[] = {
      "missing",
      "pass",
      "rank",
      "size",
      "gradient_of_absent",
      "sequences",
      "key_dim",
      "value_dim",
      "key_heads",
      "head_groups",
      "shape",
      "overlap",
      "device",
      "io_dtype",
      "offset_dtype",
      "index_dtype",
      "float64_alike",
      "gradient_dtype",
      "io_alike",
      "beta_dtype",
      "gate_dtype",
      "parameter_dtype",
      "state_dtype",
      "states_alike",
      "threads",
      "scale",
      "neg_eigval_needs_sigmoid",
      "a_log_needs_safe_gate",
      "dt_bias_needs_safe_gate",
      "gate_domain",
      "linear_excludes_safe_gate",
      "gate",
      "option_of_other",
      "gate_needs_safe_gate",
      "lower_bound_needs_safe_gate",
      "lower_bound_excludes_softplus",
      "lower_bound",
      "guard_needs_norm",
      "householder",
      "step_bounds",
      "cadence",
      "checkpoint_dtype",
      "pool_needs_state",
      "overwrite_needs_state",
      "pool_excludes_autograd",
      "overwrite_excludes_autograd",
      "pool_excludes_checkpoints",
      "final_state_missing",
      "final_state_unasked",
      "plan_name",
      "memory",
      "offsets_start",
      "offsets_decrease",
      "offsets_end",
  };
  static_assert(sizeof kNames / sizeof *kNames == kRuleCount);
  return kNames[static_cast<int>(rule)];
}

}  // namespace deltaworks
