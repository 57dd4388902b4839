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

// The sizes in DIMS; one that may be left out, or has no name, is then equal to its fallback.
struct Size {
  string_view name;
  std::int64_t Dims::*member;
  std::int64_t Dims::*fallback = nullptr;
};
constexpr Size kDeltaSizes[] = {
    {"N", &Dims::N},
    {"T", &Dims::T},
    {"H", &Dims::H},
    {"HK", &Dims::HK, &Dims::H},
    {"HV", &Dims::HV, &Dims::H},
    {"K", &Dims::K},
    {"V", &Dims::V},
};
constexpr Size kMamba2Sizes[] = {
    {"N", &Dims::N},           {"T", &Dims::T}, {"H", &Dims::HV}, {"G", &Dims::H, &Dims::HV},
    {"", &Dims::HK, &Dims::H}, {"P", &Dims::V}, {"S", &Dims::K},
};
constexpr std::size_t kSizeCount = std::size(kDeltaSizes);

struct Sizes {
  std::span<const Size, kSizeCount> rows;
  string_view example;
};
Sizes sizes(Op op) {
  if (op == Op::kMamba2) return {kMamba2Sizes, "N4T8192H64G8P64S128"};
  return {kDeltaSizes, "N4T8192H16HV32K128V128"};
}

Dims read_dims(Op op, string_view text) {
  const auto& [rows, example] = sizes(op);
  Dims dims;
  std::array<bool, kSizeCount> seen{};
  for (string_view rest = text; !rest.empty();) {
    const auto is_upper = [](char c) { return c >= 'A' && c <= 'Z'; };
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    const auto digits = std::find_if_not(rest.begin(), rest.end(), is_upper);
    const auto end = std::find_if_not(digits, rest.end(), is_digit);
    const string_view token(rest.begin(), end), name(rest.begin(), digits);
    const auto size =
        std::find_if(rows.begin(), rows.end(), [&](const Size& row) { return row.name == name; });
    if (name.empty() || size == rows.end() || digits == end) {
      fail("sizes such as ", example, ", got ", quote(rest));
    }
    bool& again = seen[static_cast<std::size_t>(size - rows.begin())];
    if (again) fail("each size once, got ", quote(token), " after another ", name);
    again = true;
    const auto value = read_number<std::int64_t>({digits, end});
    if (!value || *value > kMaxElements) {
      fail("sizes of at most ", kMaxElements, ", got ", quote(token));
    }
    dims.*size->member = *value;
    rest.remove_prefix(token.size());
  }
  for (std::size_t i = 0; i < kSizeCount; ++i) {
    if (seen[i]) continue;
    if (rows[i].fallback == nullptr) fail("the size ", rows[i].name, ", got ", quote(text));
    dims.*rows[i].member = dims.*rows[i].fallback;
  }
  dims.HO = std::max(dims.H, dims.HV);
  return dims;
}

std::string print_dims(Op op, const Dims& dims) {
  std::string text;
  for (const Size& size : sizes(op).rows) {
    const std::int64_t value = dims.*size.member;
    if (size.fallback == nullptr || value != dims.*size.fallback) text += cat(size.name, value);
  }
  return text;
}

constexpr std::span<const Option> kTables[] = {kShapeOptions, kOptions, kRunOptions};
constexpr std::size_t kOptionCount =
    std::size(kShapeOptions) + std::size(kOptions) + std::size(kRunOptions);

// The options of a string, sorted out: the text of each, once; then +NAME, -NAME and NAME@ by port.
class Fields {
 public:
  Fields(Op op, std::span<const string_view> tokens) : op_(op) {
    for (const string_view token : tokens) place(token) = token;
  }

  void apply(Draft& draft) const {
    apply(kShapeOptions, draft);
    if (spec_of(op_).takes(Taken::kHouseholder) && draft.problem.options.num_householder == 0) {
      fail("n=STEPS, at least 1, among the options");
    }
    for (const PortSpec& spec : ports(op_)) {
      if (spec.role == Role::kInput) add(draft, spec, default_dtype(draft.problem, spec.kind));
    }
    apply(kOptions, draft);
    for (const PortSpec& spec : ports(op_)) {
      const string_view sign = signs_[index(spec.port)];
      const bool present = sign.empty() ? takes_part(draft.problem, spec) : sign[0] == '+';
      TensorDesc& tensor = draft.problem[spec.port];
      if (!present) {
        tensor = {};
      } else if (!tensor.present()) {
        add(draft, spec, implied_dtype(draft.problem, spec));
      }
    }
    for (const PortSpec& spec : ports(op_)) {
      apply_strides(strides_[index(spec.port)], draft.problem[spec.port]);
    }
    apply(kRunOptions, draft);
    for (TensorDesc& tensor : draft.problem.tensors) {
      if (tensor.present()) tensor.device = draft.device;
    }
  }

 private:
  // Where a token belongs.
  string_view& place(string_view token) {
    string_view* place = nullptr;
    const std::size_t at = token.find('@');
    if (token.starts_with('+') || token.starts_with('-')) {
      place = &signs_[port(token, token.substr(1))];
    } else if (at != string_view::npos) {
      place = &strides_[port(token, token.substr(0, at))];
    } else {
      place = option(token.substr(0, token.find('=')));
    }
    if (place == nullptr) fail("an option (", option_names(), "), got ", quote(token));
    if (!place->empty()) fail("each option once, got ", quote(token), " after ", quote(*place));
    return *place;
  }

  std::size_t port(string_view token, string_view name) const {
    for (const PortSpec& spec : ports(op_)) {
      if (name == spec.name) return static_cast<std::size_t>(index(spec.port));
    }
    fail("the name of a tensor, got ", quote(token));
  }

  string_view* option(string_view name) {
    string_view* place = options_.data();
    for (const std::span<const Option> table : kTables) {
      for (const Option& row : table) {
        if (belongs(row, op_) && name_of(row, op_) == name) return place;
        ++place;
      }
    }
    return nullptr;
  }

  std::string option_names() const {
    std::string text;
    for (const std::span<const Option> table : kTables) {
      if (table.data() == kRunOptions) text += "+TENSOR, -TENSOR, TENSOR@STRIDExSTRIDE..., ";
      for (const Option& row : table) {
        if (belongs(row, op_)) text += cat(form_of(row, op_), ", ");
      }
    }
    return text.substr(0, text.size() - 2);
  }

  void apply(std::span<const Option> rows, Draft& draft) const {
    const string_view* field = options_.data();
    for (const std::span<const Option> table : kTables) {
      if (table.data() == rows.data()) break;
      field += table.size();
    }
    for (const Option& row : rows) {
      const string_view text = *field++;
      if (text.empty() || row.read(draft, text.substr(name_of(row, op_).size()))) continue;
      fail(form_of(row, op_), ", got ", quote(text));
    }
  }

  static void apply_strides(string_view token, TensorDesc& tensor) {
    if (token.empty()) return;
    if (!tensor.present()) fail("strides of tensors that take part, got ", quote(token));
    const std::vector<string_view> strides = split(token.substr(token.find('@') + 1), 'x');
    bool good = strides.size() == static_cast<std::size_t>(tensor.rank);
    for (std::size_t axis = 0; good && axis < strides.size(); ++axis) {
      const auto stride = read_number<std::int64_t>(strides[axis]);
      good = stride.has_value();
      tensor.stride[axis] = stride.value_or(0);
    }
    if (!good) fail(tensor.rank, " strides such as 512x32x1, got ", quote(token));
  }

  Op op_;
  std::array<string_view, kOptionCount> options_{};
  std::array<string_view, kPortCount> signs_{}, strides_{};
};

std::string print_options(std::span<const Option> rows, const Problem& p) {
  std::string text;
  for (const Option& row : rows) {
    if (!belongs(row, p.op)) continue;
    if (const auto rest = row.write(p)) text += cat(":", name_of(row, p.op), *rest);
  }
  return text;
}

// Tensors that take part, or do not, against their default; then those that are not row-major.
std::string print_tensors(const Problem& p) {
  std::string signs, strides;
  for (const PortSpec& spec : ports(p.op)) {
    const TensorDesc& tensor = p[spec.port];
    if (tensor.present() != takes_part(p, spec)) {
      signs += cat(tensor.present() ? ":+" : ":-", spec.name);
    }
    if (!tensor.present()) continue;
    check_size(spec, shape_of(tensor));
    if (tensor.stride == contiguous(tensor.dtype, shape_of(tensor)).stride) continue;
    strides += cat(":", spec.name);
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
  draft.dims = read_dims(problem.op, fields[3]);
  problem[Port::kQ].dtype = io;  // what defaults depend on
  Fields(problem.op, std::span(fields).subspan(4)).apply(draft);
  return problem;
}

std::string print(const Problem& p) {
  if (!p.plan_name.empty() && !is_plan_name(p.plan_name)) {
    fail("a plan_name of at most ", kMaxPlanName, " letters, digits, '_', '-' and '.', got ",
         quote(p.plan_name));
  }
  const TensorDesc &q = p[Port::kQ], &k = p[Port::kK], &v = p[Port::kV];
  const Dims dims{.T = q.shape[0],
                  .N = p[Port::kCuSeqlens].shape[0] - 1,
                  .K = q.shape[2],
                  .V = v.shape[v.rank - 1],
                  .H = q.shape[1],
                  .HK = k.shape[k.rank - 2],
                  .HV = v.shape[v.rank - 2]};
  return cat(name_in(kVariants, p.op), ":", name_in(kPasses, p.pass), ":",
             name_in(kDTypes, q.dtype), ":", print_dims(p.op, dims),
             print_options(kShapeOptions, p), print_options(kOptions, p), print_tensors(p),
             print_options(kRunOptions, p));
}

}  // namespace deltaworks
