// Owning handles of torch's stable ABI: a tensor, string or list that the dispatcher hands over is
// released when its holder goes out of scope, also where an exception passes.
#pragma once

#include <torch/csrc/stable/library.h>

#include <memory>
#include <type_traits>

namespace deltaworks_torch {

struct Release {
  void operator()(AtenTensorHandle tensor) const { aoti_torch_delete_tensor_object(tensor); }
  void operator()(StringHandle string) const { torch_delete_string(string); }
  void operator()(StableListHandle list) const { torch_delete_list(list); }
};

template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Release>;

using Tensor = Owned<AtenTensorHandle>;
using String = Owned<StringHandle>;
using List = Owned<StableListHandle>;

// Takes the next value off a boxed kernel's stack.
template <class T>
T take(StableIValue*& stack) {
  return torch::stable::detail::to<T>(*stack++);
}

template <class Handle>
Owned<Handle> take_owned(StableIValue*& stack) {
  return Owned<Handle>(take<Handle>(stack));
}

}  // namespace deltaworks_torch
