// The options of problem strings: one row each, in the order in which they are printed, that both
// reads and writes it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deltaworks/problem.h"
#include "problem/ports.h"
#include "problem/text_draft.h"
#include "problem/text_words.h"

namespace deltaworks::text {

constexpr std::size_t kMaxPlanName = 64;

// One option. `read` gets what follows its name, "" or "=...", and is false where that is not what
// the form shows; `write` returns what follows the name, or nothing where the problem has the
// default.
struct Option {
  string_view name;  // empty: that of `tensor`
  string_view form;  // empty: a dtype, which may be left out where the tensor may
  bool (*read)(Draft&, string_view);
  std::optional<std::string> (*write)(const Problem&);
  std::optional<Port> tensor = {};  // an operation without it has no such option
};

inline bool belongs(const Option& option, Op op) {
  return !option.tensor || find_spec(op, *option.tensor) != nullptr;
}
inline string_view name_of(const Option& option, Op op) {
  return option.name.empty() ? name(op, *option.tensor) : option.name;
}
inline std::string form_of(const Option& option, Op op) {
  if (!option.form.empty()) return std::string(option.form);
  const bool required = port_spec(op, *option.tensor).role == Role::kInput;
  return cat(name_of(option, op), required ? "=DTYPE" : "[=DTYPE]");
}

inline std::optional<std::string> if_set(bool set, const std::string& rest = "") {
  return set ? std::optional(rest) : std::nullopt;
}

// What follows "=".
inline string_view value_in(string_view rest) {
  return rest.starts_with('=') ? rest.substr(1) : "";
}

template <class Number, class Field>
inline bool read_into(Field& field, string_view rest) {
  const auto number = read_number<Number>(value_in(rest));
  if (number) field = *number;
  return number.has_value();
}

// A field of the options that is at its default or at one other value.
template <auto kField, auto kValue = true>
constexpr Option choice(string_view name) {
  return {name, name,
          [](Draft& draft, string_view rest) {
            draft.problem.options.*kField = kValue;
            return rest.empty();
          },
          [](const Problem& p) { return if_set(p.options.*kField == kValue); }};
}

// The shortest text of a number; adding 0 makes -0, which is equal to 0, the same text.
inline std::string number_suffix(double number) { return cat("=", shortest(number + 0.0)); }

// A number that is not given by default. It is finite, or any but a NaN.
template <std::optional<double> Options::*kNumber, bool kFinite = true>
constexpr Option number(string_view name, string_view form) {
  return {name, form,
          [](Draft& draft, string_view rest) {
            auto& number = draft.problem.options.*kNumber;
            return read_into<double>(number, rest) &&
                   (kFinite ? std::isfinite(*number) : !std::isnan(*number));
          },
          [](const Problem& p) {
            const auto& number = p.options.*kNumber;
            return if_set(number.has_value(), number_suffix(number.value_or(0)));
          }};
}

inline bool has_other_shape(const Problem& p, const PortSpec& spec) {
  return spec.other.rank > 0 && p[spec.port].rank == spec.other.rank;
}

inline std::string dtype_suffix(DType dtype) { return cat("=", name_in(kDTypes, dtype)); }

// The dtype of a tensor, which takes part by this where the operation does not require it.
template <Port kPort, bool kOther = false>
constexpr Option tensor(string_view name = {}, string_view form = {}) {
  return {
      name, form,
      [](Draft& draft, string_view rest) {
        const PortSpec& spec = port_spec(draft.problem.op, kPort);
        TensorDesc& tensor = draft.problem[kPort];
        const bool required = spec.role == Role::kInput;
        const auto dtype = rest.empty() && !required ? default_dtype(draft.problem, spec.kind)
                                                     : find<DType>(kDTypes, value_in(rest));
        if (!dtype || (tensor.present() && !required)) return false;
        if (!required) {
          draft.other[index(kPort)] = kOther;
          add(draft, spec, *dtype);
        }
        tensor.dtype = *dtype;
        return true;
      },
      [](const Problem& p) -> std::optional<std::string> {
        if (!p.has(kPort)) return std::nullopt;
        const PortSpec& spec = port_spec(p.op, kPort);
        const bool required = spec.role == Role::kInput;
        if (!required && has_other_shape(p, spec) != kOther) return std::nullopt;
        const DType dtype = p[kPort].dtype;
        if (dtype != default_dtype(p, spec.kind)) return dtype_suffix(dtype);
        // A pool is an initial state by itself.
        return if_set(!required && (kPort != Port::kInitialState || !p.has(Port::kStateIndices)));
      },
      kPort};
}

// A plan's name as it may stand in a string.
inline bool is_plan_name(string_view name) {
  return !name.empty() && name.size() <= kMaxPlanName &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || c == '.';
         });
}

// An input whose sub-steps may have an axis of their own.
inline bool may_be_token_major(const PortSpec& spec) {
  return spec.role == Role::kInput && spec.other.rank > 0;
}

// What shapes depend on.
inline constexpr Option kShapeOptions[] = {
    {"n", "n=STEPS",
     [](Draft& draft, string_view rest) {
       std::int64_t& n = draft.dims.n;
       if (!read_into<std::int64_t>(n, rest) || n < 0) return false;
       draft.problem.options.num_householder = n;
       return n <= kMaxElements / std::max<std::int64_t>(draft.dims.T, 1);
     },
     [](const Problem& p) {
       const std::int64_t n = p.options.num_householder;
       return if_set(n != 0, cat("=", n));
     }},
    {"token_major", "token_major or token_major=TENSOR,TENSOR...",
     [](Draft& draft, string_view rest) {
       const std::vector<string_view> names = split(value_in(rest), ',');
       std::size_t found = 0;
       for (const PortSpec& spec : ports(draft.problem.op)) {
         if (!may_be_token_major(spec)) continue;
         bool& named = draft.other[index(spec.port)];
         named = rest.empty() || std::find(names.begin(), names.end(), spec.name) != names.end();
         found += named;
       }
       return found > 0 && (rest.empty() || found == names.size());
     },
     [](const Problem& p) {
       std::string names;
       bool all = true;
       for (const PortSpec& spec : ports(p.op)) {
         if (!may_be_token_major(spec)) continue;
         if (has_other_shape(p, spec)) {
           names += cat(names.empty() ? "=" : ",", spec.name);
         } else {
           all = false;
         }
       }
       return if_set(!names.empty(), all ? "" : names);
     }},
};

// What is computed.
inline constexpr Option kOptions[] = {
    choice<&Options::use_qk_l2norm>("l2norm"),
    choice<&Options::use_beta_sigmoid>("sigmoid"),
    choice<&Options::allow_neg_eigval>("neg"),
    choice<&Options::beta_guard>("guard"),
    choice<&Options::safe_gate>("safe"),
    choice<&Options::gate, GateKind::kSoftplus>("softplus"),
    number<&Options::gate_lower_bound>("bound", "bound=NUMBER"),
    choice<&Options::gate_domain, GateDomain::kLinear>("linear"),
    choice<&Options::dt_softplus, false>("linear_dt"),
    {"dt_min", "dt_min=NUMBER",
     [](Draft& draft, string_view rest) {
       double& low = draft.problem.options.dt_min;
       return read_into<double>(low, rest) && !std::isnan(low);
     },
     [](const Problem& p) {
       return if_set(p.options.dt_min != 0, number_suffix(p.options.dt_min));
     }},
    number<&Options::dt_max, false>("dt_max", "dt_max=NUMBER"),
    choice<&Options::batch_invariant>("invariant"),
    {"grad", "grad",
     [](Draft& draft, string_view rest) {
       draft.problem.requires_gradient = true;
       return rest.empty();
     },
     [](const Problem& p) { return if_set(p.requires_gradient); }},
    number<&Options::scale>("scale", "scale=NUMBER"),
    tensor<Port::kG>(),
    tensor<Port::kBeta>(),
    tensor<Port::kW>(),
    tensor<Port::kALog>(),
    tensor<Port::kD>(),
    tensor<Port::kD, true>("DP", "DP[=DTYPE] in place of D"),
    tensor<Port::kDtBias>(),
    tensor<Port::kZ>(),
    tensor<Port::kCuSeqlens>(),
    tensor<Port::kInitialState>("state", "state[=DTYPE]"),
    {"pool", "pool=ROWS",
     [](Draft& draft, string_view rest) {
       const auto rows = read_number<std::int64_t>(value_in(rest));
       if (!rows || *rows < 0) return false;
       const Problem& p = draft.problem;
       const PortSpec& spec = port_spec(p.op, Port::kInitialState);
       add(draft, spec, implied_dtype(p, spec), rows);
       add(draft, port_spec(p.op, Port::kStateIndices), DType::kInt32);
       return true;
     },
     [](const Problem& p) {
       return if_set(p.has(Port::kStateIndices), cat("=", p[Port::kInitialState].shape[0]));
     }},
    choice<&Options::output_final_state>("final"),
    choice<&Options::overwrite_initial_state>("overwrite"),
    {"every", "every=TOKENS",
     [](Draft& draft, string_view rest) {
       return read_into<std::int64_t>(draft.problem.options.checkpoint_every_n_tokens, rest);
     },
     [](const Problem& p) {
       const std::int64_t every = p.options.checkpoint_every_n_tokens;
       return if_set(every != 0, cat("=", every));
     }},
    {"ckpt", "ckpt=DTYPE",
     [](Draft& draft, string_view rest) {
       draft.problem.options.checkpoint_dtype = find<DType>(kDTypes, value_in(rest));
       return draft.problem.options.checkpoint_dtype.has_value();
     },
     [](const Problem& p) {
       const auto& dtype = p.options.checkpoint_dtype;
       return if_set(dtype.has_value(), dtype_suffix(dtype.value_or(DType::kFloat32)));
     }},
};

// Where and on what it runs.
inline constexpr Option kRunOptions[] = {
    {"device", "device=cpu or device=cuda0",
     [](Draft& draft, string_view rest) {
       const string_view value = value_in(rest);
       const string_view name = value.substr(0, value.find_first_of("-0123456789"));
       const auto type = find<DeviceType>(kDevices, name);
       if (!type) return false;
       draft.device.type = *type;
       const bool indexed = name.size() < value.size();
       return indexed
                  ? read_into<std::int32_t>(draft.device.index, cat("=", value.substr(name.size())))
                  : *type == DeviceType::kCpu;
     },
     [](const Problem& p) {
       const Device device = p[Port::kQ].device;
       return if_set(device != Device{}, cat("=", name_in(kDevices, device.type), device.index));
     }},
    {"threads", "threads=COUNT",
     [](Draft& draft, string_view rest) {
       return read_into<std::int32_t>(draft.problem.threads, rest);
     },
     [](const Problem& p) { return if_set(p.threads != 0, cat("=", p.threads)); }},
    {"plan", "plan=NAME",
     [](Draft& draft, string_view rest) {
       draft.problem.plan_name = value_in(rest);
       return is_plan_name(draft.problem.plan_name);
     },
     [](const Problem& p) { return if_set(!p.plan_name.empty(), cat("=", p.plan_name)); }},
};

}  // namespace deltaworks::text
