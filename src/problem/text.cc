// See text.h. Both directions go through the same tables: the sizes here, the options in
// text_options.h. A string's options may come in any order; they are applied in that of the table,
// so that a row may rely on those before it.
#include "problem/text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "problem/text_options.h"

namespace deltaworks {
namespace {

using namespace text;

constexpr std::size_t kMaxLength = 4096;  // of a text; the longest that is printed has under 3000

// The sizes in DIMS; one that may be left out is then equal to its fallback.
struct Size {
  string_view name;
  std::int64_t Dims::*member;
  std::int64_t Dims::*fallback = nullptr;
};
constexpr Size kSizes[] = {
    {"N", &Dims::N},
    {"T", &Dims::T},
    {"H", &Dims::H},
    {"HK", &Dims::HK, &Dims::H},
    {"HV", &Dims::HV, &Dims::H},
    {"K", &Dims::K},
    {"V", &Dims::V},
};

Dims read_dims(string_view text) {
  Dims dims;
  std::array<bool, std::size(kSizes)> seen{};
  for (string_view rest = text; !rest.empty();) {
    const auto is_upper = [](char c) { return c >= 'A' && c <= 'Z'; };
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    const auto digits = std::find_if_not(rest.begin(), rest.end(), is_upper);
    const auto end = std::find_if_not(digits, rest.end(), is_digit);
    const string_view token(rest.begin(), end), name(rest.begin(), digits);
    const auto size = std::find_if(std::begin(kSizes), std::end(kSizes),
                                   [&](const Size& row) { return row.name == name; });
    if (size == std::end(kSizes) || digits == end) {
      fail("sizes such as N4T8192H16HV32K128V128, got ", quote(rest));
    }
    bool& again = seen[static_cast<std::size_t>(size - kSizes)];
    if (again) fail("each size once, got ", quote(token), " after another ", name);
    again = true;
    const auto value = read_number<std::int64_t>({digits, end});
    if (!value || *value > kMaxElements) {
      fail("sizes of at most ", kMaxElements, ", got ", quote(token));
    }
    dims.*size->member = *value;
    rest.remove_prefix(token.size());
  }
  for (std::size_t i = 0; i < std::size(kSizes); ++i) {
    const Size& size = kSizes[i];
    if (seen[i]) continue;
    if (size.fallback == nullptr) fail("the size ", size.name, ", got ", quote(text));
    dims.*size.member = dims.*size.fallback;
  }
  dims.HO = std::max(dims.H, dims.HV);
  return dims;
}

std::string print_dims(const Dims& dims) {
  std::string text;
  for (const Size& size : kSizes) {
    const std::int64_t value = dims.*size.member;
    if (size.fallback == nullptr || value != dims.*size.fallback) text += cat(size.name, value);
  }
  return text;
}

// The options of a string, sorted out: the text of each, once; then +NAME, -NAME and NAME@ by port.
class Fields {
 public:
  explicit Fields(std::span<const string_view> tokens) {
    for (const string_view token : tokens) place(token) = token;
  }

  void apply(Draft& draft) const {
    apply(kOptions, options_, draft);
    for (const PortSpec& spec : ports(draft.problem.op)) {
      const string_view sign = signs_[index(spec.port)];
      const bool present = sign.empty() ? takes_part(draft.problem, spec) : sign[0] == '+';
      TensorDesc& tensor = draft.problem[spec.port];
      if (!present) {
        tensor = {};
      } else if (!tensor.present()) {
        add(draft, spec, implied_dtype(draft.problem, spec));
      }
    }
    for (const PortSpec& spec : ports(draft.problem.op)) {
      apply_strides(strides_[index(spec.port)], spec, draft.problem[spec.port]);
    }
    apply(kRunOptions, run_options_, draft);
    for (TensorDesc& tensor : draft.problem.tensors) {
      if (tensor.present()) tensor.device = draft.device;
    }
  }

 private:
  // Where a token belongs.
  string_view& place(string_view token) {
    const std::size_t at = token.find('@');
    const bool sign = token.starts_with('+') || token.starts_with('-');
    string_view* place = nullptr;
    if (sign) {
      place = &signs_[port(token, token.substr(1))];
    } else if (at != string_view::npos) {
      place = &strides_[port(token, token.substr(0, at))];
    } else {
      const string_view name = token.substr(0, token.find('='));
      if (!look_up(kOptions, options_, name, place)) {
        look_up(kRunOptions, run_options_, name, place);
      }
    }
    if (place == nullptr) fail("an option (", option_names(), "), got ", quote(token));
    if (!place->empty()) fail("each option once, got ", quote(token), " after ", quote(*place));
    return *place;
  }

  static std::size_t port(string_view token, string_view name) {
    for (int port = 0; port < kPortCount; ++port) {
      if (name == deltaworks::name(static_cast<Port>(port))) return static_cast<std::size_t>(port);
    }
    fail("the name of a tensor, got ", quote(token));
  }

  static bool look_up(std::span<const Option> rows, std::span<string_view> fields, string_view name,
                      string_view*& place) {
    const auto row = std::find_if(rows.begin(), rows.end(),
                                  [name](const Option& each) { return each.name == name; });
    if (row == rows.end()) return false;
    place = &fields[static_cast<std::size_t>(row - rows.begin())];
    return true;
  }

  static std::string option_names() {
    std::string text;
    for (const Option& row : kOptions) text += cat(row.form, ", ");
    text += "+TENSOR, -TENSOR, TENSOR@STRIDExSTRIDE...";
    for (const Option& row : kRunOptions) text += cat(", ", row.form);
    return text;
  }

  static void apply(std::span<const Option> rows, std::span<const string_view> fields,
                    Draft& draft) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (fields[i].empty()) continue;
      if (!rows[i].read(draft, fields[i].substr(rows[i].name.size()))) {
        fail(rows[i].form, ", got ", quote(fields[i]));
      }
    }
  }

  static void apply_strides(string_view token, const PortSpec& spec, TensorDesc& tensor) {
    if (token.empty()) return;
    if (!tensor.present()) fail("strides of tensors that take part, got ", quote(token));
    const std::vector<string_view> strides = split(token.substr(token.find('@') + 1), 'x');
    bool good = strides.size() == static_cast<std::size_t>(spec.rank);
    for (std::size_t axis = 0; good && axis < strides.size(); ++axis) {
      const auto stride = read_number<std::int64_t>(strides[axis]);
      good = stride.has_value();
      tensor.stride[axis] = stride.value_or(0);
    }
    if (!good) fail(int{spec.rank}, " strides such as 512x32x1, got ", quote(token));
  }

  std::array<string_view, std::size(kOptions)> options_{};
  std::array<string_view, std::size(kRunOptions)> run_options_{};
  std::array<string_view, kPortCount> signs_{}, strides_{};
};

std::string print_options(std::span<const Option> rows, const Problem& p) {
  std::string text;
  for (const Option& row : rows) {
    if (const auto rest = row.write(p)) text += cat(":", row.name, *rest);
  }
  return text;
}

// Tensors that take part, or do not, against their default; then those that are not row-major.
std::string print_tensors(const Problem& p) {
  std::string signs, strides;
  for (const PortSpec& spec : ports(p.op)) {
    const TensorDesc& tensor = p[spec.port];
    if (tensor.present() != takes_part(p, spec)) {
      signs += cat(tensor.present() ? ":+" : ":-", name(spec.port));
    }
    if (!tensor.present()) continue;
    check_size(spec.port, shape_of(tensor));
    if (tensor.stride == contiguous(tensor.dtype, shape_of(tensor)).stride) continue;
    strides += cat(":", name(spec.port));
    for (int axis = 0; axis < tensor.rank; ++axis) {
      strides += cat(axis == 0 ? "@" : "x", tensor.stride[axis]);
    }
  }
  return signs + strides;
}

}  // namespace

Problem parse(string_view text) {
  if (text.size() > kMaxLength) {
    fail("at most ", kMaxLength, " bytes, got ", text.size());
  }
  const std::vector<string_view> fields = split(text, ':');
  if (fields.size() < 4) fail("VARIANT:PASS:IO:DIMS[:OPTION]..., got ", quote(text));
  Draft draft;
  Problem& problem = draft.problem;
  problem.op = read_name<Op>("a variant", kVariants, fields[0]);
  problem.pass = read_name<Pass>("a pass", kPasses, fields[1]);
  const DType io = read_name<DType>("a dtype", kDTypes, fields[2]);
  draft.dims = read_dims(fields[3]);
  problem[Port::kQ].dtype = io;  // what defaults depend on
  for (const PortSpec& spec : ports(problem.op)) {
    if (spec.role == Role::kInput) add(draft, spec, default_dtype(problem, spec.kind));
  }
  Fields(std::span(fields).subspan(4)).apply(draft);
  return problem;
}

std::string print(const Problem& p) {
  if (!p.plan_name.empty() && !is_plan_name(p.plan_name)) {
    fail("a plan_name of at most ", kMaxPlanName, " letters, digits, '_', '-' and '.', got ",
         quote(p.plan_name));
  }
  const TensorDesc &q = p[Port::kQ], &v = p[Port::kV];
  const Dims dims{.T = q.shape[0],
                  .N = p[Port::kCuSeqlens].shape[0] - 1,
                  .K = q.shape[2],
                  .V = v.shape[2],
                  .H = q.shape[1],
                  .HK = p[Port::kK].shape[1],
                  .HV = v.shape[1]};
  return cat(name_in(kVariants, p.op), ":", name_in(kPasses, p.pass), ":",
             name_in(kDTypes, q.dtype), ":", print_dims(dims), print_options(kOptions, p),
             print_tensors(p), print_options(kRunOptions, p));
}

}  // namespace deltaworks
