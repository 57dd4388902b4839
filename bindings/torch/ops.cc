// The dispatcher operators deltaworks::forward and deltaworks::backward, one pair for all
// operations of the C interface. `tensors` holds the tensors whose bits (1 << port) are set in
// `ports`, in port order; the outputs come back in port order too.
//
// They are registered for every device: the C interface judges devices. A failure is thrown as
// "deltaworks[<status>]: <text>", which the Python package turns into its exception.
#include <memory>
#include <stdexcept>
#include <string>

#include "call.h"

namespace deltaworks_torch {
namespace {

thread_local std::size_t last_workspace_bytes = 0;

void require(dw_status status) {
  if (status == 0) return;
  throw std::runtime_error("deltaworks[" + std::to_string(status) + "]: " + dw_last_error());
}

struct ReleasePlan {
  void operator()(dw_plan* plan) const { dw_plan_release(plan); }
};

// The arguments of one call, owned for its duration.
class Call {
 public:
  // Takes everything that forward and backward have in common off the stack.
  Call(int pass, StableIValue*& stack) {
    call_.struct_size = sizeof call_;
    call_.pass = pass;
    call_.op = static_cast<std::int32_t>(take<std::int64_t>(stack));
    call_.flags = static_cast<std::uint32_t>(take<std::int64_t>(stack));
    call_.scale = take<double>(stack);
    gate_domain_ = take_owned<StringHandle>(stack);
    plan_name_ = take_owned<StringHandle>(stack);
    call_.checkpoint_every_n_tokens = take<std::int64_t>(stack);
    const List tensors = take_owned<StableListHandle>(stack);
    const std::int64_t ports = take<std::int64_t>(stack);
    TORCH_ERROR_CODE_CHECK(torch_string_c_str(gate_domain_.get(), &call_.gate_domain));
    TORCH_ERROR_CODE_CHECK(torch_string_c_str(plan_name_.get(), &call_.plan_name));
    std::uint32_t threads;
    TORCH_ERROR_CODE_CHECK(torch_get_num_threads(&threads));
    call_.threads = static_cast<std::int32_t>(threads);
    take_inputs(tensors.get(), ports);
  }

  dw_call& get() { return call_; }

  // Judges the call, allocates what it writes and runs it. Nothing is allocated for a call that is
  // rejected. Returns the list of outputs.
  StableListHandle run() {
    dw_plan* found;
    require(dw_plan_find(&call_, &found));
    const std::unique_ptr<dw_plan, ReleasePlan> plan(found);

    Tensor outputs[DW_PORT_COUNT];
    for (int port = 0; port < DW_PORT_COUNT; ++port) {
      dw_tensor& tensor = call_.tensors[port];
      if (tensor.present && !inputs_[port]) outputs[port] = allocate(tensor);
    }
    void* workspace = nullptr;
    const std::size_t bytes = dw_plan_workspace_bytes(found);
    const Tensor memory = bytes > 0 ? allocate_bytes(bytes, &workspace) : Tensor();
    last_workspace_bytes = bytes;
    require(dw_plan_execute(found, &call_, workspace, nullptr));

    // Filled last: deleting a list does not delete the tensors in it.
    StableListHandle list;
    TORCH_ERROR_CODE_CHECK(torch_new_list_reserve_size(DW_PORT_COUNT, &list));
    for (Tensor& output : outputs) {
      if (!output) continue;
      TORCH_ERROR_CODE_CHECK(
          torch_list_push_back(list, torch::stable::detail::from(output.release())));
    }
    return list;
  }

 private:
  void take_inputs(StableListHandle tensors, std::int64_t ports) {
    std::size_t count, next = 0;
    TORCH_ERROR_CODE_CHECK(torch_list_size(tensors, &count));
    Tensor owned[DW_PORT_COUNT];
    if (count > DW_PORT_COUNT) throw std::runtime_error("deltaworks: more tensors than ports");
    for (std::size_t i = 0; i < count; ++i) {
      StableIValue item;
      TORCH_ERROR_CODE_CHECK(torch_list_get_item(tensors, i, &item));
      owned[i].reset(torch::stable::detail::to<AtenTensorHandle>(item));
    }
    for (int port = 0; port < DW_PORT_COUNT; ++port) {
      if (!(ports >> port & 1)) continue;
      if (next == count) throw std::runtime_error("deltaworks: fewer tensors than ports");
      call_.tensors[port] = describe(owned[next].get());
      inputs_[port] = std::move(owned[next++]);
    }
    if (next != count) throw std::runtime_error("deltaworks: more tensors than ports");
  }

  dw_call call_{};
  String gate_domain_, plan_name_;
  Tensor inputs_[DW_PORT_COUNT];
};

void forward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  StableIValue* next = stack;
  Call call(DW_FORWARD, next);
  describe_forward_outputs(call.get());
  stack[0] = torch::stable::detail::from(call.run());
}

void backward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  StableIValue* next = stack;
  Call call(DW_BACKWARD, next);
  describe_gradients(call.get(), take<std::int64_t>(next));
  stack[0] = torch::stable::detail::from(call.run());
}

}  // namespace

// Workspace of the plan that executed last on this thread through torch.
extern "C" DW_API std::size_t dw_torch_workspace_bytes() { return last_workspace_bytes; }

STABLE_TORCH_LIBRARY(deltaworks, library) {
  library.def(
      "forward(int op, int flags, float scale, str gate_domain, str plan_name, "
      "int checkpoint_every_n_tokens, Tensor[] tensors, int ports) -> Tensor[]");
  library.def(
      "backward(int op, int flags, float scale, str gate_domain, str plan_name, "
      "int checkpoint_every_n_tokens, Tensor[] tensors, int ports, int wanted) -> Tensor[]");
}

STABLE_TORCH_LIBRARY_IMPL(deltaworks, CompositeExplicitAutograd, library) {
  library.impl("forward", &forward);
  library.impl("backward", &backward);
}

}  // namespace deltaworks_torch
