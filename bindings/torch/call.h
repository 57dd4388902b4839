// Tensors of torch as the C interface describes them, and the outputs that a call must be given.
#pragma once

#include "deltaworks/c_api.h"
#include "owned.h"

namespace deltaworks_torch {

// Describes a tensor with its data pointer. A rank above 4 is kept as a number only.
dw_tensor describe(AtenTensorHandle tensor);

// Adds the forward's outputs to a call that holds its inputs: contiguous, without memory. Inputs of
// wrong ranks give outputs of some shape; the call is then rejected for the inputs.
void describe_forward_outputs(dw_call& call);
// The same for the gradients whose bits (1 << port) are set in `wanted`.
void describe_gradients(dw_call& call, std::int64_t wanted);

// Memory for a described output from torch's allocator; sets the description's pointer.
Tensor allocate(dw_tensor& output);
// Uninitialised bytes on the CPU.
Tensor allocate_bytes(std::size_t bytes, void** data);

}  // namespace deltaworks_torch
