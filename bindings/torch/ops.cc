// The dispatcher operators deltaworks::forward, forward_in_place and backward, for all operations
// of the C interface. `tensors` holds the tensors whose bits (1 << port) are set in `ports`, in
// port order; the outputs come back in port order too. forward_in_place is the forward with
// overwrite_initial_state: it takes initial_state, which it writes, apart from the others, and its
// only output is o.
//
// They are registered for every device: the C interface judges devices. A failure is thrown as
// "deltaworks[<status>]: <text>", which the Python package turns into its exception.
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "call.h"

namespace deltaworks_torch {
namespace {

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
    problem_.struct_size = sizeof problem_;
    problem_.pass = pass;
    problem_.op = static_cast<std::int32_t>(take<std::int64_t>(stack));
    problem_.flags = static_cast<std::uint32_t>(take<std::int64_t>(stack));
    problem_.scale = take<double>(stack);
    gate_domain_ = take_text(stack, problem_.gate_domain);
    plan_name_ = take_text(stack, problem_.plan_name);
    problem_.checkpoint_every_n_tokens = take<std::int64_t>(stack);
    problem_.checkpoint_dtype = static_cast<std::int32_t>(take<std::int64_t>(stack));
    const List tensors = take_owned<StableListHandle>(stack);
    const std::int64_t ports = take<std::int64_t>(stack);
    std::uint32_t threads;
    TORCH_ERROR_CODE_CHECK(torch_get_num_threads(&threads));
    problem_.threads = static_cast<std::int32_t>(threads);
    problem_.tensors = described_;
    take_inputs(tensors.get(), ports);
  }

  // Takes the options that only some operations have off the stack, where they come last.
  void take_rare(StableIValue*& stack) {
    gate_ = take_text(stack, problem_.gate);
    problem_.gate_lower_bound = take<double>(stack);
    problem_.num_householder = take<std::int64_t>(stack);
    problem_.dt_min = take<double>(stack);
    problem_.dt_max = take<double>(stack);
  }

  // Takes the initial_state that the call overwrites off the stack.
  void take_state(StableIValue*& stack) {
    problem_.flags |= DW_OVERWRITE_INITIAL_STATE;
    state_ = take_owned<AtenTensorHandle>(stack);
    if (problem_.tensor_count == DW_PORT_COUNT) fail("more tensors than ports");
    described_[problem_.tensor_count++] =
        describe(DW_INITIAL_STATE, state_.get(), &pointers_[DW_INITIAL_STATE]);
  }

  // Judges the call, allocates what it writes (of a backward the gradients in `wanted`) and runs
  // it. Nothing is allocated for a call that is rejected.
  void run(std::int64_t wanted) {
    const std::size_t inputs = problem_.tensor_count;
    require(dw_describe_outputs(&problem_, static_cast<std::uint64_t>(wanted), described_ + inputs,
                                DW_PORT_COUNT - inputs, &outputs_));
    problem_.tensor_count += outputs_;
    dw_plan* found;
    require(dw_plan_find(&problem_, &found));
    const std::unique_ptr<dw_plan, ReleasePlan> plan(found);
    if (state_) {
      pointers_[DW_INITIAL_STATE] = writable(state_.get());
    } else if (problem_.flags & DW_OVERWRITE_INITIAL_STATE) {
      fail("only forward_in_place overwrites initial_state");
    }

    for (std::size_t i = 0; i < outputs_; ++i) {
      const dw_tensor& output = described_[inputs + i];
      written_[i] = allocate(output, &pointers_[output.port]);
    }
    void* workspace = nullptr;
    const std::size_t bytes = dw_plan_workspace_bytes(found);
    const dw_tensor& first = described_[0];
    const Tensor memory = bytes > 0 ? allocate_bytes(bytes, first, &workspace) : Tensor();
    require(dw_plan_execute(found, pointers_, DW_PORT_COUNT, workspace, current_stream(first)));
  }

  // All that run() wrote. Filled last: deleting a list does not delete the tensors in it.
  StableListHandle outputs() {
    StableListHandle list;
    TORCH_ERROR_CODE_CHECK(torch_new_list_reserve_size(outputs_, &list));
    for (std::size_t i = 0; i < outputs_; ++i) {
      TORCH_ERROR_CODE_CHECK(
          torch_list_push_back(list, torch::stable::detail::from(written_[i].release())));
    }
    return list;
  }
  AtenTensorHandle first_output() { return written_[0].release(); }

 private:
  [[noreturn]] static void fail(const std::string& text) {
    throw std::runtime_error("deltaworks: " + text);
  }

  // A text, or none, off the stack: `characters` live as long as what is returned, null for none.
  static String take_text(StableIValue*& stack, const char*& characters) {
    String text(take<std::optional<StringHandle>>(stack).value_or(nullptr));
    if (text) TORCH_ERROR_CODE_CHECK(torch_string_c_str(text.get(), &characters));
    return text;
  }

  void take_inputs(StableListHandle tensors, std::int64_t ports) {
    std::size_t count, next = 0;
    TORCH_ERROR_CODE_CHECK(torch_list_size(tensors, &count));
    if (count > DW_PORT_COUNT) fail("more tensors than ports");
    for (std::size_t i = 0; i < count; ++i) {
      StableIValue item;
      TORCH_ERROR_CODE_CHECK(torch_list_get_item(tensors, i, &item));
      inputs_[i].reset(torch::stable::detail::to<AtenTensorHandle>(item));
    }
    for (int port = 0; port < DW_PORT_COUNT; ++port) {
      if (!(ports >> port & 1)) continue;
      if (next == count) fail("fewer tensors than ports");
      described_[next] = describe(port, inputs_[next].get(), &pointers_[port]);
      ++next;
    }
    if (next != count) fail("more tensors than ports");
    problem_.tensor_count = count;
  }

  dw_problem problem_{};
  dw_tensor described_[DW_PORT_COUNT];
  void* pointers_[DW_PORT_COUNT] = {};
  String gate_domain_, plan_name_, gate_;
  Tensor inputs_[DW_PORT_COUNT], state_, written_[DW_PORT_COUNT];
  std::size_t outputs_ = 0;
};

void forward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  StableIValue* next = stack;
  Call call(DW_FORWARD, next);
  call.take_rare(next);
  call.run(0);
  stack[0] = torch::stable::detail::from(call.outputs());
}

void forward_in_place(StableIValue* stack, std::uint64_t, std::uint64_t) {
  StableIValue* next = stack;
  Call call(DW_FORWARD, next);
  call.take_state(next);
  call.take_rare(next);
  call.run(0);
  stack[0] = torch::stable::detail::from(call.first_output());
}

void backward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  StableIValue* next = stack;
  Call call(DW_BACKWARD, next);
  const auto wanted = take<std::int64_t>(next);
  call.take_rare(next);
  call.run(wanted);
  stack[0] = torch::stable::detail::from(call.outputs());
}

}  // namespace

STABLE_TORCH_LIBRARY(deltaworks, library) {
  const std::string arguments =
      "int op, int flags, float scale, str? gate_domain, str? plan_name, "
      "int checkpoint_every_n_tokens, int checkpoint_dtype, Tensor[] tensors, int ports";
  // Left out by the calls of operations that have none of them, which are the faster for it.
  const std::string rare =
      "str? gate=None, float gate_lower_bound=0, int num_householder=0, float dt_min=0, "
      "float dt_max=0";
  library.def(("forward(" + arguments + ", " + rare + ") -> Tensor[]").c_str());
  // One tensor and no list: torch.compile does not functionalise an operator that returns a list.
  library.def(
      ("forward_in_place(" + arguments + ", Tensor(a!) initial_state, " + rare + ") -> Tensor")
          .c_str());
  library.def(("backward(" + arguments + ", int wanted, " + rare + ") -> Tensor[]").c_str());
}

STABLE_TORCH_LIBRARY_IMPL(deltaworks, CompositeExplicitAutograd, library) {
  library.impl("forward", &forward);
  library.impl("forward_in_place", &forward_in_place);
  library.impl("backward", &backward);
}

}  // namespace deltaworks_torch
