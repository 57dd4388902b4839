// The options of problem strings: one row each, in the order in which they are printed, that both
// reads and writes it.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "deltaworks/problem.h"
#include "problem/ports.h"
#include "problem/text_words.h"

namespace deltaworks::text {

constexpr std::size_t kMaxPlanName = 64;
// Keeps every stride and byte count of a dense tensor far below 2^63.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 48;

// A problem on its way from a string. Tensors that take part by default and have an option of their
// own are there from the beginning, the others once all options are known.
struct Draft {
  Problem problem;
  Dims dims;
  Device device;
};

inline DType default_dtype(const Problem& p, Kind kind) {
  if (kind == Kind::kOffset || kind == Kind::kIndex) return DType::kInt32;
  const DType io = p[Port::kQ].dtype;
  return kind == Kind::kIo || io == DType::kFloat64 ? io : DType::kFloat32;
}

// Of a tensor that has no option to choose its dtype.
inline DType implied_dtype(const Problem& p, const PortSpec& spec) {
  if (spec.kind == Kind::kState && p.has(Port::kInitialState)) return p[Port::kInitialState].dtype;
  return spec.role == Role::kGradient && p.has(spec.primal) ? p[spec.primal].dtype
                                                            : default_dtype(p, spec.kind);
}

// Whether a tensor takes part where no +NAME or -NAME says so. Inputs come first among the ports,
// so that those that gradients depend on are known.
inline bool takes_part(const Problem& p, const PortSpec& spec) {
  const bool forward = p.pass == Pass::kForward;
  switch (spec.role) {
    case Role::kInput:
      return true;
    case Role::kOptional:  // their options say it
      return p.has(spec.port);
    case Role::kOutput:
      return forward;
    case Role::kFinalState:
      return forward && wants_final_state(p.options);
    case Role::kFlow:
      return !forward && (spec.kind != Kind::kState || p.options.output_final_state);
    case Role::kGradient:
      return !forward && p.has(spec.primal);
  }
  return false;
}

inline void check_size(Port port, std::span<const std::int64_t> shape) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) {
    if (extent > kMaxElements / elements) {
      std::string text;
      for (const std::int64_t each : shape) text += cat(text.empty() ? "" : ", ", each);
      fail("tensors of at most ", kMaxElements, " elements, got ", name(port), " [", text, "]");
    }
    elements *= std::max<std::int64_t>(extent, 1);
  }
}

inline std::span<const std::int64_t> shape_of(const TensorDesc& tensor) {
  return std::span(tensor.shape).first(static_cast<std::size_t>(tensor.rank));
}

inline const PortSpec& port_spec(Op op, Port port) {
  const auto specs = ports(op);
  return *std::find_if(specs.begin(), specs.end(),
                       [port](const PortSpec& spec) { return spec.port == port; });
}

// Adds a row-major tensor to a draft.
inline void add(Draft& draft, const PortSpec& spec, DType dtype,
                std::optional<std::int64_t> rows = {}) {
  std::array<std::int64_t, kMaxRank> shape{};
  for (int axis = 0; axis < spec.rank; ++axis) shape[axis] = extent(draft.dims, spec.axes[axis]);
  if (rows) shape[0] = *rows;
  const auto axes = std::span(shape).first(static_cast<std::size_t>(spec.rank));
  check_size(spec.port, axes);
  draft.problem[spec.port] = contiguous(dtype, axes);
}

// One option. `read` gets what follows its name, "" or "=...", and is false where that is not what
// `form` shows; `write` returns what follows the name, or nothing where the problem has the
// default.
struct Option {
  string_view name;
  string_view form;
  bool (*read)(Draft&, string_view);
  std::optional<std::string> (*write)(const Problem&);
};

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

template <bool Options::*kFlag>
constexpr Option flag(string_view name) {
  return {name, name,
          [](Draft& draft, string_view rest) {
            draft.problem.options.*kFlag = true;
            return rest.empty();
          },
          [](const Problem& p) { return if_set(p.options.*kFlag); }};
}

inline std::string dtype_suffix(DType dtype) { return cat("=", name_in(kDTypes, dtype)); }

// The dtype of a tensor that always takes part.
template <Port kPort>
constexpr Option dtype_of(string_view name, string_view form) {
  return {name, form,
          [](Draft& draft, string_view rest) {
            const auto dtype = find<DType>(kDTypes, value_in(rest));
            if (dtype) draft.problem[kPort].dtype = *dtype;
            return dtype.has_value();
          },
          [](const Problem& p) {
            const DType dtype = p[kPort].dtype;
            return if_set(dtype != default_dtype(p, port_spec(p.op, kPort).kind),
                          dtype_suffix(dtype));
          }};
}

// A tensor that takes part if it is named, and its dtype.
template <Port kPort>
constexpr Option given(string_view name, string_view form) {
  return {name, form,
          [](Draft& draft, string_view rest) {
            const PortSpec& spec = port_spec(draft.problem.op, kPort);
            const auto dtype = rest.empty() ? default_dtype(draft.problem, spec.kind)
                                            : find<DType>(kDTypes, value_in(rest));
            if (dtype) add(draft, spec, *dtype);
            return dtype.has_value();
          },
          [](const Problem& p) -> std::optional<std::string> {
            if (!p.has(kPort)) return std::nullopt;
            const DType dtype = p[kPort].dtype;
            if (dtype != default_dtype(p, port_spec(p.op, kPort).kind)) return dtype_suffix(dtype);
            // A pool is an initial state by itself.
            return if_set(kPort != Port::kInitialState || !p.has(Port::kStateIndices));
          }};
}

// A plan's name as it may stand in a string.
inline bool is_plan_name(string_view name) {
  return !name.empty() && name.size() <= kMaxPlanName &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || c == '.';
         });
}

// What is computed.
inline constexpr Option kOptions[] = {
    flag<&Options::use_qk_l2norm>("l2norm"),
    flag<&Options::use_beta_sigmoid>("sigmoid"),
    flag<&Options::allow_neg_eigval>("neg"),
    flag<&Options::safe_gate>("safe"),
    {"linear", "linear",
     [](Draft& draft, string_view rest) {
       draft.problem.options.gate_domain = GateDomain::kLinear;
       return rest.empty();
     },
     [](const Problem& p) { return if_set(p.options.gate_domain == GateDomain::kLinear); }},
    flag<&Options::batch_invariant>("invariant"),
    {"grad", "grad",
     [](Draft& draft, string_view rest) {
       draft.problem.requires_gradient = true;
       return rest.empty();
     },
     [](const Problem& p) { return if_set(p.requires_gradient); }},
    {"scale", "scale=NUMBER",
     [](Draft& draft, string_view rest) {
       return read_into<double>(draft.problem.options.scale, rest) &&
              std::isfinite(*draft.problem.options.scale);
     },
     [](const Problem& p) {
       const auto& scale = p.options.scale;
       // Adding 0 makes -0, which is equal to 0, the same text.
       return if_set(scale.has_value(), cat("=", shortest(scale.value_or(0) + 0.0)));
     }},
    dtype_of<Port::kG>("g", "g=DTYPE"),
    dtype_of<Port::kBeta>("beta", "beta=DTYPE"),
    given<Port::kALog>("a_log", "a_log[=DTYPE]"),
    given<Port::kDtBias>("dt_bias", "dt_bias[=DTYPE]"),
    dtype_of<Port::kCuSeqlens>("cu_seqlens", "cu_seqlens=DTYPE"),
    given<Port::kInitialState>("state", "state[=DTYPE]"),
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
    flag<&Options::output_final_state>("final"),
    flag<&Options::overwrite_initial_state>("overwrite"),
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
