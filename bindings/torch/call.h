// Tensors of torch as the C interface describes them, and memory from torch's allocator.
#pragma once

#include "deltaworks/c_api.h"
#include "owned.h"

namespace deltaworks_torch {

// Describes a tensor as port `port` of a problem; its data pointer goes to *data. A rank above 4 is
// kept as a number only.
dw_tensor describe(int port, AtenTensorHandle tensor, void** data);

// Memory for a described output from torch's allocator.
Tensor allocate(const dw_tensor& output, void** data);
// Uninitialised bytes on the CPU.
Tensor allocate_bytes(std::size_t bytes, void** data);

}  // namespace deltaworks_torch
