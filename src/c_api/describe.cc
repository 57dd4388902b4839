// See describe.h.
#include "c_api/describe.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/strings.h"
#include "deltaworks/detail/call.h"
#include "problem/ports.h"
#include "problem/rules.h"
#include "registry/plan.h"

namespace deltaworks {
namespace {

static_assert(DW_PORT_COUNT == kPortCount && DW_DZ == index(Port::kDZ));
static_assert(DW_OP_COUNT == kOpCount);
static_assert(DW_OTHER == static_cast<int>(DType::kOther));

// dw_problem as of version 0.1, which every caller has; a newer one's fields are zero for an older
// caller, and what a newer caller has past the struct known here must be zero.
constexpr std::size_t kFirstVersion = offsetof(dw_problem, reserved) + sizeof(std::int32_t);

// On the way of every call: the text is made only where it is needed.
template <class... Parts>
void require(bool met, const Parts&... parts) {
  if (!met) throw Error(Status::kInvalidValue, cat("dw_problem: ", parts...));
}

constexpr std::size_t kLargestVersion = 4096;  // that there will ever be

// What a newer caller sets may change results: it is refused, not passed over.
constexpr std::uint32_t kKnownFlags = 2 * DW_HAS_DT_MAX - 1;

void judge_size(std::size_t size) {
  require(size >= kFirstVersion && size <= kLargestVersion,
          "struct_size must be sizeof(dw_problem) = ", sizeof(dw_problem), ", got ", size);
}

// A word that is absent or one of two.
void judge_word(Op op, const char* what, const char* word, const char* first, const char* second,
                Rule rule) {
  if (word == nullptr || std::strcmp(word, first) == 0 || std::strcmp(word, second) == 0) return;
  throw RuleError(
      rule, Status::kInvalidValue,
      cat(op_name(op), ": ", what, " must be '", first, "' or '", second, "', got '", word, "'"));
}

bool is_zero(const void* memory, std::size_t from, std::size_t to) {
  const auto* bytes = static_cast<const unsigned char*>(memory);
  return std::all_of(bytes + from, bytes + std::max(from, to),
                     [](unsigned char byte) { return byte == 0; });
}

}  // namespace

Problem read(const dw_problem& problem) {
  const std::size_t size = problem.struct_size;
  judge_size(size);
  dw_problem known{};
  std::memcpy(&known, &problem, std::min(size, sizeof known));
  require(is_zero(&problem, sizeof known, size), "fields past the ", sizeof known,
          " bytes that this library knows must be 0");

  require(known.op >= 0 && known.op < DW_OP_COUNT, "unknown operation ", known.op);
  const auto op = static_cast<Op>(known.op);
  require(known.pass == DW_FORWARD || known.pass == DW_BACKWARD, "pass must be 0 or 1, got ",
          known.pass);
  require((known.flags & ~kKnownFlags) == 0, "unknown flags ", known.flags & ~kKnownFlags);
  require(known.reserved == 0, "reserved must be 0, got ", known.reserved);
  require(known.tensors != nullptr || known.tensor_count == 0, "tensors is a null pointer");
  require(known.tensor_count <= DW_PORT_COUNT, "tensor_count must be at most ", kPortCount,
          ", got ", known.tensor_count);
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < known.tensor_count; ++i) {
    const std::int32_t port = known.tensors[i].port;
    require(port >= 0 && port < DW_PORT_COUNT, "unknown port ", port);
    const std::uint64_t bit = std::uint64_t{1} << port;
    require(!(seen & bit), name(op, static_cast<Port>(port)), " is described twice");
    seen |= bit;
    require(known.tensors[i].reserved == 0, name(op, static_cast<Port>(port)),
            ": reserved must be 0, got ", known.tensors[i].reserved);
  }
  judge_word(op, "gate_domain", known.gate_domain, "log", "linear", Rule::kGateDomain);
  judge_word(op, "gate", known.gate, "sigmoid", "softplus", Rule::kGate);
  Problem read = detail::problem_of(known);
  if (!read.plan_name.empty()) permanent_plan_name(read.op, read.plan_name);
  return read;
}

dw_tensor to_c(Port port, const TensorDesc& tensor) {
  dw_tensor c{};
  c.port = index(port);
  c.dtype = static_cast<std::int32_t>(tensor.dtype);
  c.device_type = static_cast<std::int32_t>(tensor.device.type);
  c.device_index = tensor.device.index;
  c.ndim = tensor.rank;
  std::copy(tensor.shape.begin(), tensor.shape.end(), c.shape);
  std::copy(tensor.stride.begin(), tensor.stride.end(), c.stride);
  return c;
}

void write(const Problem& from, dw_problem& to) {
  judge_size(to.struct_size);
  dw_problem written = *detail::CProblem(from).get();
  written.plan_name = from.plan_name.empty() ? "" : permanent_plan_name(from.op, from.plan_name);
  written.tensors = nullptr;
  written.tensor_count = 0;
  written.struct_size = to.struct_size;
  std::memcpy(&to, &written, std::min(to.struct_size, sizeof written));
}

}  // namespace deltaworks
