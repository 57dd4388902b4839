// The C interface over problems and plans.
#include "deltaworks/c_api.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

#include "core/strings.h"
#include "deltaworks/plan.h"
#include "deltaworks/status.h"
#include "engines/cpu/dispatch.h"
#include "problem/ports.h"

struct dw_plan {
  std::shared_ptr<const deltaworks::Plan> plan;
};

namespace {

using namespace deltaworks;

static_assert(DW_PORT_COUNT == kPortCount && DW_D_INITIAL_STATE == index(Port::kDInitialState));
static_assert(DW_OTHER == static_cast<int>(DType::kOther));

thread_local std::string last_error;
thread_local std::shared_ptr<const Plan> last_plan;

// Runs f; an exception becomes a status and the thread's error text.
template <class F>
dw_status guarded(F&& f) {
  Status status = Status::kInternal;
  try {
    f();
    return static_cast<dw_status>(Status::kOk);
  } catch (const Error& error) {
    status = error.status();
    last_error = error.what();
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return static_cast<dw_status>(status);
}

// Ports that the caller's version of dw_call knows; later ones are absent.
int known_ports(const dw_call& call) {
  const std::size_t bytes = std::min(call.struct_size, sizeof(dw_call));
  if (bytes < offsetof(dw_call, tensors)) {
    throw Error(Status::kInvalidValue, cat("dw_call: struct_size must be sizeof(dw_call) = ",
                                           sizeof(dw_call), ", got ", call.struct_size));
  }
  return static_cast<int>((bytes - offsetof(dw_call, tensors)) / sizeof(dw_tensor));
}

TensorDesc describe(const dw_tensor& tensor) {
  TensorDesc desc;
  desc.dtype = tensor.dtype >= 0 && tensor.dtype < DW_OTHER ? static_cast<DType>(tensor.dtype)
                                                            : DType::kOther;
  desc.device = {static_cast<DeviceType>(tensor.device_type), tensor.device_index};
  desc.rank = tensor.ndim;
  const int axes = std::min(tensor.ndim, kMaxRank);
  std::copy_n(tensor.shape, axes, desc.shape.begin());
  std::copy_n(tensor.stride, axes, desc.stride.begin());
  return desc;
}

GateDomain parse_gate_domain(Op op, const char* text) {
  if (text == nullptr || std::strcmp(text, "log") == 0) return GateDomain::kLog;
  if (std::strcmp(text, "linear") == 0) return GateDomain::kLinear;
  throw Error(Status::kInvalidValue,
              cat(op_name(op), ": gate_domain must be 'log' or 'linear', got '", text, "'"));
}

Problem describe(const dw_call& call) {
  Problem problem;
  const int ports = known_ports(call);
  if (call.op != DW_GATED_DELTA_NET) {
    throw Error(Status::kInvalidValue, cat("dw_call: unknown operation ", call.op));
  }
  problem.op = static_cast<Op>(call.op);
  if (call.pass != DW_FORWARD && call.pass != DW_BACKWARD) {
    throw Error(Status::kInvalidValue,
                cat(op_name(problem.op), ": pass must be 0 or 1, got ", call.pass));
  }
  problem.pass = static_cast<Pass>(call.pass);
  for (int port = 0; port < ports; ++port) {
    if (call.tensors[port].present) problem.tensors[port] = describe(call.tensors[port]);
  }
  Options& options = problem.options;
  if (call.flags & DW_HAS_SCALE) options.scale = call.scale;
  options.use_qk_l2norm = call.flags & DW_L2NORM;
  options.use_beta_sigmoid = call.flags & DW_BETA_SIGMOID;
  options.allow_neg_eigval = call.flags & DW_ALLOW_NEG_EIGVAL;
  options.safe_gate = call.flags & DW_SAFE_GATE;
  options.gate_domain = parse_gate_domain(problem.op, call.gate_domain);
  options.batch_invariant = call.flags & DW_BATCH_INVARIANT;
  options.output_final_state = call.flags & DW_OUTPUT_FINAL_STATE;
  options.overwrite_initial_state = call.flags & DW_OVERWRITE_INITIAL_STATE;
  options.has_state_indices = call.flags & DW_HAS_STATE_INDICES;
  options.checkpoint_every_n_tokens = call.checkpoint_every_n_tokens;
  problem.requires_gradient = call.flags & DW_REQUIRES_GRADIENT;
  if (call.plan_name != nullptr) problem.plan_name = call.plan_name;
  problem.threads = call.threads;
  return problem;
}

}  // namespace

extern "C" {

dw_status dw_check(const dw_call* call) {
  return guarded([&] { find_plan(describe(*call)); });
}

dw_status dw_plan_find(const dw_call* call, dw_plan** plan) {
  *plan = nullptr;
  return guarded([&] { *plan = new dw_plan{find_plan(describe(*call))}; });
}

void dw_plan_release(dw_plan* plan) { delete plan; }

size_t dw_plan_workspace_bytes(const dw_plan* plan) { return plan->plan->workspace_bytes(); }

const char* dw_plan_name(const dw_plan* plan) { return plan->plan->name().c_str(); }

dw_status dw_plan_execute(const dw_plan* plan, const dw_call* call, void* workspace, void* stream) {
  return guarded([&] {
    Pack pack;
    const int ports = known_ports(*call);
    for (int port = 0; port < ports; ++port) {
      if (call->tensors[port].present) pack.pointers[port] = call->tensors[port].data;
    }
    plan->plan->execute(pack, workspace, stream);
    last_plan = plan->plan;
  });
}

const char* dw_last_error(void) { return last_error.c_str(); }

dw_status dw_explain(const dw_call* call, char* text, size_t size, size_t* needed) {
  return guarded([&] {
    std::string lines;
    for (const Verdict& verdict : explain(describe(*call))) {
      if (verdict.reasons.empty()) lines += cat(verdict.plan_name, ": accepts\n");
      for (const std::string& reason : verdict.reasons) {
        lines += cat(verdict.plan_name, ": ", reason, "\n");
      }
    }
    if (needed != nullptr) *needed = lines.size() + 1;
    if (size == 0) return;
    const std::size_t length = std::min(lines.size(), size - 1);
    std::memcpy(text, lines.data(), length);
    text[length] = '\0';
  });
}

const char* dw_last_plan(void) { return last_plan ? last_plan->name().c_str() : ""; }

size_t dw_last_workspace_bytes(void) { return last_plan ? last_plan->workspace_bytes() : 0; }

const char* dw_cpu_isa(int32_t* lanes) {
  const char* isa = nullptr;
  guarded([&] {
    const cpu::Kernels& kernels = cpu::kernels();
    if (lanes != nullptr) *lanes = kernels.lanes;
    isa = kernels.isa;
  });
  return isa;
}

const char* dw_version(void) { return DELTAWORKS_VERSION; }

}  // extern "C"
